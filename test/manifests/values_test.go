package manifests_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	snapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	storage "k8s.io/api/storage/v1"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/manifests"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// everyValue has what each object, pod and sidecar can be given.
const everyValue = `
commonLabels: {team: storage, app.kubernetes.io/part-of: lab, app.kubernetes.io/component: other}
commonAnnotations: {example.com/owner: storage}
image: {repository: registry.example.com/touchstone, tag: v1, digest: "` + digest + `"}
sidecars:
  resizer:
    repository: registry.example.com/resizer
    tag: v9
    digest: "` + digest + `"
    env: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
    resources: {limits: {memory: 99Mi}}
    securityContext: {readOnlyRootFilesystem: false}
  provisioner: {env: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]}
controller: &pod
  env: [{name: OTEL_SERVICE_NAME, value: controller}]
  envFrom: [{configMapRef: {name: proxy}}]
  labels: {of: workload}
  annotations: {example.com/of: workload}
  podLabels: {of: pod}
  podAnnotations: {example.com/of: pod}
  revisionHistoryLimit: 3
  updateStrategy: {type: OnDelete}
  podSecurityContext: {fsGroup: 7}
  securityContext: {seLinuxOptions: {type: spc_t}}
  terminationGracePeriodSeconds: 45
  dnsConfig: {searches: [example.com]}
  initContainers: [{name: first, image: "busybox:1.37"}]
node:
  <<: *pod
  updateStrategy: {rollingUpdate: {maxUnavailable: 10%}}
`

// TestEveryValueIsShown in what is rendered: a value that changes nothing is one that lies.
func TestEveryValueIsShown(t *testing.T) {
	t.Parallel()

	defaults, err := manifests.ReadValues(filepath.Join(manifests.ChartDir, "values.yaml"))
	require.NoError(t, err)

	other, err := manifests.ReadValues("testdata/values.yaml")
	require.NoError(t, err)

	// What has to be on for others to show.
	on := parsed(t, monitored+`
networkPolicy: {egress: [{ports: [{port: 9, protocol: TCP}]}]}
storageCapacity: {enabled: true}
snapshotMetadata: {enabled: true, caCertificate: some}
`)
	cluster := manifests.Prepared()
	cluster.Version = "v1.37.0"

	without, err := cluster.Render(manifests.ChartDir, on)
	require.NoError(t, err)

	for _, path := range leaves(defaults) {
		value := any(other)

		for _, key := range path {
			inner, _ := value.(map[string]any)
			require.Contains(t, inner, key, "testdata/values.yaml lacks %s", strings.Join(path, "."))
			value = inner[key]
		}

		for _, key := range slices.Backward(path) {
			value = map[string]any{key: value}
		}

		given, _ := value.(map[string]any)
		if path[0] == "layout" {
			given["snapshotMetadata"] = map[string]any{"enabled": false}
		}

		with, err := cluster.Render(manifests.ChartDir, on, given)
		require.NoError(t, err, strings.Join(path, "."))
		require.False(t, maps.Equal(without, with), "%s changes nothing", strings.Join(path, "."))
	}
}

// leaves returns the paths of all values, an empty mapping among them.
func leaves(values map[string]any) [][]string {
	var found [][]string

	for key, value := range values {
		inner, _ := value.(map[string]any)
		if len(inner) == 0 {
			found = append(found, []string{key})
		}

		for _, rest := range leaves(inner) {
			found = append(found, append([]string{key}, rest...))
		}
	}

	return found
}

// workloadsOf returns a rendered chart's StatefulSet and DaemonSet.
func workloadsOf(objects map[string]manifests.Object) (*apps.StatefulSet, *apps.DaemonSet) {
	controller, _ := objects["StatefulSet touchstone/touchstone-controller"].Typed.(*apps.StatefulSet)
	node, _ := objects["DaemonSet touchstone/touchstone-node"].Typed.(*apps.DaemonSet)

	return controller, node
}

// TestEachObjectHasTheCommonMetadata, and each pod. What selects pods stays, whatever is asked for. What
// selects pods stays, whatever is asked for.
func TestEachObjectHasTheCommonMetadata(t *testing.T) {
	t.Parallel()

	objects := renderedWith(t, parsed(t, monitored), parsed(t, everyValue))
	for id, object := range objects {
		require.Subset(t, labelsOf(t, object.Fields), map[string]any{"team": "storage", "app.kubernetes.io/part-of": "lab"}, id)
		require.NotEqual(t, "other", labelsOf(t, object.Fields)["app.kubernetes.io/component"], id)

		metadata, _ := object.Fields["metadata"].(map[string]any)
		require.Subset(t, metadata["annotations"], map[string]any{"example.com/owner": "storage"}, id)
	}

	controller, node := workloadsOf(objects)
	for _, labels := range []map[string]string{controller.Labels, node.Labels} {
		require.Equal(t, "workload", labels["of"])
	}

	for _, pod := range []core.PodTemplateSpec{controller.Spec.Template, node.Spec.Template} {
		require.Subset(t, pod.Labels, map[string]string{"of": "pod", "team": "storage"})
		require.Subset(t, pod.Annotations, map[string]string{
			"example.com/of": "pod", "example.com/owner": "storage", "kubectl.kubernetes.io/default-container": "touchstone",
		})
	}

	require.Equal(t, "workload", controller.Annotations["example.com/of"])
	require.Equal(t, "workload", node.Annotations["example.com/of"])

	for _, each := range workloads(objects) {
		require.True(t, matches(t, each.selector, each.labels), each.id)
	}
}

// TestPodsGetAnchorsValues: what the charts of other drivers let their pods have.
func TestPodsGetAnchorsValues(t *testing.T) {
	t.Parallel()

	objects := renderedWith(t, parsed(t, everyValue), parsed(t,
		"controller: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}"))
	controller, node := workloadsOf(objects)

	require.Equal(t, apps.OnDeleteStatefulSetStrategyType, controller.Spec.UpdateStrategy.Type)
	require.Equal(t, apps.RollingUpdateDaemonSetStrategyType, node.Spec.UpdateStrategy.Type, "want: the default type stays")
	require.Equal(t, "10%", node.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.StrVal)
	require.EqualValues(t, 3, *controller.Spec.RevisionHistoryLimit, "want: the controller's revisionHistoryLimit")
	require.EqualValues(t, 3, *node.Spec.RevisionHistoryLimit, "want: the node plugin's revisionHistoryLimit")
	require.Len(t, controller.Spec.Template.Spec.TopologySpreadConstraints, 1, "want: the controller's constraints")

	for _, each := range workloads(objects) {
		driver := each.driver()
		require.Equal(t, "registry.example.com/touchstone:v1@"+digest, driver.Image, each.id)
		require.Equal(t, core.EnvVar{Name: "OTEL_SERVICE_NAME", Value: "controller"}, driver.Env[len(driver.Env)-1], each.id)
		require.Equal(t, "proxy", driver.EnvFrom[0].ConfigMapRef.Name, each.id)
		require.EqualValues(t, 45, *each.pod.TerminationGracePeriodSeconds, each.id)
		require.Equal(t, []string{"example.com"}, each.pod.DNSConfig.Searches, each.id)
		require.Equal(t, "first", each.pod.InitContainers[0].Name, each.id)
		require.EqualValues(t, 7, *each.pod.SecurityContext.FSGroup, each.id)
		require.Equal(t, core.SeccompProfileTypeRuntimeDefault, each.pod.SecurityContext.SeccompProfile.Type, each.id)
		require.Equal(t, "spc_t", driver.SecurityContext.SELinuxOptions.Type, each.id)
		require.True(t, *driver.SecurityContext.ReadOnlyRootFilesystem, each.id)
	}
}

// TestSidecarsGetTheirOwnValues, each beside those that all have.
func TestSidecarsGetTheirOwnValues(t *testing.T) {
	t.Parallel()

	for _, more := range []string{"", "layout: node-local"} {
		proxied := 0

		for _, each := range workloads(renderedWith(t, parsed(t, everyValue), parsed(t, more))) {
			for i := range each.pod.Containers {
				container := &each.pod.Containers[i]

				switch container.Name {
				case "resizer":
					require.Equal(t, "registry.example.com/resizer:v9@"+digest, container.Image)
					require.Equal(t, "99Mi", container.Resources.Limits.Memory().String())
					require.False(t, *container.SecurityContext.ReadOnlyRootFilesystem, "want: the given value")
					require.False(t, *container.SecurityContext.AllowPrivilegeEscalation, "want: the chart's value")
				case "provisioner", "snapshotter":
					require.Equal(t, "256Mi", container.Resources.Limits.Memory().String(), "want: the common limit")
					require.True(t, strings.HasPrefix(container.Image, "registry.k8s.io/sig-storage/csi-"), container.Image)
				}

				if slices.ContainsFunc(container.Env, func(v core.EnvVar) bool { return v.Value == "http://proxy:3128" }) {
					proxied++
				}
			}
		}

		require.Positive(t, proxied, "want: sidecars have the variable, with %q", more)
	}
}

// TestTracesReachTheirCollector through the NetworkPolicies, with the collector's name.
func TestTracesReachTheirCollector(t *testing.T) {
	t.Parallel()

	const apiServer = "TCP 443, TCP 6443, TCP 8443, TCP 16443"

	for _, test := range []struct {
		values           string
		controller, node []string
	}{
		{"", []string{apiServer}, nil},
		{
			"settings: {otlp-endpoint: 'http://tempo.monitoring:4317'}",
			[]string{apiServer, "TCP 4317", "TCP 53, TCP 5353, UDP 53, UDP 5353"},
			[]string{"TCP 4317", "TCP 53, TCP 5353, UDP 53, UDP 5353"},
		},
		{
			"node: {settings: {otlp-endpoint: 'https://[fd00::5]:443/'}}\nnetworkPolicy: {dnsPorts: [53]}",
			[]string{apiServer},
			[]string{"TCP 443", "TCP 53, UDP 53"},
		},
		{
			"networkPolicy: {egress: [{ports: [{port: 4318, protocol: TCP}]}], apiServerPorts: []}",
			[]string{"", "TCP 4318", "TCP 53, TCP 5353, UDP 53, UDP 5353"},
			[]string{"TCP 4318", "TCP 53, TCP 5353, UDP 53, UDP 5353"},
		},
		{"layout: node-local", nil, []string{apiServer}},
		{"node: {settings: {startup-taint: example.com/new}}", []string{apiServer}, []string{apiServer}},
	} {
		objects := renderedWith(t, parsed(t, test.values))
		require.Equal(t, test.controller, destinations(objects, "controller"), test.values)
		require.Equal(t, test.node, destinations(objects, "node"), test.values)
	}
}

// destinations returns the ports of each rule of a component's NetworkPolicy.
func destinations(objects map[string]manifests.Object, component string) []string {
	guard, ok := objects["NetworkPolicy touchstone/touchstone-"+component].Typed.(*networking.NetworkPolicy)
	if !ok {
		return nil
	}

	var found []string

	for _, rule := range guard.Spec.Egress {
		ports := make([]string, 0, len(rule.Ports))
		for _, port := range rule.Ports {
			ports = append(ports, string(*port.Protocol)+" "+port.Port.String())
		}

		found = append(found, strings.Join(ports, ", "))
	}

	return found
}

// TestSnapshotsFollowTheCluster: what the cluster lacks is left out, unless it is asked for.
func TestSnapshotsFollowTheCluster(t *testing.T) {
	t.Parallel()

	const class, group = "VolumeSnapshotClass touchstone", "VolumeGroupSnapshotClass touchstone"

	bare, single := manifests.Prepared(), manifests.Prepared()
	bare.APIs, single.APIs = nil, single.APIs[:1]

	for _, test := range []struct {
		cluster manifests.Cluster
		values  string
		want    []string
	}{
		{bare, "", nil},
		{bare, "snapshots: {enabled: true}", []string{class}},
		{bare, "snapshots: {enabled: true, groups: true}", []string{class, group}},
		{single, "", []string{class}},
		{manifests.Prepared(), "", []string{class, group}},
		{manifests.Prepared(), "snapshots: {groups: false}", []string{class}},
		{manifests.Prepared(), "snapshots: {enabled: false}", nil},
		{manifests.Prepared(), "layout: node-local", []string{class}},
	} {
		files, err := test.cluster.Render(manifests.ChartDir, parsed(t, test.values))
		require.NoError(t, err)

		objects := decoded(t, files)
		_, role := objects["ClusterRole touchstone-snapshotter"]
		require.Equal(t, len(test.want) > 0, role, "want: the role as the class, with %v and %q", test.cluster.APIs, test.values)

		for _, id := range []string{class, group} {
			_, is := objects[id]
			require.Equal(t, slices.Contains(test.want, id), is, "%s, with %v and %q", id, test.cluster.APIs, test.values)
		}

		sidecars, without := 0, 0

		for _, each := range workloads(objects) {
			for i := range each.pod.Containers {
				if each.pod.Containers[i].Name == "snapshotter" {
					sidecars++

					if slices.Contains(each.pod.Containers[i].Args, "--feature-gates=CSIVolumeGroupSnapshot=false") {
						without++
					}
				}
			}
		}

		require.Equal(t, len(test.want) > 0, sidecars > 0, "want: the sidecar as the class, with %v and %q", test.cluster.APIs, test.values)
		require.Equal(t, len(test.want) == 1, without > 0, "want: groups are off without their class, with %v and %q", test.cluster.APIs, test.values)
	}
}

// TestSchedulingFollowsTheServer: a field that Kubernetes 1.36 does not have is for 1.37.
func TestSchedulingFollowsTheServer(t *testing.T) {
	t.Parallel()

	for version, want := range map[string]*bool{"v1.36.3": nil, "v1.37.0": new(true), "v1.38.1-distribution.2": new(true)} {
		cluster := manifests.Prepared()
		cluster.Version = version

		files, err := cluster.Render(manifests.ChartDir)
		require.NoError(t, err)

		driver, ok := decoded(t, files)["CSIDriver csi.touchstone.dev"].Typed.(*storage.CSIDriver)
		require.True(t, ok, "want: the object is a CSIDriver")
		require.Equal(t, want, driver.Spec.PreventPodSchedulingIfMissing, version)
	}

	cluster := manifests.Prepared()
	cluster.Version = "v1.37.0"

	files, err := cluster.Render(manifests.ChartDir, map[string]any{"preventPodSchedulingIfMissing": false})
	require.NoError(t, err)

	driver, _ := decoded(t, files)["CSIDriver csi.touchstone.dev"].Typed.(*storage.CSIDriver)
	require.False(t, *driver.Spec.PreventPodSchedulingIfMissing, "want: the value")
}

func TestVolumesAreMountedWithSELinuxContexts(t *testing.T) {
	t.Parallel()

	driver, ok := renderedWith(t, parsed(t, "seLinuxMount: true"))["CSIDriver csi.touchstone.dev"].Typed.(*storage.CSIDriver)
	require.True(t, ok, "want: the object is a CSIDriver")
	require.True(t, *driver.Spec.SELinuxMount, "want: the value")
}

func TestBudgetIsOptional(t *testing.T) {
	t.Parallel()

	const id = "PodDisruptionBudget touchstone/touchstone-controller"

	require.NotContains(t, renderedWith(t, parsed(t, "controller: {podDisruptionBudget: {enabled: false}}")), id)

	kept, ok := renderedWith(t, parsed(t, "controller: {podDisruptionBudget: {minAvailable: 1}}"))[id].Typed.(*policy.PodDisruptionBudget)
	require.True(t, ok, "want: the object is a PodDisruptionBudget")
	require.EqualValues(t, 1, kept.Spec.MinAvailable.IntVal, "want: no drain takes the controller")
	require.Nil(t, kept.Spec.MaxUnavailable, "want: one of the two")
}

func TestMonitorGetsItsValues(t *testing.T) {
	t.Parallel()

	monitor, ok := renderedWith(t, parsed(t, `
monitoring: {podMonitor: {enabled: true, labels: {release: prometheus}, interval: 1m, scrapeTimeout: 20s,
  relabelings: [{targetLabel: cluster, replacement: lab}], metricRelabelings: [{action: labeldrop, regex: pod}]}}
sidecars: {metrics: {enabled: true}}
`))["PodMonitor touchstone/touchstone"].Typed.(*monitoring.PodMonitor)
	require.True(t, ok, "want: the object is a PodMonitor")
	require.Equal(t, "prometheus", monitor.Labels["release"])

	for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
		require.Equal(t, monitoring.Duration("1m"), endpoint.Interval)
		require.Equal(t, monitoring.Duration("20s"), endpoint.ScrapeTimeout)
		require.Equal(t, "cluster", endpoint.RelabelConfigs[0].TargetLabel)
		require.Equal(t, "labeldrop", endpoint.MetricRelabelConfigs[0].Action)
	}
}

// TestClassesGetTheirValues: annotations, labels, further classes of snapshots, and one default of each kind.
func TestClassesGetTheirValues(t *testing.T) {
	t.Parallel()

	objects := renderedWith(t, parsed(t, `
commonAnnotations: {example.com/owner: storage}
defaultStorageClass: xfs
storageClassDefaults: {annotations: {example.com/tier: bronze}}
storageClasses: {xfs: {labels: {kind: fast}, annotations: {example.com/tier: gold}}}
snapshotClass: {annotations: {example.com/tier: bronze}}
snapshotClasses: {kept: {default: true, deletionPolicy: Retain}, raw: {parameters: {consistency: none}}}
`))

	xfs, ok := objects["StorageClass touchstone-xfs"].Typed.(*storage.StorageClass)
	require.True(t, ok, "want: the object is a StorageClass")
	require.Equal(t, map[string]string{
		"example.com/owner": "storage", "example.com/tier": "gold", "storageclass.kubernetes.io/is-default-class": "true",
	}, xfs.Annotations)
	require.Equal(t, "fast", xfs.Labels["kind"])
	require.Equal(t, map[string]any{"example.com/owner": "storage", "example.com/tier": "bronze"},
		objects["StorageClass touchstone-ext4"].Fields["metadata"].(map[string]any)["annotations"])

	for _, test := range []struct {
		name, policy, consistency string
		annotations               map[string]string
	}{
		{"touchstone", "Delete", "filesystem", map[string]string{"example.com/owner": "storage", "example.com/tier": "bronze"}},
		{"touchstone-kept", "Retain", "filesystem", map[string]string{
			"example.com/owner": "storage", "snapshot.storage.kubernetes.io/is-default-class": "true",
		}},
		{"touchstone-raw", "Delete", "none", map[string]string{"example.com/owner": "storage"}},
	} {
		class, ok := objects["VolumeSnapshotClass "+test.name].Typed.(*snapshot.VolumeSnapshotClass)
		require.True(t, ok, test.name)
		require.Equal(t, test.policy, string(class.DeletionPolicy), test.name)
		require.Equal(t, map[string]string{"consistency": test.consistency}, class.Parameters, test.name)
		require.Equal(t, test.annotations, class.Annotations, test.name)
		require.Contains(t, objects, "VolumeGroupSnapshotClass "+test.name)
	}

	_, err := manifests.Prepared().Render(manifests.ChartDir, parsed(t, "snapshotClass: {default: true}\nsnapshotClasses: {kept: {default: true}}"))
	require.ErrorContains(t, err, "at most one class can be the default", "want: a refusal")
}

// TestSchemaKnowsTheDriversParameters: it takes and refuses the values of classes that the driver does,
// as far as a value can be judged alone.
func TestSchemaKnowsTheDriversParameters(t *testing.T) {
	t.Parallel()

	for kind, parse := range map[string]func(map[string]string) error{
		"storageClasses":          func(given map[string]string) error { _, err := volume.ParseParameters(given); return err },
		"snapshotClasses":         func(given map[string]string) error { _, err := volume.ParseSnapshotParameters(given); return err },
		"volumeAttributesClasses": func(given map[string]string) error { _, err := volume.ParseMutable(given); return err },
	} {
		for _, key := range []string{
			"backing", "blockSize", "checkPeriod", "consistency", "csi.storage.k8s.io/fstype", "csi.storage.k8s.io/other", "deletionPolicy",
			"directAssign", "ioScheduler", "mkfsOptions", "opaque/color", "pool", "provisioning", "readAheadKiB", "readBytesPerSecond", "readIOPS",
			"skip-hostmount", "writeBytesPerSecond", "writeIOPS", "unknown",
		} {
			for _, value := range []string{
				"0", "4", "6", "512", "4095", "4096", "9999", "1000000", "-1", "1.5", "text", "mq-deadline", "No", "24h", "true", "false",
				"image", "directory", "thin", "thick", "ext4", "xfs", "btrfs", "ntfs", "filesystem", "none",
			} {
				given := map[string]string{key: value}
				class := any(given)

				if kind != "volumeAttributesClasses" {
					class = map[string]any{"parameters": given}
				}

				text, err := json.Marshal(map[string]any{kind: map[string]any{"one": class}})
				require.NoError(t, err)

				_, refused := manifests.Prepared().Render(manifests.ChartDir, parsed(t, string(text)))
				driver := parse(maps.Clone(given))
				require.Equal(t, driver == nil, refused == nil, "want: %s as the driver, which says %v; the schema says %v", text, driver, refused)
			}
		}
	}
}
