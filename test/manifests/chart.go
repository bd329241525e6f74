package manifests

import (
	"fmt"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

const (
	// ChartDir and KustomizeDir are where a test of this package finds them.
	ChartDir     = "../../deploy/helm/touchstone"
	KustomizeDir = "../../deploy/kustomize"

	// Namespace is what the plain manifests are for.
	Namespace = "touchstone"
)

// ValuesFile is what the chart has for a way to install, such as "base".
func ValuesFile(chart, overlay string) string { return path.Join(chart, "values", overlay+".yaml") }

// Cluster is what a chart knows of the cluster into which it is installed.
type Cluster struct {
	// Version is that of Kubernetes, and APIs are those beside Kubernetes' own.
	Version string
	APIs    []string
}

// Prepared returns the oldest cluster that the chart is for, with deploy/kustomize/prerequisites:
// what the plain manifests are made for.
func Prepared() Cluster {
	return Cluster{Version: "v1.36.0", APIs: []string{"snapshot.storage.k8s.io/v1", "groupsnapshot.storage.k8s.io/v1"}}
}

// Render returns what `helm install` makes of the chart, by the names of its
// templates. Later values win over earlier ones, and all over values.yaml. What is
// empty is left out.
func (c Cluster) Render(chart string, values ...map[string]any) (map[string]string, error) {
	loaded, err := loader.Load(chart)
	if err != nil {
		return nil, fmt.Errorf("load chart %s: %w", chart, err)
	}

	merged := map[string]any{}
	for _, each := range values {
		merged = util.MergeTables(maps.Clone(each), merged)
	}

	release := common.ReleaseOptions{Name: Namespace, Namespace: Namespace, Revision: 1, IsInstall: true}

	version, err := common.ParseKubeVersion(c.Version)
	if err != nil {
		return nil, fmt.Errorf("version of Kubernetes: %w", err)
	}

	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), c.APIs...)

	context, err := util.ToRenderValues(loaded, merged, release, capabilities)
	if err != nil {
		return nil, fmt.Errorf("values of chart %s: %w", chart, err)
	}

	texts, err := engine.Render(loaded, context)
	if err != nil {
		return nil, fmt.Errorf("render chart %s: %w", chart, err)
	}

	rendered := map[string]string{}

	for name, text := range texts {
		if text = strings.TrimSpace(text); text != "" && path.Ext(name) == ".yaml" {
			rendered[path.Base(name)] = text + "\n"
		}
	}

	return rendered, nil
}

// Plain returns the files without what only helm uses: its tests, and the labels of charts.
func Plain(files map[string]string) map[string]string {
	plain := map[string]string{}

	for name, text := range files {
		if !strings.Contains(text, "helm.sh/hook: test") {
			plain[name] = chartLabels.ReplaceAllString(text, "")
		}
	}

	return plain
}

var chartLabels = regexp.MustCompile(`(?m)^ +(helm\.sh/chart|app\.kubernetes\.io/(version|managed-by)): .*\n`)

// PlainValues is what plain manifests have beside a file of values: the namespace,
// which has to be there before helm installs anything.
func PlainValues() map[string]any {
	return map[string]any{"namespace": map[string]any{"create": true}}
}

// ReadValues reads a file of values.
func ReadValues(file string) (map[string]any, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read values: %w", err)
	}

	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("values in %s: %w", file, err)
	}

	return values, nil
}
