package pools_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// TestUnsyncedChangesAreNotAcknowledged: one fsync of the driver fails in each call that
// acknowledges something durable: the call has to fail, and to succeed when it is made again.
func TestUnsyncedChangesAreNotAcknowledged(t *testing.T) {
	namespace.NeedRoot(t)

	const image, scratch, room = "pool/images/ID.img", "pool/scratch/ID.img", "pool/images"

	attach := func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) error {
		t.Helper()

		return d.Attach(t.Context(), claim)
	}
	expand := func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) error {
		t.Helper()

		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(128 * harness.MiB),
		})

		return err
	}
	stage := func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) error {
		t.Helper()

		return d.Stage(t.Context(), claim)
	}

	for name, test := range map[string]struct {
		file     string
		block    bool
		attached bool
		call     func(t *testing.T, d *harness.Driver, claim *csiclient.Publication) error
	}{
		"a new image":             {image, true, false, attach},
		"the name of a new image": {room, true, false, attach},
		"the growth of an image":  {image, false, true, expand},
		"a new filesystem":        {scratch, false, true, stage},
		"a filesystem's path":     {room, false, true, stage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			served := faults.Serve(t)
			d := harness.Start(t, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
			request := harness.MountRequest("ext4", 64*harness.MiB)

			if test.block {
				request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}
			}

			claim := harness.NewVolume(t, d, request)

			if test.attached {
				require.NoError(t, d.Attach(t.Context(), claim))
			}

			t.Cleanup(func() { harness.TakeDown(t, d, claim) })

			// mkfs syncs, too, and that it fails says nothing about the driver.
			served.Inject(t, faults.Fault{
				Name: strings.ReplaceAll(test.file, "ID", claim.VolumeID), Ops: faults.Syncs, Errno: unix.EIO, Process: os.Getpid(),
			})
			harness.RequireCode(t, test.call(t, d, claim), codes.Internal, "input/output error")
			require.Positive(t, served.Met(t), "fsyncs of %s", test.file)

			served.Release(t)
			require.NoError(t, test.call(t, d, claim))
		})
	}
}

// TestAThickVolumeIsSyncedWhenItIsMade: its space is acknowledged then.
func TestAThickVolumeIsSyncedWhenItIsMade(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	d := harness.Start(t, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
	request := thickVolume(csiclient.MountCapability(harness.Writer, ""), 64*harness.MiB)
	request.Name = t.Name()

	served.Inject(t, faults.Fault{Ops: faults.Syncs, Errno: unix.EIO, Process: os.Getpid()})

	_, err := d.CreateVolume(t.Context(), request)
	harness.RequireCode(t, err, codes.Internal, "input/output error")
	require.Positive(t, served.Met(t), "want: the sync of the thick volume is met")

	// Its image is removed as soon as the pool can be synced.
	harness.AwaitStorage(t, d, "cannot remove ", health.RemovalFailed)
	served.Release(t)
	harness.AwaitStorage(t, d, "cannot remove ")

	made, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	harness.DeleteVolume(t, d, made.GetVolume().GetVolumeId())
}

// TestLoopDevicesDoDirectIO, but for those with sectors of 512 bytes: else each
// byte is in the page cache twice.
func TestLoopDevicesDoDirectIO(t *testing.T) {
	namespace.NeedRoot(t)

	for name, test := range map[string]struct {
		capability *csi.VolumeCapability
		parameters map[string]string
		want       string
	}{
		"mounted":            {csiclient.MountCapability(harness.Writer, "ext4"), nil, "1"},
		"raw block":          {csiclient.BlockCapability(harness.Writer), nil, "1"},
		"thick":              {csiclient.MountCapability(harness.Writer, "ext4"), map[string]string{"provisioning": "thick"}, "1"},
		"sectors of 512":     {csiclient.MountCapability(harness.Writer, "ext4"), map[string]string{"blockSize": "512"}, "0"},
		"read by many nodes": {csiclient.BlockCapability(harness.ReaderOnly), nil, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			directory := testpool.Plain(t, 512*harness.MiB)
			d := harness.Start(t, harness.PoolAt("default", directory))
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{test.capability}, Parameters: test.parameters,
			})
			harness.BringUp(t, d, claim)
			require.Equal(t, []string{test.want}, directIO(t, harness.ImageOf(d, claim.VolumeID)))
		})
	}

	t.Run("inline ephemeral", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, harness.PoolAt("default", testpool.Plain(t, 512*harness.MiB)))
		claim := harness.InlineClaim(t, d, harness.SmallInline())
		require.NoError(t, d.Publish(t.Context(), claim))
		require.Equal(t, []string{"1"}, directIO(t, filepath.Join(d.Pool(), "ephemeral")))
	})
}

// directIO returns whether the loop devices of the images whose paths begin so
// do direct I/O: "1" or "0" for each.
func directIO(t *testing.T, prefix string) []string {
	t.Helper()

	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	require.NoError(t, err)

	var found []string

	for _, each := range attached {
		if strings.HasPrefix(each.BackingPath, prefix) {
			dio, err := os.ReadFile("/sys/block/" + filepath.Base(each.Path) + "/loop/dio")
			require.NoError(t, err)

			found = append(found, strings.TrimSpace(string(dio)))
		}
	}

	return found
}

// TestAPoolWithoutLocksHasNoController: nothing would keep a second one off.
func TestAPoolWithoutLocksHasNoController(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.ServeLocking(t, t.TempDir())
	served.Inject(t, faults.Fault{Ops: faults.Locks, Errno: unix.ENOLCK})

	d := harness.Start(t, harness.InMode(driver.ModeController), harness.PoolAt("other", served.Path))

	_, err := d.CreateVolume(t.Context(), inPool("refused", "other"))
	harness.RequireCode(t, err, codes.Unavailable, "no file locks")
}
