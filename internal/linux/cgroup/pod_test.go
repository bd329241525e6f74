package cgroup_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
)

const podUID = "4c1d0c9e-6b43-4b55-a1a4-1d2fa8a3e6b7"

func TestThePodIsReadFromThePath(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/var/lib/kubelet/pods/" + podUID + "/volumes/kubernetes.io~csi/pvc-1/mount":             podUID,
		"/var/lib/kubelet/pods/" + podUID + "/volumeDevices/kubernetes.io~csi/pvc-1":             podUID,
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/" + podUID:       podUID,
		"/pods/pods/" + podUID + "/volumes/x":                                                    podUID,
		"/var/lib/kubelet/pods/0123456789abcdef0123456789abcdef/volumes/kubernetes.io~csi/x/y":   "0123456789abcdef0123456789abcdef",
		"/var/lib/kubelet/pods/" + podUID + "/mount":                                             "",
		"/var/lib/kubelet/pods/" + podUID:                                                        "",
		"/var/lib/kubelet/pods/" + podUID + "/../x/volumes/y":                                    "x",
		"/var/lib/kubelet/pods/a_b/volumes/x":                                                    "",
		"/var/lib/kubelet/pods/-a/volumes/x":                                                     "",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1/" + podUID:       "",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/" + podUID + "/": podUID,
		"/mnt": "",
		"":     "",
	} {
		require.Equal(t, want, cgroup.PodUID(path, nil), path)
	}
}

func TestThePodOfTheContextWins(t *testing.T) {
	t.Parallel()

	path := "/var/lib/kubelet/pods/other/volumes/x"
	require.Equal(t, podUID, cgroup.PodUID(path, map[string]string{"csi.storage.k8s.io/pod.uid": podUID}))
	require.Empty(t, cgroup.PodUID(path, map[string]string{"csi.storage.k8s.io/pod.uid": "../../escape"}), "want: a pod UID that is a path is refused")
	require.Equal(t, "other", cgroup.PodUID(path, map[string]string{"csi.storage.k8s.io/pod.name": "x"}))
}
