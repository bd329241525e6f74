package health_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func TestHealthOfAPoolThatFillsUp(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	place := testpool.Plain(t, 1024*harness.MiB)
	d := harness.Start(t, harness.Relists, harness.PoolAt("default", place))
	harness.AwaitStorage(t, d, "")

	filling := filepath.Join(filepath.Dir(place), "filling")
	file, err := os.Create(filling)
	require.NoError(t, err)

	defer file.Close()

	err = unix.Fallocate(int(file.Fd()), 0, 0, 512*harness.MiB)
	for err == nil {
		var info os.FileInfo

		info, err = file.Stat()
		require.NoError(t, err)
		err = unix.Fallocate(int(file.Fd()), 0, info.Size(), 16*harness.MiB)
	}

	require.ErrorIs(t, err, unix.ENOSPC)
	harness.AwaitStorage(t, d, "default", health.PoolNearlyFull)

	require.NoError(t, os.Remove(filling))
	require.NoError(t, file.Close())
	harness.AwaitStorage(t, d, "")
}

// TestAReadOnlyPoolIsReported has the pool refuse new files for a while. No remount
// does that as long as a controller has its lock in the pool open.
func TestAReadOnlyPoolIsReported(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.Relists, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
	harness.AwaitStorage(t, d, "")

	served.Inject(t, faults.Fault{Name: "pool/scratch", Ops: faults.Names, Errno: unix.EROFS})
	harness.AwaitStorage(t, d, "default", health.PoolReadOnly)

	served.Release(t)
	harness.AwaitStorage(t, d, "")
}

// TestAHiddenPoolIsReported mounts something else over the pool: whatever is made
// in its directories then, is not found.
func TestAHiddenPoolIsReported(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.Relists)
	harness.AwaitStorage(t, d, "")

	require.NoError(t, unix.Mount("hiding", d.Pool(), "tmpfs", 0, ""))
	harness.AwaitStorage(t, d, "default", health.PoolUnreachable)

	harness.Unmount(t, d.Pool())
	harness.AwaitStorage(t, d, "")
}

// TestEachReasonOfTheStorageIsReportedOnce hides two pools and has a third refuse new files.
func TestEachReasonOfTheStorageIsReportedOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, second := faults.Serve(t), t.TempDir()
	d := harness.Start(t, harness.Relists, harness.PoolAt("second", second), harness.PoolAt("third", filepath.Join(served.Path, "pool")))
	harness.AwaitStorage(t, d, "")

	served.Inject(t, faults.Fault{Name: "pool/scratch", Ops: faults.Names, Errno: unix.EROFS})

	for _, path := range []string{d.Pool(), second} {
		require.NoError(t, unix.Mount("hiding", path, "tmpfs", 0, ""))
		t.Cleanup(func() { harness.Unmount(t, path) })
	}

	harness.AwaitStorage(t, d, "", health.PoolReadOnly, health.PoolUnreachable)
	served.Release(t)
}

// TestAPoolThatTheKernelMadeReadOnlyIsReported has the kernel stop writes to the
// pool. Nothing but an unmount takes that back, so the driver is restarted.
func TestAPoolThatTheKernelMadeReadOnlyIsReported(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	place := testpool.Plain(t, 1024*harness.MiB)
	mounted := filepath.Dir(place)
	require.NoError(t, unix.Mount("", mounted, "", unix.MS_REMOUNT, "errors=remount-ro"))

	d := harness.Start(t, harness.Relists, harness.PoolAt("default", place))
	harness.AwaitStorage(t, d, "")

	triggerErrorOn(t, sourceOf(t, mounted))
	harness.AwaitStorage(t, d, "default", health.PoolReadOnly)
}

// TestAHangingPoolIsReportedAndDelaysNothingElse has one of two pools give no answer: it and its
// volumes are reported, and nothing else waits for it. (Only the tools of an ext4
// do: they ask each loop device that is mounted anywhere for its file.)
func TestAHangingPoolIsReportedAndDelaysNothingElse(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	d := harness.Start(t, harness.Relists, probing(200*time.Millisecond), harness.PoolAt("slow", filepath.Join(served.Path, "pool")))

	slow := &sufferer{Driver: d, claim: harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "slow", Parameters: map[string]string{"pool": "slow"},
	})}
	harness.BringUp(t, d, slow.claim)

	well := &sufferer{Driver: d, claim: harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "well"})}
	well.image = harness.ImageOf(d, well.claim.VolumeID)
	harness.BringUp(t, d, well.claim)

	slow.awaitWell(t)
	well.awaitWell(t)
	harness.AwaitStorage(t, d, "")

	hang(t, served, faults.Fault{Hang: true})
	harness.AwaitStorage(t, d, "slow", health.PoolUnreachable)
	slow.await(t, diagnosis{
		node: []health.Reason{health.ProbeTimedOut}, controller: []health.Reason{health.ProbeTimedOut},
	})

	// Calls for the pool wait for its capacity.
	thick := harness.Formatted("ext4")
	thick.Name, thick.Parameters = "thick", map[string]string{"pool": "slow", "provisioning": "thick"}
	inline := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "pool": "slow"})

	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()

	_, err := d.CreateVolume(short, thick)
	harness.RequireCode(t, err, codes.DeadlineExceeded)
	harness.RequireCode(t, d.Publish(short, inline), codes.DeadlineExceeded)

	// The other pool's volumes are probed, used and created as always.
	well.awaitWell(t)
	require.NoError(t, os.Rename(well.image, well.aside(t, well.image)))
	well.await(t, diagnosis{
		node: []health.Reason{health.BackingFileMissing}, controller: []health.Reason{health.BackingFileMissing},
	})
	require.NoError(t, os.Rename(well.aside(t, well.image), well.image))
	well.awaitWell(t)

	for n, kind := range []*csi.CreateVolumeRequest{rawBlock(), harness.Formatted("xfs"), {Parameters: harness.DirectoryBacked()}} {
		kind.Name = fmt.Sprint("more ", n)
		more := harness.NewVolume(t, d, kind)
		harness.BringUp(t, d, more)
		harness.TakeDown(t, d, more)
		harness.DeleteVolume(t, d, more.VolumeID)
	}

	served.Release(t)
	harness.AwaitStorage(t, d, "")
	slow.awaitWell(t)
	well.awaitWell(t)
	harness.NewVolume(t, d, thick)
	require.NoError(t, d.Publish(t.Context(), inline))
}

// TestHealthOfAPoolWithoutAServer: the server of the pool's filesystem is killed, so that each call
// on it fails at once.
func TestHealthOfAPoolWithoutAServer(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.Relists, harness.PoolAt("dead", filepath.Join(served.Path, "pool")))

	sick := &sufferer{Driver: d, claim: harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters: map[string]string{"pool": "dead"},
	})}
	require.NoError(t, d.Attach(t.Context(), sick.claim))
	harness.AwaitStorage(t, d, "")

	served.Kill(t)
	d.Leaves("a pool that cannot be listed", leftover.Entry)
	harness.AwaitStorage(t, d, "dead", health.PoolUnreachable)
	require.NoError(t, d.Detach(t.Context(), sick.claim))
}

// TestUnstagingFromAPoolWithoutAServer: a raw block volume, with a second device for its read-only publication,
// can be unpublished and unstaged although its image answers nothing any more.
func TestUnstagingFromAPoolWithoutAServer(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.PoolAt("dead", filepath.Join(served.Path, "pool")))
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters:         map[string]string{"pool": "dead"},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.MultiWriter)},
	})
	harness.BringUp(t, d, claim)

	reader := harness.AnotherTarget(claim, "reader")
	reader.ReadOnly = true
	require.NoError(t, d.Publish(t.Context(), reader))

	devices := func() []loop.Attachment {
		attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
		require.NoError(t, err)

		return slices.DeleteFunc(attached, func(each loop.Attachment) bool {
			return !strings.Contains(each.BackingPath, claim.VolumeID)
		})
	}
	require.Len(t, devices(), 2, "want: the reader has a device of its own")

	served.Kill(t)
	d.Leaves("a pool that cannot be listed", leftover.Entry)

	require.NoError(t, d.Unpublish(t.Context(), reader))
	require.Len(t, devices(), 1, "want: the reader's device has gone with it")
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Unstage(t.Context(), claim))
	require.Empty(t, devices(), "want: no device is left")
	require.NoError(t, d.Detach(t.Context(), claim))
}

// TestAHangingImageDelaysNoOtherVolume has the image of one volume give no answer: the
// volume beside it in the same pool is probed and served, as always.
func TestAHangingImageDelaysNoOtherVolume(t *testing.T) {
	namespace.NeedRoot(t)

	i := illness{served: true, options: []harness.Option{probing(200 * time.Millisecond)}}
	slow := i.admit(t, harness.EventsOnly)
	well := &sufferer{Driver: slow.Driver, served: slow.served, claim: harness.NewVolume(t, slow.Driver, &csi.CreateVolumeRequest{Name: "well"})}
	well.image = harness.ImageOf(well.Driver, well.claim.VolumeID)
	harness.BringUp(t, well.Driver, well.claim)
	slow.awaitWell(t)
	well.awaitWell(t)

	name, err := filepath.Rel(slow.served.Path, slow.image)
	require.NoError(t, err)

	// Only an event, here that of the image's new mode, has it probed.
	require.NoError(t, os.Chmod(slow.image, 0o640))
	hang(t, slow.served, faults.Fault{Name: name, Ops: faults.Names, Hang: true})
	slow.await(t, diagnosis{
		node: []health.Reason{health.ProbeTimedOut}, controller: []health.Reason{health.ProbeTimedOut},
	})

	well.awaitWell(t)
	require.NoError(t, os.Rename(well.image, well.aside(t, well.image)))
	well.await(t, diagnosis{
		node: []health.Reason{health.BackingFileMissing}, controller: []health.Reason{health.BackingFileMissing},
	})
	require.NoError(t, os.Rename(well.aside(t, well.image), well.image))
	well.awaitWell(t)
	restage(t, well)

	slow.served.Release(t)
	slow.awaitWell(t)
	well.awaitWell(t)
}

// TestAFailedStateIsReportedUntilARestart: the disk fails below the state: from then on nothing is changed, which the
// storage's health says until a restart.
func TestAFailedStateIsReportedUntilARestart(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.Relists, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })
	harness.AwaitStorage(t, d, "")

	served.Inject(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: t.Name(), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	harness.RequireCode(t, err, codes.Unavailable, "state")
	harness.AwaitStorage(t, d, "state", health.StateStoreFailed)

	// It is not to be trusted again: what was lost shows in the next start.
	served.Release(t)
	harness.AwaitStorage(t, d, "state", health.StateStoreFailed)
	d.Restart(t)
	harness.AwaitStorage(t, d, "")
}

// TestStateHasSpaceAgain fills the filesystem below the state: changes fail until
// something is removed from it, and are accepted then without a restart.
func TestStateHasSpaceAgain(t *testing.T) {
	namespace.NeedRoot(t)

	space := harness.NewStateSpace(t)
	d := harness.Start(t, harness.Relists, space.Option)
	used := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "used"})
	harness.BringUp(t, d, used)

	space.Fill(t, d)
	harness.RequireCode(t, d.Unpublish(t.Context(), used), codes.Unavailable, "no space")
	harness.AwaitStorage(t, d, "state", health.StateStoreFailed)

	space.Free(t)
	harness.AwaitStorage(t, d, "")
	require.NoError(t, d.Unpublish(t.Context(), used))
	require.NoError(t, d.Unstage(t.Context(), used))
	require.NoError(t, d.Detach(t.Context(), used))

	harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "another"})
	d.Restart(t)
	harness.AwaitStorage(t, d, "")
}

// hang injects faults that leave requests without an answer, and sends a request
// to show that they do.
func hang(t *testing.T, served *faults.Directory, fault faults.Fault) {
	t.Helper()
	served.Inject(t, fault)

	done := make(chan error, 1)

	go func() { done <- unix.Stat(filepath.Join(served.Path, fault.Name), &unix.Stat_t{}) }()

	require.Eventually(t, func() bool { return served.Met(t) > 0 }, await.Limit, time.Millisecond, "want: the pool hangs")
	t.Cleanup(func() {
		served.Release(t)
		require.NoError(t, await.Receive(t, done, "stat to return once the fault is released"))
	})
}

func probing(timeout time.Duration) harness.Option {
	return func(c *driver.Config) { c.Health.ProbeTimeout = timeout }
}

// sourceOf is the device that is mounted at the path.
func sourceOf(t *testing.T, path string) string {
	t.Helper()

	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the path has one mount")

	return found[0].Source
}
