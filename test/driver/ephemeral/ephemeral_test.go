package ephemeral_test

import (
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestEphemeralLifecycle(t *testing.T) {
	namespace.NeedRoot(t)

	for name, test := range map[string]struct {
		attributes map[string]string
		capability *csi.VolumeCapability
	}{
		"ext4":       {attributes: harness.SmallInline(), capability: csiclient.MountCapability(harness.Writer, "")},
		"xfs":        {attributes: map[string]string{"size": "300Mi"}, capability: csiclient.MountCapability(harness.MultiWriter, "xfs", "noatime")},
		"btrfs":      {attributes: map[string]string{"size": "128Mi", "csi.storage.k8s.io/fstype": "btrfs"}, capability: csiclient.MountCapability(harness.Writer, "")},
		"thick":      {attributes: map[string]string{"size": "16Mi", "provisioning": "thick"}, capability: csiclient.MountCapability(harness.Writer, "ext4")},
		"512 blocks": {attributes: map[string]string{"size": "16Mi", "blockSize": "512"}, capability: csiclient.MountCapability(harness.Writer, "ext4")},
		"directory":  {attributes: map[string]string{"size": "16Mi", "backing": "directory"}, capability: csiclient.MountCapability(harness.Writer, "")},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.InlineClaim(t, d, test.attributes)
			claim.Capability = test.capability

			require.NoError(t, d.Publish(t.Context(), claim))

			if name != "directory" {
				var image unix.Stat_t

				require.NoError(t, unix.Stat(filepath.Join(d.Pool(), "ephemeral", "images", harness.EphemeralObjects(t, d)[0]), &image))
				require.Equal(t, name == "thick", image.Blocks*512 >= image.Size, "want: only a thick image has all its blocks")
			}

			harness.WriteFile(t, filepath.Join(claim.TargetPath, "data"), "the pod's own")
			require.NoError(t, d.Publish(t.Context(), claim))

			// The controller neither lists it nor takes it for an orphan.
			require.Empty(t, harness.ListAll(t, d), "want: an inline volume is not listed")
			d.Restart(t)
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.RequireFile(t, filepath.Join(claim.TargetPath, "data"), "the pod's own")
			require.Len(t, harness.EphemeralObjects(t, d), 1, "want: the inline volume has one image")

			stats, err := d.NodeGetVolumeStats(t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
			require.NoError(t, err)
			require.Positive(t, stats.GetUsage()[0].GetTotal(), "want: the inline volume has a size")

			_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30},
			})
			harness.RequireCode(t, err, codes.FailedPrecondition, "ephemeral", "size")

			// Of another target nothing is undone.
			require.NoError(t, d.Unpublish(t.Context(), harness.AnotherTarget(claim, "elsewhere")))
			harness.RequireFile(t, filepath.Join(claim.TargetPath, "data"), "the pod's own")

			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireEphemeralGone(t, d, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))

			_, err = d.NodeGetVolumeStats(t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
			harness.RequireCode(t, err, codes.NotFound)

			// The same pod once more finds nothing of before.
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))
			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireEphemeralGone(t, d, claim)
		})
	}
}

func TestEphemeralSizeIsEnforced(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := harness.InlineClaim(t, d, harness.SmallInline())
	require.NoError(t, d.Publish(t.Context(), claim))

	file, err := os.Create(filepath.Join(claim.TargetPath, "data"))
	require.NoError(t, err)

	written, err := io.Copy(file, io.LimitReader(rand.Reader, 64*harness.MiB))
	err = errors.Join(err, file.Sync(), file.Close())
	errtext.Require(t, err, "no space left on device")
	require.Less(t, written, int64(16*harness.MiB), "want: no more than the size is written")
}

func TestReadOnlyEphemeralVolumesTakeNoWrites(t *testing.T) {
	namespace.NeedRoot(t)

	for _, attributes := range []map[string]string{
		harness.SmallInline(), {"size": "300Mi", "csi.storage.k8s.io/fstype": "xfs"}, {"backing": "directory"},
	} {
		d := harness.Start(t)
		claim := harness.InlineClaim(t, d, attributes)
		claim.ReadOnly = true
		require.NoError(t, d.Publish(t.Context(), claim))

		err := os.WriteFile(filepath.Join(claim.TargetPath, "data"), nil, 0o600)
		require.ErrorIs(t, err, unix.EROFS)

		claim.ReadOnly = false
		harness.RequireCode(t, d.Publish(t.Context(), claim), codes.AlreadyExists, "readonly")
	}
}

func TestInvalidEphemeralRequestsAreRefused(t *testing.T) {
	d := harness.Start(t)
	blocked := func(c *csiclient.Publication) { c.Capability = csiclient.BlockCapability(harness.Writer) }
	with := func(key, value string) func(*csiclient.Publication) {
		return func(c *csiclient.Publication) { c.VolumeContext[key] = value }
	}
	named := func(id string) func(*csiclient.Publication) {
		return func(c *csiclient.Publication) { c.VolumeID = id }
	}

	for name, test := range map[string]struct {
		change func(*csiclient.Publication)
		code   codes.Code
		words  []string
	}{
		"block access":       {blocked, codes.InvalidArgument, []string{"block"}},
		"no capability":      {func(c *csiclient.Publication) { c.Capability = nil }, codes.InvalidArgument, []string{"volume_capability"}},
		"several nodes":      {func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(harness.NodesWrite, "") }, codes.InvalidArgument, []string{"MULTI_NODE"}},
		"unknown attribute":  {with("colour", "blue"), codes.InvalidArgument, []string{"colour"}},
		"unknown pool":       {with("pool", "../../etc"), codes.InvalidArgument, []string{"pool", "default"}},
		"unknown filesystem": {with("csi.storage.k8s.io/fstype", "ntfs"), codes.InvalidArgument, []string{"ntfs"}},
		"mkfs option":        {with("mkfsOptions", "-d /etc"), codes.InvalidArgument, []string{"mkfsOptions"}},
		"size of words":      {with("size", "large"), codes.InvalidArgument, []string{"size", "large"}},
		"size of nothing":    {with("size", "0"), codes.InvalidArgument, []string{"size"}},
		"negative size":      {with("size", "-1Gi"), codes.InvalidArgument, []string{"size"}},
		"endless size":       {with("size", "9223372036854775807"), codes.InvalidArgument, []string{"size"}},
		"size that wraps":    {with("size", "9223372036854775808"), codes.InvalidArgument, []string{"size"}},
		"size with a cost":   {with("size", "1e-999999999"), codes.InvalidArgument, []string{"size"}},
		"more than the pool": {with("size", "800Ti"), codes.ResourceExhausted, []string{"default"}},
		"more than allowed":  {with("size", "2Gi"), codes.OutOfRange, []string{"--max-volume-size"}},
		"a flag":             {func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(harness.Writer, "", "bind") }, codes.InvalidArgument, []string{"bind"}},
		"a flag's refusal": {func(c *csiclient.Publication) {
			c.Capability = csiclient.MountCapability(harness.Writer, "", "nonsense")
		}, codes.InvalidArgument, []string{"nonsense"}},
		"target outside":    {func(c *csiclient.Publication) { c.TargetPath = "/etc/passwd.d" }, codes.InvalidArgument, nil},
		"no id":             {named(""), codes.InvalidArgument, []string{"volume_id"}},
		"an id with a path": {named("../../images/x"), codes.InvalidArgument, []string{"volume_id"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := d
			if test.code == codes.OutOfRange {
				d = harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 1 << 30 })
			}

			claim := harness.InlineClaim(t, d, harness.SmallInline())
			target := claim.TargetPath
			require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o750))

			asked := *claim
			test.change(&asked)

			if name == "a flag's refusal" {
				namespace.NeedRoot(t) // the filesystem refuses it, at its mount
			}

			_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
				VolumeId: asked.VolumeID, TargetPath: asked.TargetPath, VolumeCapability: asked.Capability,
				VolumeContext: asked.VolumeContext,
			})
			harness.RequireCode(t, err, test.code, test.words...)
			require.NoDirExists(t, target)
			require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left of the refused inline volume")
		})
	}
}

// TestEphemeralAboveALoweredMaximum: a maximum counts for new volumes, and a call may come again.
func TestEphemeralAboveALoweredMaximum(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := harness.InlineClaim(t, d, harness.SmallInline())
	require.NoError(t, d.Publish(t.Context(), claim))

	d.Restart(t, func(c *driver.Config) { c.MaxVolumeBytes = harness.MiB })
	require.NoError(t, d.Publish(t.Context(), claim))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.OutOfRange, "--max-volume-size")
}

// TestEphemeralIDIsOnlyAName takes ids that a pool's own could be confused with.
func TestEphemeralIDIsOnlyAName(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	volume := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.BringUp(t, d, volume)
	harness.WriteFile(t, filepath.Join(volume.TargetPath, "data"), "kept")

	for _, id := range []string{volume.VolumeID, "images", "-rf", "csi-" + strings.Repeat("é", 30), "a b;c$(d)"} {
		claim := harness.InlineClaim(t, d, harness.SmallInline())
		claim.VolumeID = id
		require.NoError(t, d.Publish(t.Context(), claim), id)
		require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))

		held := harness.EphemeralObjects(t, d)
		require.Len(t, held, 1, "want: the inline volume has one image")
		require.NotContains(t, held[0], id)
		require.NoError(t, d.Unpublish(t.Context(), claim), id)
		harness.RequireEphemeralGone(t, d, claim)
	}

	harness.RequireFile(t, filepath.Join(volume.TargetPath, "data"), "kept")
}

func TestAnotherEphemeralRequestConflicts(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t)
	claim := harness.InlineClaim(t, d, harness.SmallInline())
	require.NoError(t, d.Publish(t.Context(), claim))

	for name, change := range map[string]func(*csiclient.Publication){
		"size":       func(c *csiclient.Publication) { c.VolumeContext["size"] = "32Mi" },
		"filesystem": func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(harness.Writer, "xfs") },
		"mode":       func(c *csiclient.Publication) { c.Capability = csiclient.MountCapability(harness.MultiWriter, "") },
		"readonly":   func(c *csiclient.Publication) { c.ReadOnly = true },
	} {
		other := *claim
		other.VolumeContext = maps.Clone(claim.VolumeContext)
		change(&other)
		require.Equal(t, codes.AlreadyExists.String(), codeOf(d.Publish(t.Context(), &other)), name)
	}

	// What the CO says of the pod is no part of the volume.
	again := *claim
	again.VolumeContext = maps.Clone(claim.VolumeContext)
	again.VolumeContext["csi.storage.k8s.io/pod.name"] = "renamed"
	require.NoError(t, d.Publish(t.Context(), &again))

	harness.RequireCode(t, d.Publish(t.Context(), harness.AnotherTarget(claim, "elsewhere")), codes.FailedPrecondition, claim.TargetPath)

	// Two volumes, two pods: nothing is shared.
	second := harness.InlineClaim(t, d, harness.SmallInline())
	require.NoError(t, d.Publish(t.Context(), second))
	harness.WriteFile(t, filepath.Join(second.TargetPath, "data"), "second")
	require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	harness.RequireFile(t, filepath.Join(second.TargetPath, "data"), "second")

	// A target that another volume uses.
	third := harness.InlineClaim(t, d, harness.SmallInline())
	third.TargetPath = second.TargetPath
	harness.RequireCode(t, d.Publish(t.Context(), third), codes.FailedPrecondition)
	require.NoError(t, d.Unpublish(t.Context(), third))
	harness.RequireFile(t, filepath.Join(second.TargetPath, "data"), "second")
}

// TestEphemeralAfterAReboot takes mounts away as a reboot does.
func TestEphemeralAfterAReboot(t *testing.T) {
	namespace.NeedRoot(t)

	for _, backing := range []string{"image", "directory"} {
		t.Run(backing, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "backing": backing})
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.WriteFile(t, filepath.Join(claim.TargetPath, "data"), "before")

			d.Stop()
			harness.Unmount(t, claim.TargetPath)
			require.Len(t, harness.EphemeralObjects(t, d), 1, "want: the image stays over a reboot")
			d.Restart(t)
			harness.RequireEphemeralGone(t, d, claim)

			// Its space is no longer provisioned, and the pod starts afresh.
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoFileExists(t, filepath.Join(claim.TargetPath, "data"))

			// Behind the driver's back while it runs.
			harness.Unmount(t, claim.TargetPath)
			require.NoError(t, d.Publish(t.Context(), claim))
			require.Len(t, harness.EphemeralObjects(t, d), 1, "want: the inline volume has one image")
			harness.Unmount(t, claim.TargetPath)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireEphemeralGone(t, d, claim)
		})
	}
}

// withSecondPool starts a driver that has the pool "second", too.
func withSecondPool(t *testing.T) *harness.Driver {
	t.Helper()
	namespace.NeedRoot(t)

	return harness.Start(t, harness.PoolAt("second", filepath.Join(t.TempDir(), "pool")))
}

// failPool puts an empty read-only filesystem in place of the default pool of a driver that does not run,
// until mend is called.
func failPool(t *testing.T, d *harness.Driver) (mend func()) {
	t.Helper()

	aside := d.Pool() + ".aside"
	require.NoError(t, os.Rename(d.Pool(), aside))
	require.NoError(t, os.Mkdir(d.Pool(), 0o700))
	require.NoError(t, unix.Mount("failed", d.Pool(), "tmpfs", unix.MS_RDONLY, ""))

	return func() {
		harness.Unmount(t, d.Pool())
		require.NoError(t, os.Remove(d.Pool()))
		require.NoError(t, os.Rename(aside, d.Pool()))
	}
}

// TestEphemeralInAnotherPoolThanBefore: its record stays until its data in the first pool, which fails,
// are removed.
func TestEphemeralInAnotherPoolThanBefore(t *testing.T) {
	d := withSecondPool(t)
	claim := harness.InlineClaim(t, d, harness.SmallInline())
	require.NoError(t, d.Publish(t.Context(), claim))

	d.Stop()
	harness.Unmount(t, claim.TargetPath)
	mend := failPool(t, d)
	d.Restart(t)

	claim.VolumeContext["pool"] = "second"
	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.Unavailable, `pool "default"`)

	d.Stop()
	mend()
	d.Restart(t)
	require.NoError(t, d.Publish(t.Context(), claim))
	require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left in the first pool")
}

// TestEphemeralMkfsOptionsThatTheKernelDoesNotMount leaves no volume behind.
func TestEphemeralMkfsOptionsThatTheKernelDoesNotMount(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, func(c *driver.Config) { c.Node.EphemeralMkfsOptions = true })
	claim := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "mkfsOptions": "-O quota"})

	err := d.Publish(t.Context(), claim)
	if err == nil {
		require.NoError(t, d.Unpublish(t.Context(), claim))
		t.Skip("this kernel mounts it")
	}

	harness.RequireCode(t, err, codes.InvalidArgument, "-O quota", "CONFIG_QFMT_V2")
	require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left of the refused inline volume")
}

// TestEphemeralWithoutRecords: the state directory is lost.
func TestEphemeralWithoutRecords(t *testing.T) {
	namespace.NeedRoot(t)

	for _, backing := range []string{"image", "directory"} {
		t.Run(backing, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "backing": backing})
			require.NoError(t, d.Publish(t.Context(), claim))

			d.Stop()
			require.NoError(t, os.RemoveAll(d.Config.StateDir))
			d.Restart(t)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left of the inline volume")
		})
	}
}

// TestUnpublishWithoutRecordsBesideAFailedPool: the state is lost, and a pool fails that has neither of
// the volumes.
func TestUnpublishWithoutRecordsBesideAFailedPool(t *testing.T) {
	d := withSecondPool(t)
	inline := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "pool": "second"})
	volume := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: map[string]string{"pool": "second"}})
	harness.BringUp(t, d, volume)
	require.NoError(t, d.Publish(t.Context(), inline))

	d.Stop()
	require.NoError(t, os.RemoveAll(d.Config.StateDir))
	mend := failPool(t, d)
	d.Restart(t)

	for _, claim := range []*csiclient.Publication{inline, volume} {
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.ErrorIs(t, unix.Unmount(claim.TargetPath, 0), unix.EINVAL, "want: nothing is mounted any more")
	}

	require.NoError(t, d.Unstage(t.Context(), volume))
	d.Stop()
	mend()
	d.Restart(t)
	require.NoError(t, os.Remove(filepath.Join(d.Config.Pools["second"], "images", volume.VolumeID+".img")))
}

// TestEphemeralCountsForTheCapacity: both kinds of volumes share a pool of 256 MiB, which none of
// them gets twice.
func TestEphemeralCountsForTheCapacity(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.SmallPool(t, 256*harness.MiB)
	inline := func(size string) *csiclient.Publication {
		return harness.InlineClaim(t, d, map[string]string{"size": size, "backing": "directory"})
	}
	create := func(name string, bytes int64) error {
		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, Parameters: harness.DirectoryBacked(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")},
		})

		return err
	}

	first := inline("128Mi")
	require.NoError(t, d.Publish(t.Context(), first))

	capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)
	require.InDelta(t, 128*harness.MiB, capacity.GetAvailableCapacity(), harness.IdentityBytes, "want: the inline volume takes its size of the pool")

	harness.RequireCode(t, create("too large", 129*harness.MiB), codes.ResourceExhausted)
	harness.RequireCode(t, d.Publish(t.Context(), inline("129Mi")), codes.ResourceExhausted, "default")
	require.NoError(t, create("fits", 96*harness.MiB))

	second := inline("48Mi")
	harness.RequireCode(t, d.Publish(t.Context(), second), codes.ResourceExhausted)
	d.Restart(t)
	harness.RequireCode(t, d.Publish(t.Context(), second), codes.ResourceExhausted)
	require.NoError(t, d.Unpublish(t.Context(), first))
	require.NoError(t, d.Publish(t.Context(), second))
	require.NoError(t, d.Unpublish(t.Context(), second))
}

func codeOf(err error) string { return status.Code(err).String() }

// TestLeakedFreezeOfAnInlineVolumeEnds: it freezes the volume and leaves it so: its pod ends
// nevertheless, and its image is removed only once no device has it.
func TestLeakedFreezeOfAnInlineVolumeEnds(t *testing.T) {
	namespace.NeedRoot(t)

	for name, leave := range map[string]func(t *testing.T, claim *csiclient.Publication){
		"unpublished": func(*testing.T, *csiclient.Publication) {},
		"unmounted by another program": func(t *testing.T, claim *csiclient.Publication) {
			t.Helper()
			harness.Unmount(t, claim.TargetPath)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.InlineClaim(t, d, harness.SmallInline())
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoError(t, harness.AtRoot(claim.TargetPath, filesystem.Freeze))
			leave(t, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireEphemeralGone(t, d, claim)
		})
	}
}
