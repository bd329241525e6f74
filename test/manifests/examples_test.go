package manifests_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	groupsnapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshot "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	storage "k8s.io/api/storage/v1"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/test/manifests"
)

// forEachExample that test/e2e/install.sh applies: all but those for virtual
// machines, which it does not have.
func forEachExample(t *testing.T, check func(t *testing.T, example *manifests.Example)) {
	t.Helper()

	examples, err := manifests.Examples(manifests.ExamplesDir)
	require.NoError(t, err)
	require.NotEmpty(t, examples, "want: the examples are found")

	for i := range examples {
		if examples[i].Name == "kata" {
			continue
		}

		t.Run(examples[i].Name, func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, examples[i].Steps, "want: the example has steps")
			check(t, &examples[i])
		})
	}
}

// TestExamplesAreDocumented in their READMEs and in the one of all.
func TestExamplesAreDocumented(t *testing.T) {
	t.Parallel()

	examples, err := manifests.Examples(manifests.ExamplesDir)
	require.NoError(t, err)

	all, err := os.ReadFile(filepath.Join(manifests.ExamplesDir, "README.md"))
	require.NoError(t, err)

	for i := range examples {
		name := examples[i].Name
		require.Contains(t, links(string(all)), name+"/README.md")

		for _, manifest := range examples[i].All() {
			require.Contains(t, links(examples[i].Readme), manifest.File, name)
		}
	}
}

// links returns the targets of a page's links.
func links(page string) []string {
	var found []string
	for _, match := range regexp.MustCompile(`\]\(([^)#]+)`).FindAllStringSubmatch(page, -1) {
		found = append(found, match[1])
	}

	return found
}

// TestExamplesAreInANamespace of the user's choice, and do not conflict with each other
// there.
func TestExamplesAreInANamespace(t *testing.T) {
	t.Parallel()

	examples, err := manifests.Examples(manifests.ExamplesDir)
	require.NoError(t, err)

	of := map[string]string{}

	for i := range examples {
		for _, manifest := range examples[i].All() {
			for id := range manifest.Objects {
				require.NotContains(t, id, "/", "%s/%s names a namespace", examples[i].Name, manifest.File)

				// Of one example, a step may change what the one before has made.
				if other, is := of[id]; is {
					require.Equal(t, other, examples[i].Name, "both have a %s", id)
				}

				of[id] = examples[i].Name
			}
		}
	}
}

// TestExamplesNameExistingObjects: the classes of a default installation or their own,
// and claims of the same step or an earlier one.
func TestExamplesNameExistingObjects(t *testing.T) {
	t.Parallel()

	deployed := built(t, "single-node")

	forEachExample(t, func(t *testing.T, example *manifests.Example) {
		t.Helper()

		there := map[string]bool{}
		for id := range deployed {
			there[id] = true
		}

		for _, step := range example.All() {
			for id := range step.Objects {
				there[id] = true
			}

			for id, object := range step.Objects {
				for _, wanted := range needs(t, object) {
					if !strings.Contains(wanted, " SNAPSHOT-OF-") { // filled in when it is applied
						require.True(t, there[wanted], "%s: %s needs a %s", step.File, id, wanted)
					}
				}
			}
		}
	})
}

// needs are the ids of the objects that an object names.
func needs(t *testing.T, object manifests.Object) []string {
	t.Helper()

	switch typed := object.Typed.(type) {
	case *core.PersistentVolumeClaim:
		return needsOfClaim(t, &typed.Spec)
	case *snapshot.VolumeSnapshot:
		return []string{
			"VolumeSnapshotClass " + *typed.Spec.VolumeSnapshotClassName,
			"PersistentVolumeClaim " + *typed.Spec.Source.PersistentVolumeClaimName,
		}
	case *groupsnapshot.VolumeGroupSnapshot:
		return []string{"VolumeGroupSnapshotClass " + *typed.Spec.VolumeGroupSnapshotClassName}
	case *storage.StorageClass:
		_, err := volume.ParseParameters(typed.Parameters)
		require.NoError(t, err, object.ID)

		return []string{"CSIDriver " + typed.Provisioner}
	case *rbac.RoleBinding:
		return needsOfBinding(typed.RoleRef, typed.Subjects)
	case *rbac.ClusterRoleBinding:
		return needsOfBinding(typed.RoleRef, typed.Subjects)
	case *core.Service, *core.ServiceAccount, *rbac.Role, *rbac.ClusterRole:
		return nil
	}

	var needed []string

	if set, is := object.Typed.(*apps.StatefulSet); is {
		needed = append(needed, "Service "+set.Spec.ServiceName)
		for i := range set.Spec.VolumeClaimTemplates {
			needed = append(needed, needsOfClaim(t, &set.Spec.VolumeClaimTemplates[i].Spec)...)
		}
	}

	pod, _ := podOf(t, object)
	if pod.ServiceAccountName != "" {
		needed = append(needed, "ServiceAccount "+pod.ServiceAccountName)
	}

	for i := range pod.Volumes {
		needed = append(needed, needsOfVolume(t, &pod.Volumes[i])...)
	}

	return needed
}

func needsOfClaim(t *testing.T, claim *core.PersistentVolumeClaimSpec) []string {
	t.Helper()
	require.NotNil(t, claim.StorageClassName, "want: the claim names its StorageClass")

	needed := []string{"StorageClass " + *claim.StorageClassName}
	if class := claim.VolumeAttributesClassName; class != nil {
		needed = append(needed, "VolumeAttributesClass "+*class)
	}

	if source := claim.DataSource; source != nil {
		needed = append(needed, source.Kind+" "+source.Name)
	}

	return needed
}

func needsOfBinding(role rbac.RoleRef, subjects []rbac.Subject) []string {
	needed := []string{role.Kind + " " + role.Name}
	for _, subject := range subjects {
		needed = append(needed, subject.Kind+" "+subject.Name)
	}

	return needed
}

func needsOfVolume(t *testing.T, source *core.Volume) []string {
	t.Helper()

	switch {
	case source.PersistentVolumeClaim != nil:
		return []string{"PersistentVolumeClaim " + source.PersistentVolumeClaim.ClaimName}
	case source.Ephemeral != nil:
		return needsOfClaim(t, &source.Ephemeral.VolumeClaimTemplate.Spec)
	case source.CSI != nil:
		_, _, err := volume.ParseEphemeral(source.CSI.VolumeAttributes)
		require.NoError(t, err, source.Name)

		return []string{"CSIDriver " + source.CSI.Driver}
	}

	require.Fail(t, "an example shows no volume but the driver's", source.Name)

	return nil
}

// podOf returns the pods that an object makes, and whether it has any. What is no
// workload that the test of an installation waits for is a failure.
func podOf(t *testing.T, object manifests.Object) (core.PodSpec, bool) {
	t.Helper()

	switch typed := object.Typed.(type) {
	case *core.Pod:
		return typed.Spec, true
	case *batch.Job:
		return typed.Spec.Template.Spec, true
	case *apps.Deployment:
		return typed.Spec.Template.Spec, true
	case *apps.StatefulSet:
		return typed.Spec.Template.Spec, true
	case *core.PersistentVolumeClaim, *core.Service, *storage.StorageClass, *snapshot.VolumeSnapshot, *groupsnapshot.VolumeGroupSnapshot,
		*core.ServiceAccount, *rbac.Role, *rbac.RoleBinding, *rbac.ClusterRole, *rbac.ClusterRoleBinding:
		return core.PodSpec{}, false
	}

	require.Fail(t, "no example has one yet", object.ID)

	return core.PodSpec{}, false
}

// forEachObject of the example, in whichever of its files it is.
func forEachObject(example *manifests.Example, check func(id string, object manifests.Object)) {
	for _, manifest := range example.All() {
		for id, object := range manifest.Objects {
			check(id, object)
		}
	}
}

// TestExamplesCanFail: a Job fails at once, and other pods are ready only
// if their probe says so.
func TestExamplesCanFail(t *testing.T) {
	t.Parallel()

	forEachExample(t, func(t *testing.T, example *manifests.Example) {
		t.Helper()

		proofs := 0

		forEachObject(example, func(id string, object manifests.Object) {
			pod, is := podOf(t, object)
			if !is {
				return
			}

			proofs++

			if job, is := object.Typed.(*batch.Job); is {
				require.Zero(t, *job.Spec.BackoffLimit, id)
				require.Equal(t, core.RestartPolicyNever, pod.RestartPolicy, id)
			} else {
				require.NotNil(t, pod.Containers[0].ReadinessProbe, id)
			}
		})

		require.NotZero(t, proofs, "want: the examples have proofs")
	})
}

// TestExamplesNeedNoPrivilege: one image, or a client of ours instead, no privilege, and no waiting
// for their end.
func TestExamplesNeedNoPrivilege(t *testing.T) {
	t.Parallel()

	images := []string{"busybox:1.37"}
	for _, image := range builtImages(t) {
		if !strings.Contains(image, "/") { // else a sidecar's
			images = append(images, image)
		}
	}

	forEachExample(t, func(t *testing.T, example *manifests.Example) {
		t.Helper()

		forEachObject(example, func(id string, object manifests.Object) {
			pod, is := podOf(t, object)
			if !is {
				return
			}

			require.Len(t, pod.Containers, 1, id)
			container := pod.Containers[0]
			require.Contains(t, images, container.Image, id)
			require.EqualValues(t, 1, *pod.TerminationGracePeriodSeconds, id)

			// The profile `restricted` of Pod Security.
			require.Equal(t, core.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type, id)
			require.Equal(t, []core.Capability{"ALL"}, container.SecurityContext.Capabilities.Drop, id)
			require.False(t, *container.SecurityContext.AllowPrivilegeEscalation, id)

			// But for those that open a device, which is root's.
			if len(container.VolumeDevices) == 0 {
				require.True(t, *pod.SecurityContext.RunAsNonRoot, id)
			}
		})
	})
}

// TestExamplesHaveFewRights: each by its name, and what is the whole cluster's they
// can but get.
func TestExamplesHaveFewRights(t *testing.T) {
	t.Parallel()

	forEachExample(t, func(t *testing.T, example *manifests.Example) {
		t.Helper()

		forEachObject(example, func(id string, object manifests.Object) {
			switch typed := object.Typed.(type) {
			case *rbac.Role:
				for _, rule := range typed.Rules {
					require.Subset(t, []string{"get", "create"}, rule.Verbs, id)
					require.NotContains(t, rule.Resources, "*", id)
				}
			case *rbac.ClusterRole:
				// Others' would replace it.
				require.Contains(t, typed.Name, "touchstone-example-")

				for _, rule := range typed.Rules {
					require.Equal(t, []string{"get"}, rule.Verbs, id)
					require.NotContains(t, rule.Resources, "*", id)
				}
			case *rbac.ClusterRoleBinding:
				// test/e2e/install.sh replaces that of examples/README.md by its own.
				for _, subject := range typed.Subjects {
					require.Equal(t, "example", subject.Namespace, id)
				}
			}
		})
	})
}

// TestExamplesExpectKnownResults: the test of an installation understands them.
func TestExamplesExpectKnownResults(t *testing.T) {
	t.Parallel()

	forEachExample(t, func(t *testing.T, example *manifests.Example) {
		t.Helper()

		forEachObject(example, func(id string, object manifests.Object) {
			switch typed := object.Typed.(type) {
			case *core.Pod:
				require.Contains(t, []string{"", "Pending"}, typed.Annotations[manifests.ExpectAnnotation], id)
			case *core.PersistentVolumeClaim:
				require.Contains(t, []string{"", "FileSystemResizePending"}, typed.Annotations[manifests.ExpectAnnotation], id)
			}
		})
	})
}
