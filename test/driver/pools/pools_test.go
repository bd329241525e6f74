package pools_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// poolLimit is no verdict on speed: a pool is opened again within seconds, and a
// busy machine takes longer.
const poolLimit = time.Minute

// shutDownAt has the filesystem of a directory fail all that is asked of it, as after
// an I/O error.
func shutDownAt(t *testing.T, directory string) {
	t.Helper()

	const goingDown, logFlush = 0x8004587d, 1 // XFS_IOC_GOINGDOWN, XFS_FSOP_GOING_FLAGS_LOGFLUSH

	root, err := os.Open(directory)
	require.NoError(t, err)

	defer root.Close()

	require.NoError(t, unix.IoctlSetPointerInt(int(root.Fd()), goingDown, logFlush))
}

// mountAgain mounts the image of a pool of testpool.Reflink that was unmounted.
func mountAgain(t *testing.T, place string) {
	t.Helper()

	mounted := filepath.Dir(place)
	image, err := os.OpenFile(filepath.Join(filepath.Dir(mounted), "pool.img"), os.O_RDWR, 0)
	require.NoError(t, err)

	defer image.Close()

	device, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), image, loop.AttachOptions{
		AutoClear: true, Exclusive: true, PreferredNumber: -1,
	})
	require.NoError(t, err)

	defer device.Close()

	require.NoError(t, unix.Mount(device.Path, mounted, "xfs", 0, "discard"))
}

// inPool asks for a volume in the pool.
func inPool(name, poolName string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, Parameters: map[string]string{"pool": poolName}, CapacityRange: harness.RequiredBytes(16 * harness.MiB),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "ext4")},
	}
}

// unreachablePool waits until a pool is reported as unreachable, with the words.
func unreachablePool(t *testing.T, d *harness.Driver, words string) {
	t.Helper()

	var found []string

	require.Eventually(t, func() bool {
		answer, err := d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		require.NoError(t, err)

		for _, each := range answer.GetBackendHealth() {
			if each.GetReason() == string(health.PoolUnreachable) && strings.Contains(each.GetMessage(), words) {
				return true
			}

			found = append(found[:0], each.GetReason()+": "+each.GetMessage())
		}

		return false
	}, poolLimit, 20*time.Millisecond, "no pool is reported as unreachable with %q, but %v", words, &found)
}

// servedAgain waits until volumes can be made in the pool.
func servedAgain(t *testing.T, d *harness.Driver, poolName string) {
	t.Helper()

	var err error

	require.Eventually(t, func() bool {
		_, err = d.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"pool": poolName}})

		return err == nil
	}, poolLimit, 20*time.Millisecond, "the pool is not served again")
}

// refusedWithItsPool makes all calls that need the volume's pool.
func refusedWithItsPool(t *testing.T, d *harness.Driver, claim *csiclient.Publication, poolName string) {
	t.Helper()

	ctx, id := t.Context(), claim.VolumeID
	calls := map[string]func() error{
		"CreateVolume": func() error { _, err := d.CreateVolume(ctx, inPool("one more", poolName)); return err },
		"DeleteVolume": func() error { _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); return err },
		"GetCapacity": func() error {
			_, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{Parameters: map[string]string{"pool": poolName}})

			return err
		},
		"CreateSnapshot": func() error {
			_, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})

			return err
		},
		"ControllerExpandVolume": func() error {
			_, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: harness.RequiredBytes(32 * harness.MiB)})

			return err
		},
		"ControllerPublishVolume": func() error { return d.Attach(ctx, claim) },
		"NodeStageVolume":         func() error { return d.Stage(ctx, claim) },
	}

	for name, call := range calls {
		err := call()
		rpccode.Require(t, err, codes.Unavailable, "%s", name)
		errtext.Require(t, err, poolName, name)
	}

	listed, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{})
	require.NoError(t, err)

	var ids []string
	for _, each := range listed.GetEntries() {
		ids = append(ids, each.GetVolume().GetVolumeId())
	}

	require.Contains(t, ids, id)
}

// usable has the whole lifecycle of a volume in the pool.
func usable(t *testing.T, d *harness.Driver, poolName string) {
	t.Helper()

	claim := harness.NewVolume(t, d, inPool("used in "+poolName, poolName))
	harness.BringUp(t, d, claim)
	require.NoError(t, os.WriteFile(filepath.Join(claim.TargetPath, "file"), []byte("data"), 0o600))
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)

	probed, err := d.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.True(t, probed.GetReady().GetValue(), "want: Probe says that the driver is ready")
}

// TestFailedPoolIsACondition: the filesystem of one of two pools shuts down, while the driver runs
// and while it starts.
func TestFailedPoolIsACondition(t *testing.T) {
	namespace.NeedRoot(t)

	place := testpool.Reflink(t, 320*harness.MiB)
	d := harness.Start(t, harness.Relists, harness.PoolAt("other", place))
	idle := harness.NewVolume(t, d, inPool("idle", "other"))
	staged := harness.NewVolume(t, d, inPool("staged", "other"))
	harness.BringUp(t, d, staged)

	shutDownAt(t, place)
	unreachablePool(t, d, "input/output error")
	refusedWithItsPool(t, d, idle, "other")
	usable(t, d, "default")

	d.Restart(t)

	unreachablePool(t, d, "pool \"other\": input/output error")
	refusedWithItsPool(t, d, idle, "other")
	usable(t, d, "default")

	// What is in use can be taken out of use.
	require.NoError(t, d.Unpublish(t.Context(), staged))
	require.NoError(t, d.Unstage(t.Context(), staged))
	require.NoError(t, d.Detach(t.Context(), staged))

	// Nothing of the driver keeps the filesystem from being unmounted.
	harness.Unmount(t, filepath.Dir(place))
	unreachablePool(t, d, "touchstone state forget-pool")
	mountAgain(t, place)
	servedAgain(t, d, "other")

	usable(t, d, "other")
	harness.BringUp(t, d, staged)
	harness.TakeDown(t, d, staged)
	harness.DeleteVolume(t, d, staged.VolumeID)
	harness.DeleteVolume(t, d, idle.VolumeID)
}

// TestUnmountedPoolIsNotServed: at the start there is only the mount point of a pool.
func TestUnmountedPoolIsNotServed(t *testing.T) {
	namespace.NeedRoot(t)

	place := testpool.Reflink(t, 320*harness.MiB)
	mounted := filepath.Dir(place)
	d := harness.Start(t, harness.Relists, harness.PoolAt("other", mounted))
	claim := harness.NewVolume(t, d, inPool("kept", "other"))
	image := filepath.Join(mounted, "images", claim.VolumeID+".img")

	d.Stop()
	harness.Unmount(t, mounted)
	d.Restart(t)

	unreachablePool(t, d, "touchstone state forget-pool other")
	refusedWithItsPool(t, d, claim, "other")
	require.Empty(t, names(t, mounted), "the driver makes a pool where only a mount is missing")

	mountAgain(t, place)
	servedAgain(t, d, "other")
	require.FileExists(t, image)
	harness.DeleteVolume(t, d, claim.VolumeID)
	require.NoFileExists(t, image)
}

// TestEmbeddedPoolWithoutItsImageIsRefused: pool.img is missing, or another one.
func TestEmbeddedPoolWithoutItsImageIsRefused(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, harness.Relists, harness.EmbeddedPool(320*harness.MiB))
	claim := harness.NewVolume(t, d, inPool("kept", "default"))
	image := poolImage(d)

	d.Stop()
	require.NoError(t, os.Rename(image, image+".aside"))
	d.Restart(t)
	unreachablePool(t, d, "touchstone state forget-pool default")
	refusedWithItsPool(t, d, claim, "default")
	require.NoFileExists(t, image)

	d.Stop()
	require.NoError(t, os.WriteFile(image, make([]byte, 320*harness.MiB), 0o600))
	d.Restart(t)
	unreachablePool(t, d, "holds nothing")
	refusedWithItsPool(t, d, claim, "default")

	require.NoError(t, os.Rename(image+".aside", image))
	servedAgain(t, d, "default")
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)
	usable(t, d, "default")
}

func TestShutDownEmbeddedPoolIsMountedAgain(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, harness.Relists, harness.EmbeddedPool(320*harness.MiB))
	claim := harness.NewVolume(t, d, inPool("kept", "default"))

	shutDownAt(t, d.Pool())

	var err error

	require.Eventually(t, func() bool {
		_, err = d.CreateVolume(t.Context(), inPool("after", "default"))

		return err == nil
	}, poolLimit, 20*time.Millisecond, "the pool is not mounted again")
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)
}

// TestSwappedPoolsAreRefused, both of them.
func TestSwappedPoolsAreRefused(t *testing.T) {
	namespace.NeedRoot(t)

	first, second := filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "second")
	d := harness.Start(t, harness.Relists, harness.PoolAt("first", first), harness.PoolAt("second", second))
	claim := harness.NewVolume(t, d, inPool("kept", "first"))

	d.Restart(t, harness.PoolAt("first", second), harness.PoolAt("second", first))
	refusedWithItsPool(t, d, claim, "first")
	usable(t, d, "default")

	d.Restart(t, harness.PoolAt("first", first), harness.PoolAt("second", second))
	harness.DeleteVolume(t, d, claim.VolumeID)
}

// TestAnImageIsKeptWhileItsVolumeIsCreated has the pool fail, and be opened again,
// between the making of an image and its record.
func TestAnImageIsKeptWhileItsVolumeIsCreated(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	d := harness.Start(t, harness.Relists, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })
	journal := faults.Fault{Name: "state/state.jsonl", Ops: faults.Syncs, Hang: true}

	served.Inject(t, journal)

	created := make(chan error, 1)

	var claim *csiclient.Publication

	go func() {
		made, err := d.CreateVolume(t.Context(), inPool("created", "default"))
		if err == nil {
			claim = d.Claim(t, made.GetVolume().GetVolumeId())
		}

		created <- err
	}()

	require.Eventually(t, func() bool { return served.Met(t) > 0 }, await.Limit, harness.Often, "the record is not being written")

	images := names(t, filepath.Join(d.Pool(), "images"))
	require.Len(t, images, 1, "want: the image is kept while its volume is created")

	require.NoError(t, unix.Mount("hiding", d.Pool(), "tmpfs", 0, ""))
	unreachablePool(t, d, "")
	harness.Unmount(t, d.Pool())
	servedAgain(t, d, "default")
	require.Empty(t, created, "want: the creation waits for its pool")
	require.Equal(t, images, names(t, filepath.Join(d.Pool(), "images")), "the pool was opened again")

	served.Release(t)
	require.NoError(t, await.Receive(t, created, "CreateVolume to return"))
	require.FileExists(t, harness.ImageOf(d, claim.VolumeID))
	harness.DeleteVolume(t, d, claim.VolumeID)
}
