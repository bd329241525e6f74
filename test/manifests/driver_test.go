package manifests_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	groupsnapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	storage "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/manifests"
)

const driverName = "csi.touchstone.dev"

// help is what the driver says of its flags, built from the sources beside this.
var help = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "touchstone-manifests-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(directory)

	binary := filepath.Join(directory, "touchstone")
	build := exec.Command("go", "build", "-o", binary, "./cmd/touchstone")
	build.Dir, build.Env = "../..", child.BuildEnv()

	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the driver: %w\n%s", err, said)
	}

	said, err := exec.Command(binary, "serve", "--help").Output()

	return string(said), err
})

// flags are the names of the driver's flags.
func flags(t *testing.T) []string {
	t.Helper()

	said, err := help()
	require.NoError(t, err)

	var found []string
	for _, match := range regexp.MustCompile(`(?m)^ +(?:-\w, )?--([a-z][a-z-]*)`).FindAllStringSubmatch(said, -1) {
		found = append(found, match[1])
	}

	require.Contains(t, found, "mode")
	require.Contains(t, found, "v")

	return found
}

func TestDriverHasTheFlags(t *testing.T) {
	t.Parallel()

	known := flags(t)

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		for _, each := range workloads(objects) {
			for _, argument := range each.driver().Args {
				name, _, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
				require.Contains(t, known, name, each.id)
			}

			for _, variable := range each.driver().Env {
				if setting, ok := strings.CutPrefix(variable.Name, "TOUCHSTONE_"); ok {
					require.Contains(t, known, strings.ToLower(strings.ReplaceAll(setting, "_", "-")), each.id)
				}
			}
		}
	})
}

// TestSchemaRefusesUnusableValues, which the chart would ignore, or Kubernetes refuse later.
func TestSchemaRefusesUnusableValues(t *testing.T) {
	t.Parallel()

	for values, cause := range map[string]string{
		`controller: {replicas: 3}`:                                  "'replicas' not allowed",
		`unknown: 1`:                                                 "'unknown' not allowed",
		`settings: {state-dir: /elsewhere}`:                          "'state-dir' not allowed",
		`settings: {max-volumes-per-nod: 3}`:                         "'max-volumes-per-nod' not allowed",
		`node: {settings: {max-volumes-per-nod: 3}}`:                 "'max-volumes-per-nod' not allowed",
		`settings: {shared: "yes"}`:                                  "want boolean",
		`settings: {first-loop-device: 0}`:                           "want 1",
		`settings: {check-period: soon}`:                             "30s|5m|24h",
		`settings: {cgroup-root: /c}`:                                "'cgroup-root' not allowed",
		`http: {port: "9808"}`:                                       "want integer",
		`layout: other`:                                              "'central', 'node-local'",
		`storageClassDefaults: {volumeBindingMode: Late}`:            "WaitForFirstConsumer",
		`storageClasses: {ext4: {parameters: {directAssign: true}}}`: "want string",
		`pool: {path: relative}`:                                     "does not match pattern",
		`pool: {pools: {default: /absolute}}`:                        "does not match pattern",
		`driverName: a-.example.com`:                                 "does not match pattern",
		`image: {digest: sha256:short}`:                              "does not match pattern",
		`snapshots: {enabled: "yes"}`:                                "must be one of",
		`kubeletDir: /an/extremely/long/directory/of/a/kubelet/that/no/socket/can/be/in/since/its/path/is/too/long`: "107 bytes",
	} {
		given := map[string]any{}
		require.NoError(t, yaml.Unmarshal([]byte(values), &given))

		_, err := manifests.Prepared().Render(manifests.ChartDir, given)
		require.ErrorContains(t, err, cause, values)
	}

	_, err := manifests.Prepared().Render(manifests.ChartDir, map[string]any{"layout": "node-local", "snapshotMetadata": map[string]any{"enabled": true}})
	require.ErrorContains(t, err, "snapshotMetadata", "want: a refusal")

	_, err = manifests.Prepared().Render(manifests.ChartDir, map[string]any{"layout": "node-local", "directAssign": map[string]any{"byClaim": true}})
	require.ErrorContains(t, err, "directAssign.byClaim", "want: a refusal")
}

// TestGracePeriodIsMoreThanTheDrain: the kubelet would kill a driver that ends its operations.
func TestGracePeriodIsMoreThanTheDrain(t *testing.T) {
	t.Parallel()

	said, err := help()
	require.NoError(t, err)

	drain := regexp.MustCompile(`--drain-timeout duration .*\(default (\d+)s\)`).FindStringSubmatch(said)
	require.NotNil(t, drain, "want: the default of the flag, in\n%s", said)

	for _, test := range []struct {
		values  string
		refused bool
	}{
		{"controller: {terminationGracePeriodSeconds: " + drain[1] + "}", true},
		{"controller: {terminationGracePeriodSeconds: " + drain[1] + "}\nsettings: {drain-timeout: 24.9s}", false},
		{"node: {terminationGracePeriodSeconds: " + drain[1] + "}", true},
		{"settings: {drain-timeout: 30s}", true},
		{"settings: {drain-timeout: 5s}\nnode: {settings: {drain-timeout: 0.5m}}", true},
		{"settings: {drain-timeout: 5m}\nnode: {settings: {drain-timeout: 5s}}\nlayout: node-local", false},
		{"settings: {drain-timeout: 1m30.5s}\nnode: {terminationGracePeriodSeconds: 90}\nlayout: node-local", true},
		{"settings: {drain-timeout: 1m30.5s}\nnode: {terminationGracePeriodSeconds: 91}\nlayout: node-local", false},
		{"settings: {drain-timeout: 1h}\nnode: {terminationGracePeriodSeconds: 3600}\nlayout: node-local", true},
		{"settings: {drain-timeout: 1h}\nnode: {terminationGracePeriodSeconds: 3601}\nlayout: node-local", false},
		{"settings: {drain-timeout: 30000ms}", true},
		{"settings: {drain-timeout: 29.s999ms999us999ns}", false},
		{"settings: {drain-timeout: 29s999ms999µs1000ns}", true},
		{"settings: {drain-timeout: 29s999ms999μs1000ns}", true},
	} {
		_, err := manifests.Prepared().Render(manifests.ChartDir, parsed(t, test.values))
		if test.refused {
			require.ErrorContains(t, err, "terminationGracePeriodSeconds", test.values)
			require.ErrorContains(t, err, "is not more than the setting drain-timeout", test.values)
		} else {
			require.NoError(t, err, test.values)
		}
	}
}

// TestSettingsBecomeEnvironment in all the shapes that YAML gives them.
func TestSettingsBecomeEnvironment(t *testing.T) {
	t.Parallel()

	objects := renderedWith(t, map[string]any{
		"settings": map[string]any{"max-volumes-per-node": 1000000, "overcommit": 1.5, "shared": true, "disable-capability": []any{}, "v": 4},
		"node":     map[string]any{"settings": map[string]any{"v": 5, "allow-path": []any{"/a", "/b,c", `/d"e`}}},
	})

	is := map[string]map[string]string{}

	for _, each := range workloads(objects) {
		is[each.id] = map[string]string{}

		for _, variable := range each.driver().Env {
			is[each.id][variable.Name] = variable.Value
		}
	}

	common := map[string]string{
		"NODE_NAME": "", "TOUCHSTONE_POOL_IMAGE_SIZE": "50Gi", "TOUCHSTONE_MAX_VOLUMES_PER_NODE": "1000000",
		"TOUCHSTONE_OVERCOMMIT": "1.5", "TOUCHSTONE_SHARED": "true", "TOUCHSTONE_V": "4",
	}
	node := maps.Clone(common)
	node["TOUCHSTONE_V"], node["TOUCHSTONE_ALLOW_PATH"] = "5", `/a,"/b,c","/d""e"`
	node["TOUCHSTONE_ENDPOINT"] = "unix:///var/lib/kubelet/plugins/csi.touchstone.dev/csi.sock"

	require.Equal(t, map[string]map[string]string{
		"StatefulSet touchstone/touchstone-controller": common,
		"DaemonSet touchstone/touchstone-node":         node,
	}, is)
}

// TestClassesAreTheDrivers: their parameters are what CreateVolume and the others
// take, and name pools that there are.
func TestClassesAreTheDrivers(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		var arguments []string
		for _, each := range workloads(objects) {
			arguments = append(arguments, each.driver().Args...)
		}

		for id, object := range objects {
			switch class := object.Typed.(type) {
			case *storage.StorageClass:
				parameters, err := volume.ParseParameters(class.Parameters)
				require.NoError(t, err, id)
				require.NoError(t, filesystem.CheckOptions(parameters.FSType, strings.Fields(parameters.MkfsOptions)), id)
				require.Equal(t, driverName, class.Provisioner)
				require.True(t, slices.ContainsFunc(arguments, func(argument string) bool {
					return strings.HasPrefix(argument, "--pool="+parameters.Pool+"=")
				}), "%s: no pool %s", id, parameters.Pool)
			case *storage.VolumeAttributesClass:
				_, err := volume.ParseMutable(class.Parameters)
				require.NoError(t, err, id)
				require.Equal(t, driverName, class.DriverName)
			case *snapshot.VolumeSnapshotClass:
				_, err := volume.ParseSnapshotParameters(class.Parameters)
				require.NoError(t, err, id)
				require.Equal(t, driverName, class.Driver)
			case *groupsnapshot.VolumeGroupSnapshotClass:
				_, err := volume.ParseSnapshotParameters(class.Parameters)
				require.NoError(t, err, id)
				require.Equal(t, driverName, class.Driver)
			}
		}
	})
}

func TestEachKindOfVolumeHasAClass(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"single-node", "node-local"} {
		objects := built(t, name)
		for _, class := range []string{"ext4", "xfs", "btrfs", "directory", "direct-assign"} {
			require.Contains(t, objects, "StorageClass touchstone-"+class)
		}

		require.Contains(t, objects, "VolumeSnapshotClass touchstone")
	}

	require.Contains(t, built(t, "single-node"), "VolumeGroupSnapshotClass touchstone")
	require.Contains(t, built(t, "single-node"), "VolumeAttributesClass touchstone-limited")
}

// TestSidecarsAreThoseThatAreBuilt: hack/build-sidecars.sh makes the images that
// the manifests name, of the same versions, and those that the examples have
// instead of busybox.
func TestSidecarsAreThoseThatAreBuilt(t *testing.T) {
	t.Parallel()

	var used []string

	for _, name := range installations {
		for _, each := range workloads(built(t, name)) {
			for _, container := range each.pod.Containers {
				if isDriver(&container) {
					require.Equal(t, "touchstone:latest", container.Image)
				} else {
					used = append(used, container.Image)
				}
			}
		}
	}

	examples, err := manifests.Examples(manifests.ExamplesDir)
	require.NoError(t, err)

	for i := range examples {
		for _, step := range examples[i].Steps {
			for _, object := range step.Objects {
				pod, _ := podOf(t, object)
				for _, container := range pod.Containers {
					if !strings.HasPrefix(container.Image, "busybox:") {
						used = append(used, container.Image)
					}
				}
			}
		}
	}

	slices.Sort(used)
	require.ElementsMatch(t, builtImages(t), slices.Compact(used))
}

// builtImages are those that hack/build-sidecars.sh makes.
func builtImages(t *testing.T) []string {
	t.Helper()

	list := child.Command(t, "hack/build-sidecars.sh", "--list")
	list.Dir = "../.."

	told, err := list.Output()
	require.NoError(t, err)

	return strings.Fields(string(told))
}

// TestSidecarsFindTheSocket that the driver of their pod serves.
func TestSidecarsFindTheSocket(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		for _, each := range workloads(objects) {
			served := onVolume(t, &each, each.driver(), "--endpoint=unix://")

			for i := range each.pod.Containers {
				if sidecar := &each.pod.Containers[i]; !isDriver(sidecar) {
					require.Equal(t, served, onVolume(t, &each, sidecar, "--csi-address="), sidecar.Name)
				}
			}
		}
	})
}

// onVolume reports whether a path in an argument is on the pod's volume, or the node's.
func onVolume(t *testing.T, of *workload, container *core.Container, prefix string) string {
	t.Helper()

	at := slices.IndexFunc(container.Args, func(argument string) bool { return strings.HasPrefix(argument, prefix) })
	require.NotEqual(t, -1, at, container.Name)

	path := strings.TrimPrefix(container.Args[at], prefix)

	for _, mount := range container.VolumeMounts {
		rest, below := strings.CutPrefix(path, mount.MountPath+"/")
		if !below {
			continue
		}

		for _, source := range of.pod.Volumes {
			if source.Name == mount.Name && source.HostPath != nil {
				return source.HostPath.Path + "/" + rest
			}
		}

		return mount.Name + ":" + rest
	}

	require.Fail(t, "no volume at "+path, container.Name)

	return ""
}

// TestAnEmptyListOfReadersAllowsNone: a rule of the policy without sources would allow all.
func TestAnEmptyListOfReadersAllowsNone(t *testing.T) {
	t.Parallel()

	for metadata, want := range map[bool]map[string]int{
		false: {"controller": 0, "node": 0}, true: {"controller": 1, "node": 0},
	} {
		objects := renderedWith(t, map[string]any{
			"networkPolicy": map[string]any{"metricsFrom": []any{}}, "snapshotMetadata": map[string]any{"enabled": metadata},
		})

		for component, rules := range want {
			guard, ok := objects["NetworkPolicy touchstone/touchstone-"+component].Typed.(*networking.NetworkPolicy)
			require.True(t, ok, "want: a policy of the %s", component)
			require.Len(t, guard.Spec.Ingress, rules, "want: only the backup programs' rule at the %s", component)
			require.Contains(t, guard.Spec.PolicyTypes, networking.PolicyTypeIngress, "want: what no rule allows is refused")
		}
	}
}
