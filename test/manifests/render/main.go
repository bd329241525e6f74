// Command render writes what is in deploy/kustomize by no hand: the base, from the
// chart in deploy/helm, and the types of snapshots, from upstream's modules. It runs
// in test/manifests: `make manifests` does that.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/test/manifests"
)

func main() {
	if err := render(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func render(ctx context.Context) error {
	base, err := manifests.Base(manifests.ChartDir)
	if err != nil {
		return err
	}

	if err := manifests.Write(filepath.Join(manifests.KustomizeDir, "base"), base); err != nil {
		return err
	}

	table, err := manifests.ValuesTable(manifests.ChartDir)
	if err != nil {
		return err
	}

	if err := os.WriteFile(filepath.Join(manifests.ChartDir, "README.md"), []byte(table), 0o644); err != nil {
		return err
	}

	types, err := manifests.CRDs(ctx)
	if err != nil {
		return err
	}

	return manifests.Write(filepath.Join(manifests.KustomizeDir, "prerequisites", "crds"), types)
}
