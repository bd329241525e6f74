package driver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestHealthOfAPoolThatFillsUp(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	place := harness.PlainPool(t, 1024*mib)
	d := harness.Start(t, relists, poolAt("default", place))
	storage(t, d, "")

	filling := filepath.Join(filepath.Dir(place), "filling")
	file, err := os.Create(filling)
	require.NoError(t, err)

	defer file.Close()

	err = unix.Fallocate(int(file.Fd()), 0, 0, 512*mib)
	for err == nil {
		var info os.FileInfo

		info, err = file.Stat()
		require.NoError(t, err)
		err = unix.Fallocate(int(file.Fd()), 0, info.Size(), 16*mib)
	}

	require.ErrorIs(t, err, unix.ENOSPC)
	storage(t, d, "default", health.PoolNearlyFull)

	require.NoError(t, os.Remove(filling))
	require.NoError(t, file.Close())
	storage(t, d, "")
}

// TestHealthOfAReadOnlyPool has the pool refuse new files for a while. No remount
// does that as long as a controller has its lock in the pool open.
func TestHealthOfAReadOnlyPool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, relists, poolAt("default", filepath.Join(served.Path, "pool")))
	storage(t, d, "")

	served.Inject(t, faults.Fault{Name: "pool/scratch", Ops: faults.Names, Errno: unix.EROFS})
	storage(t, d, "default", health.PoolReadOnly)

	served.Release(t)
	storage(t, d, "")
}

// TestHealthOfAHiddenPool mounts something else over the pool: whatever is made
// in its directories then, is not found.
func TestHealthOfAHiddenPool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, relists)
	storage(t, d, "")

	require.NoError(t, unix.Mount("hiding", d.Pool(), "tmpfs", 0, ""))
	storage(t, d, "default", health.PoolUnreachable)

	unmount(t, d.Pool())
	storage(t, d, "")
}

// TestHealthOfAPoolWhoseFilesystemMetAnError has the kernel stop writes to the
// pool. Nothing but an unmount takes that back, so the driver is restarted.
func TestHealthOfAPoolWhoseFilesystemMetAnError(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	place := harness.PlainPool(t, 1024*mib)
	mounted := filepath.Dir(place)
	require.NoError(t, unix.Mount("", mounted, "", unix.MS_REMOUNT, "errors=remount-ro"))

	d := harness.Start(t, relists, poolAt("default", place))
	storage(t, d, "")

	triggerErrorOn(t, sourceOf(t, mounted))
	storage(t, d, "default", health.PoolReadOnly)
}

// TestHealthOfAHangingPool has one of two pools give no answer: it and its
// volumes are reported, and nothing else waits for it. (Only the tools of an ext4
// do: they ask each loop device that is mounted anywhere for its file.)
func TestHealthOfAHangingPool(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	d := harness.Start(t, relists, probing(200*time.Millisecond), poolAt("slow", filepath.Join(served.Path, "pool")))

	slow := &sufferer{Driver: d, claim: newVolume(t, d, &csi.CreateVolumeRequest{
		Name: "slow", Parameters: map[string]string{"pool": "slow"},
	})}
	bringUp(t, d, slow.claim)

	well := &sufferer{Driver: d, claim: newVolume(t, d, &csi.CreateVolumeRequest{Name: "well"})}
	well.image = imageOf(d, well.claim.VolumeID)
	bringUp(t, d, well.claim)

	slow.awaitWell(t)
	well.awaitWell(t)
	storage(t, d, "")

	hang(t, served, faults.Fault{Hang: true})
	storage(t, d, "slow", health.PoolUnreachable)
	slow.await(t, diagnosis{
		node: []health.Reason{health.ProbeTimedOut}, controller: []health.Reason{health.ProbeTimedOut},
	})

	// The other pool's volumes are probed, used and created as always.
	well.awaitWell(t)
	require.NoError(t, os.Rename(well.image, well.aside(t, well.image)))
	well.await(t, diagnosis{
		node: []health.Reason{health.BackingFileMissing}, controller: []health.Reason{health.BackingFileMissing},
	})
	require.NoError(t, os.Rename(well.aside(t, well.image), well.image))
	well.awaitWell(t)

	for n, kind := range []*csi.CreateVolumeRequest{rawBlock(), formatted("xfs"), {Parameters: directoryBacked()}} {
		kind.Name = fmt.Sprint("more ", n)
		more := newVolume(t, d, kind)
		bringUp(t, d, more)
		takeDown(t, d, more)
		deleteVolume(t, d, more.VolumeID)
	}

	served.Release(t)
	storage(t, d, "")
	slow.awaitWell(t)
	well.awaitWell(t)
}

// TestHealthOfADeadPool kills the server of the pool's filesystem, so that all
// that is asked of it fails at once.
func TestHealthOfADeadPool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, relists, poolAt("dead", filepath.Join(served.Path, "pool")))

	sick := &sufferer{Driver: d, claim: newVolume(t, d, &csi.CreateVolumeRequest{
		Parameters: map[string]string{"pool": "dead"},
	})}
	require.NoError(t, d.Attach(t.Context(), sick.claim))
	storage(t, d, "")

	served.Kill(t)
	storage(t, d, "dead", health.PoolUnreachable)
	require.NoError(t, d.Detach(t.Context(), sick.claim))
}

// TestHealthOfOneHangingImage has the image of one volume give no answer: the
// volume beside it in the same pool is probed and served, as always.
func TestHealthOfOneHangingImage(t *testing.T) {
	namespace.NeedRoot(t)

	i := illness{served: true, options: []harness.Option{probing(200 * time.Millisecond)}}
	slow := i.admit(t, eventsOnly)
	well := &sufferer{Driver: slow.Driver, served: slow.served, claim: newVolume(t, slow.Driver, &csi.CreateVolumeRequest{Name: "well"})}
	well.image = imageOf(well.Driver, well.claim.VolumeID)
	bringUp(t, well.Driver, well.claim)
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

// TestHealthOfTheState has the disk fail below the state: from then on nothing
// is changed, which the storage's health says until a restart.
func TestHealthOfTheState(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, relists, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })
	storage(t, d, "")

	served.Inject(t, faults.Fault{Ops: faults.Writes | faults.Syncs, Errno: unix.EIO})

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: t.Name(), VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})
	fails(t, err, codes.Unavailable, "state")
	storage(t, d, "state", health.StateStoreFailed)

	// It is not to be trusted again: what was lost shows in the next start.
	served.Release(t)
	storage(t, d, "state", health.StateStoreFailed)
	d.Restart(t)
	storage(t, d, "")
}

// TestStateHasSpaceAgain fills the filesystem below the state: changes fail until
// something is removed from it, and are accepted then without a restart.
func TestStateHasSpaceAgain(t *testing.T) {
	namespace.NeedRoot(t)

	small := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", small, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(small, unix.MNT_DETACH)) })

	d := harness.Start(t, relists, func(c *driver.Config) { c.StateDir = filepath.Join(small, "state") })
	used := newVolume(t, d, &csi.CreateVolumeRequest{Name: "used"})
	bringUp(t, d, used)

	ballast := filepath.Join(small, "ballast")
	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 8*mib), 0o600), unix.ENOSPC)

	// The journal is preallocated, so changes go on for a while.
	var failure error

	for range 20_000 {
		request := &csi.CreateVolumeRequest{
			Name: "other", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
			Parameters: map[string]string{"backing": "image"},
		}

		made, err := d.CreateVolume(t.Context(), request)
		if err == nil {
			_, err = d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
		}

		if failure = err; failure != nil {
			break
		}
	}

	fails(t, failure, codes.Unavailable, "no space", "free some")
	fails(t, d.Unpublish(t.Context(), used), codes.Unavailable, "no space")
	storage(t, d, "state", health.StateStoreFailed)

	require.NoError(t, os.Remove(ballast))
	storage(t, d, "")
	require.NoError(t, d.Unpublish(t.Context(), used))
	require.NoError(t, d.Unstage(t.Context(), used))
	require.NoError(t, d.Detach(t.Context(), used))

	newVolume(t, d, &csi.CreateVolumeRequest{Name: "another"})
	d.Restart(t)
	storage(t, d, "")
}

// hang injects faults that leave requests without an answer, and sends a request
// to show that they do.
func hang(t *testing.T, served *faults.Directory, fault faults.Fault) {
	t.Helper()
	served.Inject(t, fault)

	done := make(chan error, 1)

	go func() { done <- unix.Stat(filepath.Join(served.Path, fault.Name), &unix.Stat_t{}) }()

	require.Eventually(t, func() bool { return served.Met(t) > 0 }, soon, time.Millisecond)
	t.Cleanup(func() {
		served.Release(t)
		require.NoError(t, await.Receive(t, done, "stat to return once the fault is released"))
	})
}

func probing(timeout time.Duration) harness.Option {
	return func(c *driver.Config) { c.HealthProbeTimeout = timeout }
}

// sourceOf is the device that is mounted at the path.
func sourceOf(t *testing.T, path string) string {
	t.Helper()

	found, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	require.NoError(t, err)
	require.Len(t, found, 1)

	return found[0].Source
}
