package manifests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// crdModules are where upstream has the types of snapshots, and tests of this
// module need them anyway.
func crdModules() []string {
	return []string{
		"github.com/kubernetes-csi/external-snapshotter/client/v8",
		"github.com/kubernetes-csi/external-snapshot-metadata/client",
	}
}

// CRDs returns upstream's custom resource definitions by the names of their files.
func CRDs(ctx context.Context) (map[string]string, error) {
	files := map[string]string{}

	for _, module := range crdModules() {
		directory, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			return nil, fmt.Errorf("find module %s: %w", module, err)
		}

		found, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(directory)), "config", "crd", "*.k8s.io_*.yaml"))
		if err != nil {
			return nil, fmt.Errorf("what is in module %s: %w", module, err)
		}

		for _, path := range found {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("read a definition of module %s: %w", module, err)
			}

			files[filepath.Base(path)] = string(text)
		}
	}

	return files, nil
}
