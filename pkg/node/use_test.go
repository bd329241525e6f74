package node_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// useLoop is beyond the loop devices of TestEachCallFailsOnce.
const useLoop = 815_000

// newNode returns a node with a volume of a kind, and ends its use with the test.
func newNode(t *testing.T, name string) *onceNode {
	t.Helper()
	namespace.NeedRoot(t)

	kinds := onceKinds()
	at := slices.IndexFunc(kinds, func(kind onceKind) bool { return kind.name == name })
	n := &onceNode{kind: kinds[at], directory: t.TempDir(), first: useLoop}

	t.Cleanup(func() { harness.CheckNothingIsLeft(t, n.directory) })

	for _, each := range onceDirectories {
		require.NoError(t, os.Mkdir(n.in(each), 0o700))
	}

	require.NoError(t, n.open(t.Context()))
	t.Cleanup(func() {
		_ = n.down(context.WithoutCancel(t.Context())) // nothing is left to do where the test has passed

		require.NoError(t, n.close())
	})
	require.NoError(t, n.create())

	return n
}

// TestExpandWithoutAController grows volumes whose size only the node decides.
func TestExpandWithoutAController(t *testing.T) {
	n := newNode(t, "block")
	require.NoError(t, n.stage(t.Context()))

	defer func() { require.NoError(t, n.unstage(t.Context())) }()

	ranged := func(required, limit int64) *csi.CapacityRange {
		return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
	}

	for _, test := range []struct {
		name   string
		change func(r *csi.NodeExpandVolumeRequest)
		bytes  int64
		want   answer
	}{
		{"no range", func(*csi.NodeExpandVolumeRequest) {}, onceBytes, answer{}},
		{"its size", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(onceBytes, onceBytes) }, onceBytes, answer{}},
		{"less than it has", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(1, 0) }, onceBytes, answer{}},
		{"a limit below its size", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(1, onceBytes-1) }, 0, answer{codes.OutOfRange, "more than limit_bytes"}},
		{"no block is within the limit", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(onceBytes+1, onceBytes+4095) }, 0, answer{codes.OutOfRange, "limit_bytes or --max-volume-size"}},
		{"the first block more", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(onceBytes+1, onceBytes+4096) }, onceBytes + 4096, answer{}},
		{"whole blocks", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(onceBytes+8192, 0) }, onceBytes + 8192, answer{}},
		{"more than any volume", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(onceMost+1, 0) }, 0, answer{codes.OutOfRange, "--max-volume-size"}},
		{"the largest volume", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(onceMost, 0) }, onceMost, answer{}},
		{"no id", func(r *csi.NodeExpandVolumeRequest) { r.VolumeId = "" }, 0, answer{codes.InvalidArgument, "volume_id"}},
		{"no path", func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "" }, 0, answer{codes.InvalidArgument, "volume_path is missing"}},
		{"a relative path", func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = "staging" }, 0, answer{codes.InvalidArgument, "volume_path"}},
		{"another path", func(r *csi.NodeExpandVolumeRequest) { r.VolumePath = n.in("kubelet/other") }, 0, answer{codes.NotFound, "is not at"}},
		{"another volume", func(r *csi.NodeExpandVolumeRequest) { r.VolumeId, r.VolumePath = missingID, "relative" }, 0, answer{codes.NotFound, "is not in use"}},
		{"an empty range", func(r *csi.NodeExpandVolumeRequest) { r.CapacityRange = ranged(0, 0) }, 0, answer{codes.InvalidArgument, "capacity_range"}},
		{"mounted", func(r *csi.NodeExpandVolumeRequest) { r.VolumeCapability = csiclient.MountCapability(multiWriter, "") }, 0, answer{codes.InvalidArgument, "access type"}},
	} {
		request := &csi.NodeExpandVolumeRequest{VolumeId: n.kind.id(), VolumePath: n.in("kubelet/staging")}
		test.change(request)

		got, err := n.NodeExpandVolume(t.Context(), request)
		test.want.require(t, err, test.name)
		require.Equal(t, test.bytes, got.GetCapacityBytes(), "the size: %s", test.name)
	}
}

// TestAnInlineVolumeKeepsItsSize refuses to expand a volume that exists as long as its pod.
func TestAnInlineVolumeKeepsItsSize(t *testing.T) {
	n := newNode(t, "inline")
	require.NoError(t, n.publish(t.Context()))

	_, err := n.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: n.kind.id(), VolumePath: n.in("kubelet/target"), CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
	})
	answer{codes.FailedPrecondition, "keeps its size"}.require(t, err, "NodeExpandVolume")
	require.NoError(t, n.unpublish(t.Context()))
}

// TestLocalNodeReportsTheVolume to a controller in the process, from its creation to its unstaging.
func TestLocalNodeReportsTheVolume(t *testing.T) {
	for _, kind := range []string{"image", "block", "directory"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, kind)
			local, id := n.Local(), n.kind.id()

			found := func(at string) {
				t.Helper()

				path, used, err := local.InUse(id)
				require.NoError(t, err)
				require.Equal(t, at != "", used, "whether it is in use")

				if used {
					require.Equal(t, filepath.Join(n.directory, "kubelet", at), path)
				}

				// A copy of what others write to through a device or a directory cannot be protected.
				require.Equal(t, at == "" || kind == "image", local.CanFreeze(id), "whether it can be frozen at %q", at)

				if at != "" && kind != "directory" {
					require.Contains(t, local.DescribeHolders(id), "loop815000 has it")
				} else {
					require.Contains(t, local.DescribeHolders(id), "no loop device of this machine has it")
				}
			}

			require.True(t, local.Serves("here"), "want: the node's own id")
			require.False(t, local.Serves("there"), "want: no other id")
			require.Nil(t, local.Condition(id), "want: nothing is known of a volume that was not used")
			require.Empty(t, local.Unhealthy(""), "want: no volume is unhealthy")
			require.NoError(t, local.ApplyMutable(t.Context(), missingID), "a volume that is not in use has nothing to apply to")

			found("")
			require.NoError(t, n.stage(t.Context()))
			found("staging")
			require.NoError(t, n.publish(t.Context()))
			found("target")
			require.NoError(t, n.restart(t.Context()))

			local = n.Local()

			found("target")
			require.NoError(t, n.unpublish(t.Context()))
			found("staging")
			require.NoError(t, n.unstage(t.Context()))
			found("")

			local.Truncated(id)

			check := n.Checker().Get(id)
			require.Equal(t, kind == "image", check.HasFinding(), "want: a truncated image is a finding if it was checked before")
			local.Truncated(id)
			require.Same(t, check, n.Checker().Get(id), "want: it is recorded once")
			require.NoError(t, n.restart(t.Context()))
			require.Equal(t, kind == "image", n.Checker().Get(id).HasFinding(), "want: the finding outlives a restart")
		})
	}
}

// TestStartObservesTheMounts: other programs unmount a volume while the node is not running.
func TestStartObservesTheMounts(t *testing.T) {
	for kind, paths := range map[string][]string{
		"image": {"target", "staging"}, "directory": {"target", "staging"}, "inline": {"target"}, "unstaged": {"target"},
	} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, kind)
			require.NoError(t, n.stage(t.Context()))
			require.NoError(t, n.publish(t.Context()))

			for i, name := range paths {
				require.NoError(t, n.restart(t.Context()))
				require.NoError(t, n.statsAt(t.Context(), name), "it is in use as before the start")

				require.NoError(t, n.close())
				require.NoError(t, unix.Unmount(n.in("kubelet/"+name), 0))
				require.NoError(t, n.open(t.Context()))

				require.Error(t, n.statsAt(t.Context(), name), "want: it is not in use at its %s any more", name)

				_, used, err := n.Local().InUse(n.kind.id())
				require.NoError(t, err)
				require.Equal(t, i < len(paths)-1, used, "whether it is in use without its %s", name)
			}
		})
	}
}

// TestAnUnmountedInlineVolumeIsRemoved: its data end with its pod, also without a call.
func TestAnUnmountedInlineVolumeIsRemoved(t *testing.T) {
	n := newNode(t, "inline")
	images := n.in("pool/ephemeral/images")

	require.NoError(t, n.publish(t.Context()))
	require.NoError(t, n.restart(t.Context()))

	stored, err := os.ReadDir(images)
	require.NoError(t, err)
	require.Len(t, stored, 1, "want: the image of a mounted volume stays")

	require.NoError(t, n.close())
	require.NoError(t, unix.Unmount(n.in("kubelet/target"), 0))
	require.NoError(t, n.open(t.Context()))

	stored, err = os.ReadDir(images)
	require.NoError(t, err)
	require.Empty(t, stored, "want: the image of an unmounted volume is removed")
	require.NoDirExists(t, n.in("kubelet/target"))
}

// TestAnUnrecordedVolumeOfAGuestStays: the records are lost, and the host must neither mount nor detach what a
// virtual machine has.
func TestAnUnrecordedVolumeOfAGuestStays(t *testing.T) {
	n := newNode(t, "direct")
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.publish(t.Context()))
	require.NoError(t, n.loseRecords(t.Context()))

	assigned := answer{codes.FailedPrecondition, "virtual machine"}
	assigned.require(t, n.unstage(t.Context()), "NodeUnstageVolume")

	request := n.stageRequest()
	request.VolumeContext = nil
	_, err := n.NodeStageVolume(t.Context(), request)
	assigned.require(t, err, "NodeStageVolume for the host")

	require.NoError(t, n.unpublish(t.Context()))
	require.NoError(t, n.unstage(t.Context()))
}

// TestCallsLeaveNoFileOpen of those that they open, beneath the paths of requests and of images. Nothing is
// collected meanwhile, which would close them.
func TestCallsLeaveNoFileOpen(t *testing.T) {
	for _, kind := range []string{"image", "inline", "unstaged"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, kind)

			defer debug.SetGCPercent(debug.SetGCPercent(-1))

			for _, call := range []func(ctx context.Context) error{n.stage, n.publish, n.publish, n.unpublish, n.unstage, n.unpublish, n.unstage} {
				require.NoError(t, call(t.Context()))
			}

			_, err := n.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: missingID, StagingTargetPath: n.in("kubelet/other")})
			require.NoError(t, err)

			open, err := filepath.Glob("/proc/self/fd/*")
			require.NoError(t, err)

			for _, each := range open {
				path, _ := os.Readlink(each) // the one that listed them is closed
				require.False(t, strings.HasPrefix(path, n.in("kubelet")) || strings.HasPrefix(path, n.in("pool")) && strings.Contains(path, ".img"),
					"want: %s is closed", path)
			}
		})
	}
}
