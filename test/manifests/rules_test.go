package manifests_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/touchstone-csi/touchstone/test/manifests"
)

// installations lists all installations.
var installations = append([]string{"prerequisites", "base"}, overlays...)

// everywhere checks what holds in each place, of the objects that kustomize makes.
func everywhere(t *testing.T, names []string, check func(t *testing.T, objects map[string]manifests.Object)) {
	t.Helper()

	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, built(t, name))
		})
	}
}

// workload is a StatefulSet, DaemonSet or Deployment.
type workload struct {
	id       string
	labels   map[string]string
	selector *meta.LabelSelector
	pod      core.PodSpec
}

func workloads(objects map[string]manifests.Object) []workload {
	var found []workload

	for id, object := range objects {
		switch typed := object.Typed.(type) {
		case *apps.StatefulSet:
			found = append(found, workload{id, typed.Spec.Template.Labels, typed.Spec.Selector, typed.Spec.Template.Spec})
		case *apps.DaemonSet:
			found = append(found, workload{id, typed.Spec.Template.Labels, typed.Spec.Selector, typed.Spec.Template.Spec})
		case *apps.Deployment:
			found = append(found, workload{id, typed.Spec.Template.Labels, typed.Spec.Selector, typed.Spec.Template.Spec})
		}
	}

	return found
}

func (w *workload) isNode() bool { return w.labels["app.kubernetes.io/component"] == "node" }

// driver is the container that is not a sidecar: not always the first, since
// kustomize puts new ones in front.
func (w *workload) driver() *core.Container {
	for i := range w.pod.Containers {
		if isDriver(&w.pod.Containers[i]) {
			return &w.pod.Containers[i]
		}
	}

	return nil
}

// isDriver says whether a container is the driver; all others are sidecars.
func isDriver(container *core.Container) bool { return container.Name == "touchstone" }

func TestPodsAreConfined(t *testing.T) {
	t.Parallel()

	everywhere(t, installations, func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		running := workloads(objects)
		require.NotEmpty(t, running, "want: the manifests have workloads")

		for _, each := range running {
			pod := each.pod
			require.False(t, pod.HostNetwork || pod.HostPID || pod.HostIPC, each.id)
			require.NotNil(t, pod.SecurityContext, each.id)
			require.NotNil(t, pod.SecurityContext.SeccompProfile, each.id)
			require.Equal(t, core.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, each.id)
			require.Contains(t, []string{"system-node-critical", "system-cluster-critical"}, pod.PriorityClassName, each.id)
			require.True(t, matches(t, each.selector, each.labels), each.id)
			require.Empty(t, pod.InitContainers, each.id)

			for i := range pod.Containers {
				requireConfined(t, &each, &pod.Containers[i])
			}
		}
	})
}

func requireConfined(t *testing.T, of *workload, container *core.Container) {
	t.Helper()

	where := of.id + ", container " + container.Name
	context := container.SecurityContext
	require.NotNil(t, context, where)
	require.True(t, *context.ReadOnlyRootFilesystem, where)
	require.NotEmpty(t, container.Resources.Requests.Cpu().String(), where)
	require.Positive(t, container.Resources.Requests.Memory().Value(), where)
	require.NotEqual(t, core.PullAlways, container.ImagePullPolicy, where)

	for _, port := range container.Ports {
		require.Zero(t, port.HostPort, where)
	}

	if isDriver(container) && of.isNode() {
		require.True(t, *context.Privileged, where)

		return
	}

	require.Nil(t, context.Privileged, where)
	require.False(t, *context.AllowPrivilegeEscalation, where)
	require.Equal(t, []core.Capability{"ALL"}, context.Capabilities.Drop, where)

	added := context.Capabilities.Add
	if root := of.pod.SecurityContext.RunAsUser; isDriver(container) && *root == 0 {
		require.ElementsMatch(t, []core.Capability{
			"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "LINUX_IMMUTABLE", "MKNOD", "SETFCAP",
		}, added, where)
	} else {
		require.Empty(t, added, where)
	}
}

func TestBaseControllerIsNotRoot(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"base", "shared-pool"} {
		controller := built(t, name)["StatefulSet touchstone/touchstone-controller"].Typed.(*apps.StatefulSet)
		require.True(t, *controller.Spec.Template.Spec.SecurityContext.RunAsNonRoot, "want: the controller does not run as root")
		require.EqualValues(t, 65532, *controller.Spec.Template.Spec.SecurityContext.RunAsUser, "want: the controller runs as nonroot")
	}
}

// TestHostPathsAreFew: the controller sees nothing of its node but the pool.
func TestHostPathsAreFew(t *testing.T) {
	t.Parallel()

	const pool = "/var/lib/touchstone"

	ofNode := []string{
		pool, "/var/lib/kubelet", "/var/lib/kubelet/plugins/csi.touchstone.dev", "/dev", "/sys", "/sys/fs/cgroup",
		"/run/kata-containers", "/run/kata", "/run/vc",
	}

	everywhere(t, installations, func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		for _, each := range workloads(objects) {
			for _, volume := range each.pod.Volumes {
				switch {
				case volume.HostPath == nil:
				case each.isNode():
					require.Contains(t, ofNode, volume.HostPath.Path, each.id)
				default:
					require.Equal(t, pool, volume.HostPath.Path, each.id)
				}
			}
		}
	})
}

func TestProbesAskTheDriver(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		for _, each := range workloads(objects) {
			driver := each.driver()
			require.Contains(t, driver.Args, "--http-endpoint=:9808")
			require.Equal(t, []core.ContainerPort{{Name: "http", ContainerPort: 9808}}, driver.Ports)

			for _, probe := range []struct {
				is   *core.Probe
				path string
			}{{driver.LivenessProbe, "/livez"}, {driver.ReadinessProbe, "/readyz"}, {driver.StartupProbe, "/healthz"}} {
				require.NotNil(t, probe.is, each.id)
				require.Equal(t, probe.path, probe.is.HTTPGet.Path)
				require.Equal(t, "http", probe.is.HTTPGet.Port.StrVal)
			}
		}
	})
}

// TestNodePluginSeesTheKubelet where the kubelet sees it, and mounts that get out.
func TestNodePluginSeesTheKubelet(t *testing.T) {
	t.Parallel()

	for _, directory := range []string{"/var/lib/kubelet", "/srv/kubelet"} {
		objects := renderedWith(t, map[string]any{"kubeletDir": directory})
		node := objects["DaemonSet touchstone/touchstone-node"].Typed.(*apps.DaemonSet)
		driver := node.Spec.Template.Spec.Containers[0]

		require.Contains(t, driver.Args, "--kubelet-dir="+directory)
		require.Contains(t, driver.Args, "--kubelet-registration-dir="+directory+"/plugins_registry")
		require.Contains(t, driver.Args, "--endpoint=unix://"+directory+"/plugins/csi.touchstone.dev/csi.sock")
		require.Contains(t, driver.Env,
			core.EnvVar{Name: "TOUCHSTONE_ENDPOINT", Value: "unix://" + directory + "/plugins/csi.touchstone.dev/csi.sock"})

		bidirectional := core.MountPropagationBidirectional
		require.Contains(t, driver.VolumeMounts,
			core.VolumeMount{Name: "kubelet", MountPath: directory, MountPropagation: &bidirectional})
		require.Contains(t, node.Spec.Template.Spec.Volumes, core.Volume{Name: "kubelet", VolumeSource: core.VolumeSource{
			HostPath: &core.HostPathVolumeSource{Path: directory, Type: new(core.HostPathDirectory)},
		}})
	}

	files, err := manifests.Prepared().Render(manifests.ChartDir, map[string]any{"kubeletDir": "/srv/kubelet", "layout": "node-local"})
	require.NoError(t, err)

	for name, text := range files {
		require.NotContains(t, text, "/var/lib/kubelet", name)
	}
}

// TestOnlySidecarsHaveCredentials: who takes over the driver gets none, but where
// it reads claims.
func TestOnlySidecarsHaveCredentials(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		_, readsClaims := objects["ClusterRole touchstone-claim-reader"]

		for _, each := range workloads(objects) {
			require.False(t, *each.pod.AutomountServiceAccountToken, each.id)
			require.False(t, *each.pod.EnableServiceLinks, each.id)

			account, ok := objects["ServiceAccount touchstone/"+each.pod.ServiceAccountName]
			require.True(t, ok, each.id)
			require.False(t, *account.Typed.(*core.ServiceAccount).AutomountServiceAccountToken, "want: pods get no token of the API")

			for _, container := range each.pod.Containers {
				has := slices.ContainsFunc(container.VolumeMounts, func(mount core.VolumeMount) bool { return mount.Name == "credentials" })
				want := !isDriver(&container) || readsClaims && !each.isNode()
				require.Equal(t, want, has, "%s, container %s", each.id, container.Name)
			}
		}
	})
}

// TestStartupTaintTakesRights on nodes, and a token, which the node plugin has for nothing else.
func TestStartupTaintTakesRights(t *testing.T) {
	t.Parallel()

	for _, layout := range []string{"central", "node-local"} {
		for key, want := range map[string]bool{"": false, "example.com/new": true} {
			objects := renderedWith(t, map[string]any{
				"layout": layout, "node": map[string]any{"settings": map[string]any{"startup-taint": key}},
			})
			role, ok := objects["ClusterRole touchstone-startup-taint"]
			require.Equal(t, want, ok, "want: the role with the taint only, in layout %s", layout)

			for _, each := range workloads(objects) {
				mounted := slices.ContainsFunc(each.driver().VolumeMounts, func(mount core.VolumeMount) bool { return mount.Name == "credentials" })
				require.Equal(t, want && each.isNode(), mounted, "want: the token with the taint only: %s", each.id)
			}

			if !want {
				continue
			}

			require.Equal(t, []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}}},
				role.Typed.(*rbac.ClusterRole).Rules)
			require.Equal(t, "touchstone-node",
				objects["ClusterRoleBinding touchstone-startup-taint"].Typed.(*rbac.ClusterRoleBinding).Subjects[0].Name)
		}
	}
}

func TestRightsAreLeast(t *testing.T) {
	t.Parallel()

	everywhere(t, installations, func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		bound := map[string]bool{}

		for id, object := range objects {
			switch typed := object.Typed.(type) {
			case *rbac.ClusterRole:
				requireLeast(t, id, typed.Rules)
			case *rbac.Role:
				requireLeast(t, id, typed.Rules)
			case *rbac.ClusterRoleBinding:
				bound["ClusterRole "+typed.RoleRef.Name] = true

				requireSubjects(t, objects, typed.Subjects)
			case *rbac.RoleBinding:
				bound["Role "+typed.Namespace+"/"+typed.RoleRef.Name] = true

				requireSubjects(t, objects, typed.Subjects)
			}
		}

		for id := range objects {
			if strings.HasPrefix(id, "ClusterRole ") || strings.HasPrefix(id, "Role ") {
				require.True(t, bound[id], "no subject has %s", id)
			}
		}
	})
}

func requireLeast(t *testing.T, id string, rules []rbac.PolicyRule) {
	t.Helper()

	for _, rule := range rules {
		require.Empty(t, rule.NonResourceURLs, id)
		require.Len(t, rule.APIGroups, 1, id)

		for _, name := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs) {
			require.NotContains(t, name, "*", id)
		}

		for _, never := range []string{"secrets", "leases", "serviceaccounts", "configmaps", "replicasets"} {
			require.NotContains(t, rule.Resources, never, id)
		}

		for _, never := range []string{"bind", "escalate", "impersonate", "deletecollection"} {
			require.NotContains(t, rule.Verbs, never, id)
		}
	}
}

func requireSubjects(t *testing.T, objects map[string]manifests.Object, subjects []rbac.Subject) {
	t.Helper()
	require.Len(t, subjects, 1, "want: the binding has one subject")
	require.Equal(t, "ServiceAccount", subjects[0].Kind)
	require.Contains(t, objects, "ServiceAccount "+subjects[0].Namespace+"/"+subjects[0].Name)

	// With a controller of its own, a node has no rights.
	if _, central := objects["StatefulSet touchstone/touchstone-controller"]; central {
		require.Equal(t, "touchstone-controller", subjects[0].Name)
	}
}

// TestNothingExposesTheSocket: the only Service is the one of the sidecar that
// speaks TLS, and pods take no calls that no NetworkPolicy names.
func TestNothingExposesTheSocket(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		guarded := func(each *workload) *networking.NetworkPolicy {
			for _, object := range objects {
				if is, ok := object.Typed.(*networking.NetworkPolicy); ok && matches(t, &is.Spec.PodSelector, each.labels) {
					return is
				}
			}

			return nil
		}

		for _, each := range workloads(objects) {
			guard := guarded(&each)
			require.NotNil(t, guard, each.id)
			require.ElementsMatch(t, []networking.PolicyType{"Ingress", "Egress"}, guard.Spec.PolicyTypes)

			for _, rule := range guard.Spec.Ingress {
				require.Len(t, rule.Ports, 1, "want: the rule admits one port")
				require.Contains(t, []string{"http", "metadata"}, rule.Ports[0].Port.StrVal)
			}
		}

		for id, object := range objects {
			if service, ok := object.Typed.(*core.Service); ok {
				require.Equal(t, "Service touchstone/touchstone-snapshot-metadata", id)
				require.Len(t, service.Spec.Ports, 1, "want: the Service has one port")
				require.Equal(t, "metadata", service.Spec.Ports[0].TargetPort.StrVal)
			}
		}
	})
}

func TestControllerMayBeMoved(t *testing.T) {
	t.Parallel()

	objects := built(t, "single-node")
	controller := objects["StatefulSet touchstone/touchstone-controller"].Typed.(*apps.StatefulSet)
	budget := objects["PodDisruptionBudget touchstone/touchstone-controller"].Typed.(*policy.PodDisruptionBudget)

	require.EqualValues(t, 1, *controller.Spec.Replicas, "want: one controller runs")
	require.Equal(t, apps.ParallelPodManagement, controller.Spec.PodManagementPolicy, "one that never got ready keeps no other away")
	require.True(t, matches(t, budget.Spec.Selector, controller.Spec.Template.Labels), "want: the budget selects the pods of the controller")
	require.EqualValues(t, 1, budget.Spec.MaxUnavailable.IntVal, "want: the one controller may be evicted")
}

func TestCSIDriverObjectDescribesTheDriver(t *testing.T) {
	t.Parallel()

	everywhere(t, installations[1:], func(t *testing.T, objects map[string]manifests.Object) {
		t.Helper()

		_, central := objects["StatefulSet touchstone/touchstone-controller"]
		_, capacity := objects["Role touchstone/touchstone-capacity"]

		require.Equal(t, storage.CSIDriverSpec{
			AttachRequired: &central, PodInfoOnMount: new(true), FSGroupPolicy: new(storage.FileFSGroupPolicy), StorageCapacity: &capacity,
			RequiresRepublish: new(false), SELinuxMount: new(false),
			VolumeLifecycleModes: []storage.VolumeLifecycleMode{storage.VolumeLifecyclePersistent, storage.VolumeLifecycleEphemeral},
		}, objects["CSIDriver csi.touchstone.dev"].Typed.(*storage.CSIDriver).Spec)
	})
}

// TestClaimReaderIsTheOneOfDirectAssignment keeps two copies of a role the same.
func TestClaimReaderIsTheOneOfDirectAssignment(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../deploy/direct-assign/rbac.yaml")
	require.NoError(t, err)

	alone, err := manifests.Decode(string(text))
	require.NoError(t, err)

	const role, binding = "ClusterRole touchstone-claim-reader", "ClusterRoleBinding touchstone-claim-reader"

	inOverlay := built(t, "testing")
	require.Equal(t, alone[role].Typed.(*rbac.ClusterRole).Rules, inOverlay[role].Typed.(*rbac.ClusterRole).Rules)
	require.Equal(t, alone[binding].Typed.(*rbac.ClusterRoleBinding).Subjects, inOverlay[binding].Typed.(*rbac.ClusterRoleBinding).Subjects)
}

func matches(t *testing.T, selector *meta.LabelSelector, on map[string]string) bool {
	t.Helper()

	is, err := meta.LabelSelectorAsSelector(selector)
	require.NoError(t, err)

	return is.Matches(labels.Set(on))
}
