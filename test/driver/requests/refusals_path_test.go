package requests_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestTargetPathsOutsideAreRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	foreign := harness.ForeignDirectory(t)
	kubelet := d.Config.KubeletDir
	inside := filepath.Join(kubelet, "pods")

	require.NoError(t, os.MkdirAll(inside, 0o700))
	require.NoError(t, os.Symlink(foreign, filepath.Join(inside, "link")))
	require.NoError(t, os.Symlink(filepath.Join(foreign, "sub", "mount"), filepath.Join(inside, "target")))
	require.NoError(t, os.Symlink(filepath.Join(foreign, "nothing"), filepath.Join(inside, "dangling")))
	require.NoError(t, os.Symlink("/proc/self/cwd", filepath.Join(inside, "magic")))
	harness.WriteFile(t, filepath.Join(inside, "file"), "")

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.BringUp(t, d, claim)

	block := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.MultiWriter)},
	})
	harness.BringUp(t, d, block)

	fresh := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "fresh", Parameters: harness.DirectoryBacked()})
	before := harness.Tree(t, foreign, d.Pool(), d.Config.KubeletDir)

	for name, test := range map[string]struct {
		path string
		// gone says that there is nothing to unpublish, which is no error.
		gone bool
	}{
		"relative":                     {path: "pods/x"},
		"a dot":                        {path: "."},
		"dots":                         {path: filepath.Join(inside, "x") + "/../../../etc"},
		"dots that stay inside":        {path: inside + "/../pods/x"},
		"a dot segment":                {path: inside + "/./x"},
		"outside":                      {path: filepath.Join(foreign, "sub", "mount")},
		"the root":                     {path: "/"},
		"the kubelet's own":            {path: kubelet},
		"the kubelet's own, slash":     {path: kubelet + "/"},
		"a prefix only":                {path: kubelet + "-other/x"},
		"through a symlink":            {path: filepath.Join(inside, "link", "sub", "mount")},
		"directly in a symlink":        {path: filepath.Join(inside, "link", "new")},
		"through a magic link":         {path: filepath.Join(inside, "magic", "x")},
		"the target is a symlink":      {path: filepath.Join(inside, "target"), gone: true},
		"the target is a dangling one": {path: filepath.Join(inside, "dangling"), gone: true},
		"through a file":               {path: filepath.Join(inside, "file", "x")},
		"NUL":                          {path: inside + "/a\x00b"},
		"too long a name":              {path: filepath.Join(inside, strings.Repeat("n", 300))},
		"too long":                     {path: inside + strings.Repeat("/n", 2048)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()

			for _, volume := range []*csiclient.Publication{claim, block} {
				_, err := d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
					VolumeId: volume.VolumeID, StagingTargetPath: volume.StagingPath, TargetPath: test.path,
					VolumeCapability: volume.Capability, VolumeContext: volume.VolumeContext,
				})
				refusesPath(t, err)

				_, err = d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: volume.VolumeID, TargetPath: test.path})
				if test.gone {
					require.NoError(t, err)
				} else {
					refusesPath(t, err)
				}

				_, err = d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: volume.VolumeID, StagingTargetPath: test.path})
				if test.gone {
					require.NoError(t, err)
				} else {
					refusesPath(t, err)
				}

				_, err = d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume.VolumeID, VolumePath: test.path})
				require.Contains(t, []codes.Code{codes.NotFound, codes.InvalidArgument}, status.Code(err), "%v", err)

				_, err = d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: volume.VolumeID, VolumePath: test.path})
				require.Contains(t, []codes.Code{codes.NotFound, codes.InvalidArgument}, status.Code(err), "%v", err)
			}

			_, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
				VolumeId: fresh.VolumeID, StagingTargetPath: test.path, VolumeCapability: fresh.Capability,
				VolumeContext: fresh.VolumeContext,
			})
			refusesPath(t, err)
		})
	}

	require.Equal(t, before, harness.Tree(t, foreign, d.Pool(), d.Config.KubeletDir))
	harness.RequireNothingMounted(t, foreign)
	harness.DeleteVolume(t, d, fresh.VolumeID)
}

func refusesPath(t *testing.T, err error) {
	t.Helper()
	require.Contains(t, []codes.Code{codes.InvalidArgument, codes.FailedPrecondition}, status.Code(err), "%v", err)
}

// TestSlashesMakeNoSecondTarget of the first.
func TestSlashesMakeNoSecondTarget(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters:         harness.DirectoryBacked(),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
	})
	harness.BringUp(t, d, claim)

	odd := *claim
	odd.TargetPath = strings.Replace(claim.TargetPath, "/pods/", "//pods///", 1) + "//"
	odd.StagingPath = claim.StagingPath + "/"

	require.NoError(t, d.Stage(t.Context(), &odd))

	publish := &csi.NodePublishVolumeRequest{
		VolumeId: odd.VolumeID, StagingTargetPath: odd.StagingPath, TargetPath: odd.TargetPath,
		VolumeCapability: odd.Capability, VolumeContext: odd.VolumeContext,
	}
	_, err := d.NodePublishVolume(t.Context(), publish)
	require.NoError(t, err)

	publish.Readonly = true
	_, err = d.NodePublishVolume(t.Context(), publish)
	harness.RequireCode(t, err, codes.AlreadyExists)
	harness.WriteFile(t, filepath.Join(claim.TargetPath, "data"), "writable still")

	_, err = d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: odd.VolumeID, VolumePath: odd.TargetPath})
	require.NoError(t, err)

	require.NoError(t, d.Unpublish(t.Context(), &odd))
	require.NoDirExists(t, claim.TargetPath)
	require.NoError(t, d.Unstage(t.Context(), &odd))
	harness.RequireNothingMounted(t, claim.StagingPath)
}

// TestSwappedSymlinkIsNotFollowed: the target's parent is changed for a symlink to elsewhere and
// back while calls run. It proves nothing by being lucky: whatever the order, nothing outside may
// change.
func TestSwappedSymlinkIsNotFollowed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const rounds = 200

	d := harness.Start(t)
	foreign := harness.ForeignDirectory(t)
	before := harness.Tree(t, foreign)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.AttachAndStage(t, d, claim)

	pods := filepath.Join(d.Config.KubeletDir, "pods")
	pod, link := filepath.Join(pods, "pod"), filepath.Join(pods, "link")

	require.NoError(t, os.MkdirAll(filepath.Join(pod, "empty"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(foreign, "sub"), link))

	swap := func() error { return unix.Renameat2(unix.AT_FDCWD, pod, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) }
	ctx, stop := context.WithCancel(t.Context())

	var (
		swapper sync.WaitGroup
		swaps   int
		failed  error
	)

	swapper.Go(func() {
		for ctx.Err() == nil && failed == nil {
			failed = errors.Join(swap(), swap())
			swaps++
		}
	})

	// One name is a directory there, another a file, the third nothing.
	for i := range rounds {
		target := filepath.Join(pod, []string{"mount", "empty", "new"}[i%3])

		_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: claim.VolumeID, StagingTargetPath: claim.StagingPath, TargetPath: target,
			VolumeCapability: claim.Capability, VolumeContext: claim.VolumeContext,
		})
		require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown}, status.Code(err), "%v", err)

		_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: claim.VolumeID, TargetPath: target})
		require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown}, status.Code(err), "%v", err)

		harness.RequireNothingMounted(t, foreign)
	}

	stop()
	await.Return(t, swapper.Wait, "the swaps to end")
	require.NoError(t, failed)
	require.Positive(t, swaps, "want: the symlink is swapped in meanwhile")

	for _, name := range []string{"mount", "empty", "new"} {
		_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
			VolumeId: claim.VolumeID, TargetPath: filepath.Join(pod, name),
		})
		require.NoError(t, err)
	}

	require.Equal(t, before, harness.Tree(t, foreign))
	harness.RequireNothingMounted(t, pods)
}
