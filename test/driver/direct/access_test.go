package direct_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/guest"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/logs"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// eager is a driver that probes volumes, and checks them, as often as it can, and
// says in its log what it does.
func eager(heard *logs.Buffer) harness.Option {
	return func(c *driver.Config) {
		harness.Relists(c)
		c.Node.CheckPeriod = harness.Often
		c.Log = slog.New(slog.NewTextHandler(heard, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
}

// passedOver waits until scheduled checks have left the volume alone some more
// times.
func passedOver(t *testing.T, heard *logs.Buffer, id string) {
	t.Helper()

	count := func() int {
		times := 0

		for line := range strings.Lines(heard.String()) {
			if strings.Contains(line, "a scheduled check was skipped") && strings.Contains(line, id) {
				times++
			}
		}

		return times
	}
	before := count()

	require.Eventually(t, func() bool { return count() > before+1 }, await.Limit, harness.Often, "want: the monitor passes over the volume")
}

// TestDirectIsNotTouched makes the driver try all that would touch the filesystem
// of a guest.
func TestDirectIsNotTouched(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, hold := range map[string]func(t *testing.T, d *harness.Driver, claim *csiclient.Publication){
		"published": func(*testing.T, *harness.Driver, *csiclient.Publication) {},
		"taken":     func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) { take(t, d, claim, sandbox) },
		"unmounted": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			take(t, d, claim, sandbox)
			harness.Unmount(t, claim.TargetPath)
		},
		"hidden": func(t *testing.T, _ *harness.Driver, claim *csiclient.Publication) {
			hide(t, claim.TargetPath)
		},
	} {
		for _, pool := range []string{"instant", "plain"} {
			t.Run(name+" "+pool, func(t *testing.T) {
				t.Parallel()

				heard := &logs.Buffer{}
				options := []harness.Option{eager(heard)}

				if pool == "instant" {
					options = append(options, harness.PoolAt("default", testpool.Reflink(t, harness.GiB)))
				}

				d := harness.Start(t, options...)
				claim := directClaim(t, d)
				require.NoError(t, d.Publish(t.Context(), claim))

				// With something in it that a check would find.
				vm := boot(t, deviceOf(t, d, claim).Path, "ext4")
				harness.WriteFile(t, vm.path("data"), "precious")
				vm.crash(t)

				hold(t, d, claim)
				guest.StartShim(t, d.Config.Node.Direct.Guest.ShimRoots[0], sandbox).SetUsage(t, smallUsage())

				s := watch(t, d, claim)

				for range 2 {
					tryToTouch(t, d, claim)
					passedOver(t, heard, claim.VolumeID)
					s.sawNothing(t)
					tryToCopy(t, d, claim, pool == "instant")

					if pool == "instant" {
						s.events(t) // the kernel takes a clone of the image for a read
					}

					s.sawNothing(t)
					require.NotContains(t, harness.ReasonsOf(t, d, claim.VolumeID), health.CheckOverdue)
					d.Restart(t)
					s.sawNothing(t)
				}

				require.NotContains(t, heard.String(), string(health.CheckOverdue))
			})
		}
	}
}

// hide mounts something else over a path.
func hide(t *testing.T, path string) {
	t.Helper()
	harness.RunTool(t, 0, "mount", "-t", "tmpfs", "foreign", path)
	t.Cleanup(func() { harness.Unmount(t, path) })
}

// tryToTouch makes all calls that would read, write, check or mount the filesystem.
func tryToTouch(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	ctx := t.Context()
	checks := health.NewClient(d.Conn())

	for _, how := range []string{"offline", "online"} {
		_, err := checks.Check(ctx, health.CheckRequest{VolumeID: claim.VolumeID, How: how})
		harness.RequireCode(t, err, codes.FailedPrecondition, "virtual machine")
	}

	require.NoError(t, d.Stage(ctx, claim))
	harness.RequireCode(t, d.Stage(ctx, ordinary(claim)), codes.AlreadyExists)
	harness.RequireCode(t, d.Unstage(ctx, claim), codes.FailedPrecondition)

	usage, _, _ := askUsage(t, d, claim.VolumeID, claim.StagingPath)
	require.NotZero(t, usage.Bytes.Total, "want: the usage has a total")

	larger := deviceOf(t, d, claim).SizeBytes + harness.MiB
	expandController(t, d, claim, larger)

	for _, path := range []string{claim.StagingPath, claim.TargetPath} {
		_ = expandNode(t, d, claim, path, larger) // the guest's to grow, or of no mount
	}

	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
	harness.RequireCode(t, err, codes.FailedPrecondition)
}

// tryToCopy makes the calls for which a filesystem would be frozen. In an instant
// the volume can be had as after a power failure.
func tryToCopy(t *testing.T, d *harness.Driver, claim *csiclient.Publication, instant bool) {
	t.Helper()

	ctx := t.Context()

	snapshot, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: time.Now().String(), SourceVolumeId: claim.VolumeID})
	if instant {
		require.NoError(t, err)

		_, err = d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()})
		require.NoError(t, err)
	} else {
		harness.RequireCode(t, err, codes.FailedPrecondition, "in use at")
	}

	request := harness.DirectRequest("ext4")
	request.Name, request.VolumeContentSource = time.Now().String(), harness.FromVolume(claim.VolumeID)
	request.CapacityRange = harness.RequiredBytes(deviceOf(t, d, claim).SizeBytes)

	made, err := d.CreateVolume(ctx, request)
	if instant {
		require.NoError(t, err)
		harness.DeleteVolume(t, d, made.GetVolume().GetVolumeId())
	} else {
		harness.RequireCode(t, err, codes.FailedPrecondition, "in use at")
	}
}

// TestDirectWithoutRecords loses the state directory while a guest has the volume,
// which no process mounts or reads then. What is left can be taken away.
func TestDirectWithoutRecords(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, hold := range map[string]func(t *testing.T, d *harness.Driver, claim *csiclient.Publication){
		"published": func(*testing.T, *harness.Driver, *csiclient.Publication) {},
		"taken":     func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) { take(t, d, claim, sandbox) },
		"unmounted": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			take(t, d, claim, sandbox)
			harness.Unmount(t, claim.TargetPath)
		},
		"target gone": func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
			take(t, d, claim, sandbox)
			harness.Unmount(t, claim.TargetPath)
			require.NoError(t, os.Remove(claim.TargetPath))
		},
	} {
		for _, mode := range []csi.VolumeCapability_AccessMode_Mode{harness.Writer, harness.ReaderOnly} {
			t.Run(name+mode.String(), func(t *testing.T) {
				t.Parallel()

				heard := &logs.Buffer{}
				d := harness.Start(t, eager(heard))
				claim := directClaim(t, d)

				if mode == harness.ReaderOnly {
					harness.TakeDown(t, d, claim)

					claim.Capability = csiclient.MountCapability(mode, "ext4")
					require.NoError(t, d.Attach(t.Context(), claim))
					require.NoError(t, d.Stage(t.Context(), claim))
				}

				require.NoError(t, d.Publish(t.Context(), claim))
				hold(t, d, claim)
				d.Stop()
				require.NoError(t, os.RemoveAll(d.Config.StateDir))
				d.Leaves("the volume whose record was removed", leftover.Entry)

				s := watch(t, d, claim)

				for range 2 {
					d.Restart(t)

					harness.RequireCode(t, d.Stage(t.Context(), claim), codes.FailedPrecondition, "unpublish it")
					harness.RequireCode(t, d.Stage(t.Context(), ordinary(claim)), codes.FailedPrecondition, "unpublish it")

					for _, how := range []string{"offline", "online"} {
						_, err := health.NewClient(d.Conn()).Check(t.Context(), health.CheckRequest{VolumeID: claim.VolumeID, How: how})
						harness.RequireCode(t, err, codes.FailedPrecondition, "unpublish it")
					}

					harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition)
					harness.RequireCode(t, d.Unstage(t.Context(), claim), codes.FailedPrecondition, "unpublish it")
					require.FileExists(t, harness.MountInfoPath(d, claim))
					s.sawNothing(t)
				}

				require.NoError(t, d.Unpublish(t.Context(), claim))
				require.NoDirExists(t, harness.DirectEntry(d, claim))

				// What it was taken down to is what it can be brought up from.
				require.NoError(t, d.Stage(t.Context(), claim))
				require.NoError(t, d.Publish(t.Context(), claim))
				require.NoError(t, d.Unpublish(t.Context(), claim))
				require.NoError(t, d.Unstage(t.Context(), claim))
				require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
			})
		}
	}
}

// TestDirectIsUnpublishedWithoutRecords, and leaves nothing, either.
func TestDirectIsUnpublishedWithoutRecords(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	claim.ReadOnly = true
	require.NoError(t, d.Publish(t.Context(), claim))
	take(t, d, claim, sandbox)
	d.Stop()
	require.NoError(t, os.RemoveAll(d.Config.StateDir))
	d.Leaves("the volume whose record was removed", leftover.Entry)
	d.Restart(t)

	for range 2 {
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.Empty(t, entriesIn(t, claim.TargetPath), "want: the target is empty again")
		require.NoDirExists(t, harness.DirectEntry(d, claim))
	}

	for range 2 {
		require.NoError(t, d.Unstage(t.Context(), claim))
		require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
	}
}

// TestDirectIsCheckedAtRest: a check finds what a guest has left, once no guest has the volume.
func TestDirectIsCheckedAtRest(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))
	harness.TakeDown(t, d, claim)

	found, err := health.NewClient(d.Conn()).Check(context.WithoutCancel(t.Context()), health.CheckRequest{VolumeID: claim.VolumeID, How: "offline"})
	require.NoError(t, err)
	require.Equal(t, "clean", found.Verdict)
}

// TestDirectEndsChecks has a check under way when the volume is given to a guest.
func TestDirectEndsChecks(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	run := harness.NewToolbox()
	d := harness.StartNode(t)
	claim := harness.GivenVolume(t, d, csiclient.MountCapability(harness.Writer, "ext4"), harness.DirectParameters())
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))
	t.Cleanup(func() {
		require.NoError(t, d.Unpublish(context.WithoutCancel(t.Context()), claim))
		require.NoError(t, d.Unstage(context.WithoutCancel(t.Context()), claim))
	})

	taken := harness.TakeOver(t, d, time.Minute, run)
	begun, ended := make(chan struct{}), atomic.Bool{}

	run.Before = func(ctx context.Context, command filesystem.Command) (*filesystem.Result, error) {
		if command.Tool != "e2fsck" {
			return nil, nil
		}

		close(begun)
		<-ctx.Done()
		ended.Store(true)

		return nil, context.Cause(ctx)
	}

	checked := make(chan error, 1)

	go func() {
		_, err := taken.Checker().Check(t.Context(), claim.VolumeID, fsck.HowOffline)
		checked <- err
	}()

	await.Receive(t, begun, "the check to run its tool")

	run.Before = nil

	_, err := taken.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: claim.VolumeID, StagingTargetPath: claim.StagingPath, VolumeCapability: claim.Capability, VolumeContext: claim.VolumeContext,
	})
	require.NoError(t, err)
	require.False(t, ended.Load(), "until now it blocks no other call")
	require.NoError(t, os.MkdirAll(filepath.Dir(claim.TargetPath), 0o750))

	_, err = taken.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: claim.VolumeID, StagingTargetPath: claim.StagingPath, TargetPath: claim.TargetPath,
		VolumeCapability: claim.Capability, VolumeContext: claim.VolumeContext,
	})
	require.NoError(t, err)
	require.True(t, ended.Load(), "want: the check has ended")
	harness.RequireCode(t, await.Receive(t, checked, "the answer of the check"), codes.Aborted, "virtual machine")
}
