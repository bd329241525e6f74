package manifests_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/manifests"
)

const user = `
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  containers:
    - name: user
      image: busybox:1.37
      volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestDecodeReportsDefects of each kind that a schema of Kubernetes' API refuses.
func TestDecodeReportsDefects(t *testing.T) {
	t.Parallel()

	_, err := manifests.Decode(user)
	require.NoError(t, err)

	for name, each := range map[string]struct{ manifest, message string }{
		"an unknown field": {`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClass: touchstone-ext4}
`, `unknown field "spec.storageClass"`},
		"a field of another type": {`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: user}
spec: {serviceName: user, replicas: one, selector: {}, template: {}}
`, "cannot unmarshal string into Go struct field"},
		"a field twice": {user + "metadata: {name: other}\n", `"metadata" already set in map`},
		"no name of a container": {`
apiVersion: v1
kind: Pod
metadata: {name: user}
spec: {containers: [{image: busybox:1.37}]}
`, "fields are missing that the type requires: .spec.containers[0].name"},
		"no selector": {`
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node}
spec: {template: {spec: {containers: []}}}
`, "fields are missing that the type requires: .spec.selector"},
		"no driver of a class": {`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: touchstone}
deletionPolicy: Delete
`, "fields are missing that the type requires: .driver"},
		"an unknown kind":    {"apiVersion: v1\nkind: Claim\nmetadata: {name: data}\n", `no kind "Claim" is registered`},
		"an unknown version": {"apiVersion: storage.k8s.io/v2\nkind: StorageClass\nmetadata: {name: data}\n", `no kind "StorageClass" is registered for version`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := manifests.Decode(each.manifest)
			require.ErrorContains(t, err, each.message, "want: a refusal: %s", each.message)
		})
	}
}
