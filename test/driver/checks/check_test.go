package checks_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// askCheck has the driver check a volume on demand.
func askCheck(ctx context.Context, d *harness.Driver, id, how string) (*health.VolumeCheck, error) {
	return health.NewClient(d.Conn()).Check(ctx, health.CheckRequest{VolumeID: id, How: how})
}

// requireCheck also requires that the driver reports it afterwards, and that it
// has left nothing behind.
func requireCheck(t *testing.T, d *harness.Driver, claim *csiclient.Publication, verdict, how string) *health.VolumeCheck {
	t.Helper()

	began := time.Now()
	found, err := askCheck(t.Context(), d, claim.VolumeID, fsck.HowOnline)
	require.NoError(t, err)
	require.Equal(t, verdict, found.Verdict, found.Detail)
	require.Equal(t, how, found.How)
	require.WithinRange(t, found.At, began, time.Now())
	require.Positive(t, found.Took, "want: the check takes some time")
	require.Equal(t, verdict == fsck.VerdictClean, found.Detail == "", found.Detail)

	reported := harness.ReportOf(t, d, claim.VolumeID).Check
	require.NotNil(t, reported, "want: the report has the check")
	require.Equal(t, verdict, reported.Verdict)
	require.True(t, found.At.Equal(reported.At), "%s %s", found.At, reported.At)

	if verdict == fsck.VerdictClean {
		require.True(t, reported.CleanAt.Equal(reported.At), "want: the check that was reported found the filesystem clean")
	}

	requireNoScratch(t, d)

	return found
}

func requireNoScratch(t *testing.T, d *harness.Driver) {
	t.Helper()

	left, err := os.ReadDir(filepath.Join(d.Pool(), "scratch"))
	require.NoError(t, err)
	require.Empty(t, left, "want: the check leaves no scratch file")
}

// eachPool has a driver with a pool of either sort, for each filesystem.
func eachPool(t *testing.T, test func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, fsType string)) {
	t.Helper()
	namespace.NeedRoot(t)
	t.Parallel()

	for name, at := range map[string]func(testing.TB, int64) string{"reflink": testpool.Reflink, "plain": testpool.Plain} {
		for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
			t.Run(name+" "+fsType, func(t *testing.T) {
				t.Parallel()

				place := at(t, 2<<30)
				d := harness.Start(t, func(c *driver.Config) { c.Pools["default"] = place })
				test(t, d, harness.NewVolume(t, d, harness.MountRequest(fsType, harness.SizeFor(fsType))), fsType)
			})
		}
	}
}

// busy writes to the volume until the test ends it: new files, appended ones, and
// files that are open and have been deleted. stop says how often it did.
func busy(t *testing.T, directory string) (stop func() int64) {
	t.Helper()

	for _, name := range []string{"held 1", "held 2"} {
		file, err := os.Create(filepath.Join(directory, name))
		require.NoError(t, err)
		t.Cleanup(func() { file.Close() })

		_, err = file.Write(harness.Random(t, 64<<10))
		require.NoError(t, err)
		require.NoError(t, os.Remove(file.Name()))
	}

	var (
		rounds atomic.Int64
		ending atomic.Bool
	)

	ended := make(chan error, 1)
	content := harness.Random(t, 128<<10)

	go func() {
		var err error
		for err == nil && !ending.Load() {
			path := filepath.Join(directory, strconv.FormatInt(rounds.Add(1)%50, 10))
			err = errors.Join(os.WriteFile(path, content, 0o600), os.Rename(path, path+" renamed"))
		}

		ended <- err
	}()

	return func() int64 {
		ending.Store(true)
		require.NoError(t, await.Receive(t, ended, "the writer to end"))

		return rounds.Load()
	}
}

func TestAHealthyVolumeIsCheckedInUse(t *testing.T) {
	eachPool(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, _ string) {
		t.Helper()

		_, err := askCheck(t.Context(), d, claim.VolumeID, fsck.HowOnline)
		harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, "no filesystem")

		harness.BringUp(t, d, claim)
		require.Equal(t, fsck.HowStage, harness.ReportOf(t, d, claim.VolumeID).Check.How)
		require.Equal(t, fsck.VerdictClean, harness.ReportOf(t, d, claim.VolumeID).Check.Verdict)

		_, err = askCheck(t.Context(), d, claim.VolumeID, fsck.HowOffline)
		harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, "in use")

		stop := busy(t, claim.TargetPath)

		for range 3 {
			requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOnline)
			harness.RequireThawed(t, claim.StagingPath)
		}

		require.Positive(t, stop(), "want: the volume is written meanwhile")
		harness.AwaitReason(t, d, claim.VolumeID, "")
	})
}

func TestAnOfflineCheckChangesNothing(t *testing.T) {
	eachPool(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, _ string) {
		t.Helper()
		harness.BringUp(t, d, claim)
		harness.WriteBlock(t, claim)

		image, crashed := harness.ImageOf(d, claim.VolumeID), filepath.Join(d.Root, "crashed")
		output, err := child.Command(t, "cp", "--sparse=always", image, crashed).CombinedOutput()
		require.NoError(t, err, "%s", output)
		harness.TakeDown(t, d, claim)

		for _, what := range []string{"unmounted in order", "not unmounted"} {
			before := harness.ImageSum(t, image)
			requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOffline)
			require.Equal(t, before, harness.ImageSum(t, image), what)

			output, err := child.Command(t, "cp", "--sparse=always", crashed, image).CombinedOutput()
			require.NoError(t, err, "%s", output)
		}

		harness.BringUp(t, d, claim)
		harness.RequireBlock(t, claim)
	})
}

// TestRefusedCheckHasNoVerdict, and names the cause.
func TestRefusedCheckHasNoVerdict(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, harness.SharedPool)
	refused := func(t *testing.T, claim *csiclient.Publication, code codes.Code, words ...string) {
		t.Helper()

		_, err := askCheck(t.Context(), d, claim.VolumeID, fsck.HowOnline)
		harness.RequireCode(t, err, code, append(words, claim.VolumeID)...)
		requireNoScratch(t, d)
	}

	t.Run("unknown", func(t *testing.T) {
		id := volume.NewID()
		refused(t, &csiclient.Publication{VolumeID: id}, codes.NotFound)
	})
	t.Run("hostile", func(t *testing.T) {
		_, err := askCheck(t.Context(), d, "../../etc", fsck.HowOnline)
		harness.RequireCode(t, err, codes.InvalidArgument)
		_, err = askCheck(t.Context(), d, "", fsck.HowOnline)
		harness.RequireCode(t, err, codes.InvalidArgument)
		_, err = askCheck(t.Context(), d, "volume", "quickly")
		harness.RequireCode(t, err, codes.InvalidArgument, "quickly")
	})
	t.Run("directory", func(t *testing.T) {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
		refused(t, claim, codes.FailedPrecondition, "directory")
		harness.BringUp(t, d, claim)
		refused(t, claim, codes.FailedPrecondition, "directory")

		_, err := askCheck(t.Context(), d, claim.VolumeID, fsck.HowOffline)
		harness.RequireCode(t, err, codes.FailedPrecondition, "directory")
	})
	t.Run("raw block", func(t *testing.T) {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}})
		refused(t, claim, codes.FailedPrecondition, "raw block")
		harness.BringUp(t, d, claim)
		refused(t, claim, codes.FailedPrecondition, "raw block")
	})
	t.Run("read by several nodes", func(t *testing.T) {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
		harness.BringUp(t, d, claim)
		harness.TakeDown(t, d, claim)

		claim.Capability = csiclient.MountCapability(harness.NodesRead, "")
		harness.BringUp(t, d, claim)
		refused(t, claim, codes.FailedPrecondition, "nodes")
	})
	t.Run("attached elsewhere", func(t *testing.T) {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
		harness.BringUp(t, d, claim)
		harness.TakeDown(t, d, claim)

		image, err := os.Open(harness.ImageOf(d, claim.VolumeID))
		require.NoError(t, err)

		defer image.Close()

		await.Flock(t, image, unix.LOCK_EX)
		refused(t, claim, codes.FailedPrecondition, "another node")
	})
	t.Run("between two UUIDs", func(t *testing.T) {
		claim := harness.NewVolume(t, d, harness.MountRequest("xfs", harness.SizeFor("xfs")))
		harness.BringUp(t, d, claim)
		harness.TakeDown(t, d, claim)

		// The last copy of the superblock is the last to be changed.
		image := harness.ImageOf(d, claim.VolumeID)
		super := make([]byte, 96)

		file, err := os.Open(image)
		require.NoError(t, err)

		defer file.Close()

		_, err = file.ReadAt(super, 0)
		require.NoError(t, err)

		number := func(at int) int64 { return int64(binary.BigEndian.Uint32(super[at:])) }
		harness.Overwrite(t, image, (number(88)-1)*number(84)*number(4)+32, harness.Random(t, 16))
		refused(t, claim, codes.FailedPrecondition, "UUID")
	})
	t.Run("stopped writing", func(t *testing.T) {
		claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
		harness.BringUp(t, d, claim)
		require.NoError(t, harness.AtRoot(claim.StagingPath, harness.ShutDownFilesystem))
		refused(t, claim, codes.FailedPrecondition, "unstage")
	})
}

func TestAReadOnlyVolumeIsCheckedWithoutAFreeze(t *testing.T) {
	eachPool(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, _ string) {
		t.Helper()
		harness.BringUp(t, d, claim)
		harness.WriteBlock(t, claim)
		harness.TakeDown(t, d, claim)

		claim.Capability = csiclient.MountCapability(harness.ReaderOnly, claim.Capability.GetMount().GetFsType())
		harness.BringUp(t, d, claim)
		requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOnline)
	})
}

// TestCleanCheckClearsTheKernelsErrors: ext4 counts an error that leaves no damage.
func TestCleanCheckClearsTheKernelsErrors(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, how := range []string{fsck.HowOnline, fsck.HowStage} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			// A filesystem that the error has made read-only is not checked online.
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4", "errors=continue")},
			})
			harness.BringUp(t, d, claim)

			trigger := fmt.Sprintf("/sys/fs/ext4/loop%d/trigger_fs_error", harness.DevicesOf(t, d, claim.VolumeID)[0].Number)
			require.NoError(t, os.WriteFile(trigger, []byte("1\n"), 0))
			harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

			if how == fsck.HowOnline {
				requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOnline)
			} else {
				harness.TakeDown(t, d, claim)
				harness.BringUp(t, d, claim)
			}

			harness.AwaitReason(t, d, claim.VolumeID, "")

			// And not for ever.
			trigger = fmt.Sprintf("/sys/fs/ext4/loop%d/trigger_fs_error", harness.DevicesOf(t, d, claim.VolumeID)[0].Number)
			require.NoError(t, os.WriteFile(trigger, []byte("1\n"), 0))
			harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)
		})
	}
}

func TestChecksAreCounted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.HTTPEndpoint = served.Address() })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)
	harness.BringUp(t, d, claim)
	requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOnline)

	text, err := served.Get(t.Context(), d.Config.HTTPEndpoint, "/metrics")
	require.NoError(t, err)
	require.Contains(t, text, `touchstone_filesystem_checks_total{how="online",verdict="clean"} 1`)
	require.Contains(t, text, `touchstone_filesystem_checks_total{how="stage",verdict="clean"} 1`)
	require.Contains(t, text, `touchstone_filesystem_check_duration_seconds_count{fstype="ext4",how="online"} 1`)
}

// TestADeletedVolumeIsNotDamaged has a controller in another process delete a volume that is not in
// use.
func TestADeletedVolumeIsNotDamaged(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.EventsOnly, harness.InMode(driver.ModeNode))
	controller := harness.Start(t, harness.InMode(driver.ModeController), func(c *driver.Config) { c.Pools = d.Config.Pools })
	made := harness.NewVolume(t, controller, harness.Formatted("ext4"))

	claim := d.Claim(t, made.VolumeID)
	claim.VolumeContext, claim.Capability = made.VolumeContext, made.Capability
	require.NoError(t, controller.Attach(t.Context(), claim))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))
	harness.Populate(t, claim.TargetPath)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))
	require.NoError(t, controller.Detach(t.Context(), claim))

	image := harness.ImageOf(d, claim.VolumeID)
	harness.DamageInodes(t, "ext4", image)
	requireCheck(t, d, claim, fsck.VerdictDamaged, fsck.HowOffline)
	harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

	harness.DeleteVolume(t, controller, claim.VolumeID)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		_, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID})
		rpccode.Require(c, err, codes.NotFound)

		report, err := health.NewClient(d.Conn()).Report(t.Context())
		require.NoError(c, err)
		require.False(c, slices.ContainsFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == claim.VolumeID }), "want: the report does not have the volume")
	}, await.Limit, 10*time.Millisecond, "want: a deleted volume has no health")
}
