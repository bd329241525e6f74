package manifests_test

import (
	"os"
	"path/filepath"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/test/manifests"
)

// TestEachObjectHasItsLabels, and each pod.
func TestEachObjectHasItsLabels(t *testing.T) {
	t.Parallel()

	everything := renderedWith(t, parsed(t, monitored))
	for id, object := range everything {
		require.Subset(t, labelsOf(t, object.Fields), map[string]any{
			"app.kubernetes.io/name": "touchstone", "app.kubernetes.io/instance": "touchstone",
			"app.kubernetes.io/version": "latest", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "touchstone-0.9.0",
		}, id)
		require.Contains(t, labelsOf(t, object.Fields), "app.kubernetes.io/component", id)
	}

	for _, each := range workloads(everything) {
		require.Contains(t, each.labels, "helm.sh/chart", each.id)
	}
}

func labelsOf(t *testing.T, object map[string]any) map[string]any {
	t.Helper()

	metadata, _ := object["metadata"].(map[string]any)
	labels, _ := metadata["labels"].(map[string]any)

	return labels
}

// TestPodsGetConventionalValues of charts.
func TestPodsGetConventionalValues(t *testing.T) {
	t.Parallel()

	const more = `
  podLabels: {team: storage}
  podAnnotations: {example.com/note: kept}
  extraArgs: [--v=7]
  extraVolumes: [{name: more, emptyDir: {}}]
  extraVolumeMounts: [{name: more, mountPath: /more}]
  serviceAccount: {create: false, name: existing}
`

	objects := renderedWith(t, parsed(t, "imagePullSecrets: [{name: registry}]\ncontroller:"+more+"node:"+more))
	require.Len(t, workloads(objects), 2, "want: the chart renders controller and node plugin")

	for _, each := range workloads(objects) {
		driver := each.driver()
		require.Equal(t, "storage", each.labels["team"], each.id)
		require.Contains(t, driver.Args, "--v=7", each.id)
		require.Contains(t, driver.VolumeMounts, core.VolumeMount{Name: "more", MountPath: "/more"}, each.id)
		require.Contains(t, each.pod.ImagePullSecrets, core.LocalObjectReference{Name: "registry"}, each.id)
		require.Equal(t, "existing", each.pod.ServiceAccountName, each.id)
	}

	require.NotContains(t, objects, "ServiceAccount touchstone/touchstone-controller")
	require.NotContains(t, objects, "ServiceAccount touchstone/touchstone-node")
}

// TestEveryContainerHasAMemoryLimit, so that a defect of one does not take its node's memory.
func TestEveryContainerHasAMemoryLimit(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		for _, each := range workloads(objects) {
			for i := range each.pod.Containers {
				require.Positive(t, each.pod.Containers[i].Resources.Limits.Memory().Value(), each.pod.Containers[i].Name)
			}
		}
	})
}

const monitored = `
monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboard: {enabled: true}}
sidecars: {metrics: {enabled: true}}
`

// TestMonitoringUsesExistingPorts: the operator scrapes ports that there are, and gets the alerts
// and the dashboard of deploy/monitoring.
func TestMonitoringUsesExistingPorts(t *testing.T) {
	t.Parallel()

	objects := renderedWith(t, parsed(t, monitored))
	ports := map[string]bool{}

	for _, each := range workloads(objects) {
		for i := range each.pod.Containers {
			for _, port := range each.pod.Containers[i].Ports {
				ports[port.Name] = true
			}
		}
	}

	scraped, ok := objects["PodMonitor touchstone/touchstone"].Typed.(*monitoring.PodMonitor)
	require.True(t, ok, "want: the object is a PodMonitor")
	require.Len(t, scraped.Spec.PodMetricsEndpoints, len(ports), "want: each port of metrics is scraped")

	for _, endpoint := range scraped.Spec.PodMetricsEndpoints {
		require.Contains(t, ports, *endpoint.Port)
	}

	text, err := os.ReadFile("../../deploy/monitoring/alerts.yaml")
	require.NoError(t, err)

	var alerts monitoring.PrometheusRuleSpec
	require.NoError(t, yaml.UnmarshalStrict(text, &alerts))

	rule, ok := objects["PrometheusRule touchstone/touchstone"].Typed.(*monitoring.PrometheusRule)
	require.True(t, ok, "want: the object is a PrometheusRule")
	require.Equal(t, alerts, rule.Spec)

	dashboard, err := os.ReadFile("../../deploy/monitoring/grafana-dashboard.json")
	require.NoError(t, err)

	stored, ok := objects["ConfigMap touchstone/touchstone-dashboard"].Typed.(*core.ConfigMap)
	require.True(t, ok, "want: the object is a ConfigMap")
	require.JSONEq(t, string(dashboard), stored.Data["touchstone.json"])
}

func TestHelmTestUsesAnExistingClass(t *testing.T) {
	t.Parallel()

	objects := renderedWith(t)
	claim, ok := objects["PersistentVolumeClaim touchstone/touchstone-test"].Typed.(*core.PersistentVolumeClaim)
	require.True(t, ok, "want: the object is a PersistentVolumeClaim")
	require.Contains(t, objects, "StorageClass "+*claim.Spec.StorageClassName)
	require.Contains(t, objects, "Pod touchstone/touchstone-test")
}

// TestTableOfValuesIsUpToDate fails when values.yaml has changed and `make manifests` was not run.
func TestTableOfValuesIsUpToDate(t *testing.T) {
	t.Parallel()

	want, err := manifests.ValuesTable(manifests.ChartDir)
	require.NoError(t, err)

	is, err := os.ReadFile(filepath.Join(manifests.ChartDir, "README.md"))
	require.NoError(t, err)
	require.Equal(t, want, string(is), "run `make manifests`")
}

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()

	values := map[string]any{}
	require.NoError(t, yaml.Unmarshal([]byte(text), &values))

	return values
}
