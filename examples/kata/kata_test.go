// Package kata_test reads the manifests of this directory as Kubernetes and the
// driver do.
package kata_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manifests are the objects of some files, one of each kind.
type manifests struct {
	runtime runtimeClass
	class   storageClass
	claim   claim
	pod     pod
}

// read wants every object to be of a kind that it knows, with no field that the
// kind has not.
func read(t *testing.T, files ...string) *manifests {
	t.Helper()

	found := &manifests{}

	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)

		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			var kind metav1.TypeMeta

			require.NoError(t, yaml.Unmarshal(document, &kind), file)

			object, known := map[metav1.TypeMeta]any{
				{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}:    &found.runtime,
				{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"}: &found.class,
				{APIVersion: "v1", Kind: "PersistentVolumeClaim"}:       &found.claim,
				{APIVersion: "v1", Kind: "Pod"}:                         &found.pod,
			}[kind]
			require.True(t, known, "%s: %s %s", file, kind.APIVersion, kind.Kind)
			require.NoError(t, yaml.UnmarshalStrict(document, object), file)
		}
	}

	return found
}

// requireWhole wants the objects to name each other.
func (m *manifests) requireWhole(t *testing.T) {
	t.Helper()

	require.Equal(t, "kata", m.pod.Spec.RuntimeClassName)
	require.Len(t, m.pod.Spec.Volumes, 1, "want: the pod has the one volume")
	require.Equal(t, m.claim.Name, m.pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Equal(t, m.pod.Spec.Volumes[0].Name, m.pod.Spec.Containers[0].VolumeMounts[0].Name)
	require.Equal(t, m.class.Name, m.claim.Spec.StorageClassName)
	storage := m.claim.Spec.Resources.Requests["storage"]
	require.Equal(t, int64(4<<30), storage.Value(), "want: the claim asks for 4 GiB")
}

// parameters are the class's, as the driver takes them.
func (m *manifests) parameters(t *testing.T) volume.Parameters {
	t.Helper()

	require.Equal(t, "csi.touchstone.dev", m.class.Provisioner)

	parameters, err := volume.ParseParameters(m.class.Parameters)
	require.NoError(t, err)

	return parameters
}

// requireDirect wants the claim to be one that can be assigned directly.
func (m *manifests) requireDirect(t *testing.T, parameters volume.Parameters) {
	t.Helper()

	require.True(t, parameters.DirectAssign, "want: the StorageClass assigns volumes directly")
	require.Equal(t, []string{"ReadWriteOncePod"}, m.claim.Spec.AccessModes)
	require.Equal(t, "Filesystem", m.claim.Spec.VolumeMode)

	// What the provisioner makes of them for a driver that advertises
	// SINGLE_NODE_MULTI_WRITER.
	capability, err := volume.ParseCapability(&csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: parameters.FSType}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
	})
	require.NoError(t, err)
	require.NoError(t, parameters.CheckFSType(capability))
	require.NoError(t, parameters.CheckDirectAssign(capability))
}

func TestTheClassAssignsDirectly(t *testing.T) {
	t.Parallel()

	found := read(t, "runtimeclass.yaml", "storageclass.yaml", "pvc.yaml", "pod.yaml")
	found.requireWhole(t)
	require.Equal(t, found.runtime.Name, found.pod.Spec.RuntimeClassName)
	require.NotEmpty(t, found.runtime.Handler, "want: the RuntimeClass has a handler")
	found.requireDirect(t, found.parameters(t))
}

func TestTheAnnotationAssignsDirectly(t *testing.T) {
	t.Parallel()

	found := read(t, "annotated.yaml")
	found.requireWhole(t)

	parameters := found.parameters(t)
	require.False(t, parameters.DirectAssign, "it is the claim that asks for it")
	require.Equal(t, "true", found.claim.Annotations[volume.KeySkipHostmount])

	direct, err := parameters.WithDirectAssign()
	require.NoError(t, err)
	found.requireDirect(t, direct)
}
