package manifests

import (
	"fmt"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Build returns what `kubectl kustomize` makes of a directory.
func Build(directory string) (string, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return "", fmt.Errorf("kustomize %s: %w", directory, err)
	}

	text, err := built.AsYaml()
	if err != nil {
		return "", fmt.Errorf("kustomize %s: %w", directory, err)
	}

	return string(text), nil
}
