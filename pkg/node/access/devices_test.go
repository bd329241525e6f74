package access_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// queueOf is what a volume's parameters decide of its device.
type queueOf struct {
	blockSize          int
	directIO, discards bool
}

func queueAt(t *testing.T, status loop.Status) queueOf {
	t.Helper()

	most, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/queue/discard_max_bytes", status.Number))
	require.NoError(t, err)

	return queueOf{status.BlockSize, status.DirectIO, strings.TrimSpace(string(most)) != "0"}
}

// TestADeviceHasTheOptionsOfItsVolume compares devices with one that is attached without options.
func TestADeviceHasTheOptionsOfItsVolume(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	small, thick := image, image
	small.BlockSize, thick.Provisioning = volume.SmallBlockSize, volume.Thick

	for name, test := range map[string]struct {
		parameters volume.Parameters
		want       func(plain queueOf) queueOf
	}{
		"default":      {image, func(plain queueOf) queueOf { return plain }},
		"small blocks": {small, func(plain queueOf) queueOf { return queueOf{volume.SmallBlockSize, false, plain.discards} }},
		"thick":        {thick, func(plain queueOf) queueOf { return queueOf{plain.blockSize, plain.directIO, false} }},
	} {
		for kind, capability := range map[string]volume.Capability{"mounted": {}, "raw": {Block: true}} {
			t.Run(name+" "+kind, func(t *testing.T) {
				f := newFixture(t, staged.Volume{Parameters: test.parameters, Capability: capability})
				f.Store(t)

				plain := queueAt(t, f.attached(t, "plain").Status)

				require.NoError(t, f.Stage(t))
				require.Equal(t, test.want(plain), queueAt(t, f.status(t)))
				require.NoError(t, f.Way.Unstage(t.Context(), f.V))
			})
		}
	}
}

// attached attaches a new file in the images' directory until the end of the test.
func (f *fixture) attached(t *testing.T, name string) *loop.Device {
	t.Helper()

	file, err := os.Create(filepath.Join(f.pool.Path(), "images", name))
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, file.Truncate(size))

	device, err := f.loops.Attach(t.Context(), file, loop.AttachOptions{BlockSize: 4096, AutoClear: true, PreferredNumber: device.None})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, device.Close()) })

	return device
}

// status returns that of the volume's first device.
func (f *fixture) status(t *testing.T) loop.Status {
	t.Helper()

	numbers, err := f.Way.Devices(f.V)
	require.NoError(t, err)
	require.NotEmpty(t, numbers, "want: the volume has a device")

	status, attached, err := f.loops.Status(numbers[0])
	require.NoError(t, err)
	require.True(t, attached, "want: the device of the volume is attached")

	return status
}

func (f *fixture) imagePath() string {
	return filepath.Join(f.pool.Path(), "images", f.V.VolumeID+".img")
}

// TestDevicesAreFoundAfterARestart, whether the images have kept their names or not.
func TestDevicesAreFoundAfterARestart(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	direct := image
	direct.DirectAssign = true

	raw := volume.Capability{Block: true}

	for name, test := range map[string]struct {
		v                        staged.Volume
		slot                     int
		publish, reader, renamed bool
		// lost means that nothing leads to the device.
		lost bool
	}{
		"raw":                               {v: staged.Volume{Parameters: image, Capability: raw}, slot: device.None},
		"raw, renamed":                      {v: staged.Volume{Parameters: image, Capability: raw}, slot: device.None, renamed: true, lost: true},
		"raw, of a slot, renamed":           {v: staged.Volume{Parameters: image, Capability: raw}, slot: 90, renamed: true},
		"raw, published, renamed":           {v: staged.Volume{Parameters: image, Capability: raw}, slot: device.None, publish: true, renamed: true},
		"raw, for reading":                  {v: staged.Volume{Parameters: image, Capability: raw}, slot: device.None, publish: true, reader: true},
		"raw, for reading, renamed":         {v: staged.Volume{Parameters: image, Capability: raw}, slot: device.None, publish: true, reader: true, renamed: true},
		"raw, attached for reading":         {v: staged.Volume{Parameters: image, Capability: raw, ReadOnly: true}, slot: device.None, publish: true, renamed: true},
		"direct, published, renamed":        {v: staged.Volume{Parameters: direct}, slot: device.None, publish: true, renamed: true},
		"direct, for reading, renamed":      {v: staged.Volume{Parameters: direct}, slot: device.None, publish: true, reader: true, renamed: true},
		"direct, of a slot, for reading":    {v: staged.Volume{Parameters: direct}, slot: 91, publish: true, reader: true, renamed: true},
		"direct, unpublished, not renamed":  {v: staged.Volume{Parameters: direct}, slot: device.None},
		"mounted, whose device is not held": {v: staged.Volume{Parameters: image}, slot: 92, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.v)
			f.V.Slot = test.slot
			f.Publication.ReadOnly = test.reader
			// Of another volume: it must not be found.
			f.attached(t, "other.img")
			f.Store(t)
			require.NoError(t, f.Stage(t))

			if test.slot != device.None {
				require.Equal(t, f.loops.NumberOfSlot(test.slot), f.status(t).Number, "want: the device has the number of the slot")
			}

			if test.publish {
				require.NoError(t, f.Publish(t))
			}

			if test.renamed {
				require.NoError(t, os.Rename(f.imagePath(), f.imagePath()+".moved"))
			}

			again := f.newDevices().Raw()
			require.NoError(t, again.Find())

			want, err := f.devices.Raw().Found(f.V.VolumeID)
			require.NoError(t, err)

			found, err := again.Found(f.V.VolumeID)
			require.NoError(t, err)

			if test.lost {
				require.Equal(t, device.None, found.Staged, "want: no device is found")
			} else {
				require.Equal(t, want, found)
				require.Equal(t, test.reader, found.ReadOnly != device.None, "want: the second device is found, too")
			}

			if test.renamed {
				require.NoError(t, os.Rename(f.imagePath()+".moved", f.imagePath()))
			}

			if test.publish {
				require.NoError(t, f.Unpublish(t))
			}

			require.NoError(t, f.Way.Unstage(t.Context(), f.V))
		})
	}
}

// TestALostImageIsNotGrownOver compares the image with the device, and a growth with what was asked
// for.
func TestALostImageIsNotGrownOver(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)

	for kind, v := range map[string]staged.Volume{
		// One for writing would be grown, which not all kernels permit.
		"mounted": {Parameters: image, ReadOnly: true}, "raw": {Parameters: image, Capability: volume.Capability{Block: true}},
	} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t, v)
			f.Store(t)
			require.NoError(t, f.ways.CheckLength(f.V), "want: a volume without a device has no length to compare")
			require.NoError(t, f.Stage(t))
			require.NoError(t, f.ways.CheckLength(f.V))

			require.NoError(t, os.Truncate(f.imagePath(), size-4096))
			require.ErrorIs(t, f.ways.CheckLength(f.V), pool.ErrTruncated)

			require.NoError(t, os.Rename(f.imagePath(), f.imagePath()+".moved"))
			require.Error(t, f.ways.CheckLength(f.V), "want: without its image it is unknown")
			require.NoError(t, os.WriteFile(f.imagePath(), nil, 0o600))
			require.NoError(t, f.ways.CheckLength(f.V), "want: another image is none of the device")
			require.NoError(t, os.Rename(f.imagePath()+".moved", f.imagePath()))

			const grown = size + 4<<20

			require.NoError(t, os.Truncate(f.imagePath(), grown))
			require.NoError(t, f.ways.CheckLength(f.V), "want: a longer image is one that grows")

			for _, test := range []struct {
				asked *csi.CapacityRange
				code  codes.Code
			}{
				{nil, codes.OK},
				{&csi.CapacityRange{RequiredBytes: grown, LimitBytes: grown}, codes.OK},
				{&csi.CapacityRange{RequiredBytes: grown - 1}, codes.OK},
				{&csi.CapacityRange{RequiredBytes: grown + 1}, codes.OutOfRange},
				{&csi.CapacityRange{LimitBytes: grown - 1}, codes.OutOfRange},
				{&csi.CapacityRange{LimitBytes: grown + 1}, codes.OK},
			} {
				got, err := f.Way.Expand(t.Context(), f.V, f.V.StagingPath, test.asked)
				rpccode.Require(t, err, test.code, "%v", test.asked)

				if err == nil {
					require.EqualValues(t, grown, got, "want: the size of the device")
				}
			}

			require.NoError(t, f.Way.Unstage(t.Context(), f.V))

			_, err := f.Way.Expand(t.Context(), f.V, f.V.StagingPath, nil)
			rpccode.Require(t, err, codes.NotFound)
		})
	}
}
