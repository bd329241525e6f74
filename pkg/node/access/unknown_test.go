package access_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
)

// The numbers of devices in the sysfs of newUnknowing: one that cannot be observed, and two of the volume.
const brokenLoop, stagedLoop, readerLoop = 1, 2, 3

// newUnknowing returns a fixture without root, with the volume of which all that is asked fails: an image, a
// directory or a raw volume.
func newUnknowing(t *testing.T) (f *fixture, image, directory, raw *staged.Volume) {
	t.Helper()

	f = newFixtureOf(t, staged.Volume{Parameters: parametersOf(t, volume.BackingImage)}, loopsys.New(t, map[int]loopsys.Device{
		brokenLoop: {Image: "/pool/broken.img", Broken: true},
		stagedLoop: {Image: "/pool/volume.img", Sequence: 7},
		readerLoop: {Image: "/pool/volume.img", Sequence: 8, ReadOnly: true},
	}).Loops())

	image = f.V.Clone()
	image.StagingPath, f.Publication.TargetPath = "/proc/staging", "/proc/target"
	directory = image.Clone()
	directory.Parameters = parametersOf(t, volume.BackingDirectory)
	raw = f.V.Clone()
	raw.VolumeID, raw.Capability.Block = volume.NewID(), true
	f.devices.Raw().Add(raw.VolumeID, brokenLoop, 7, false)

	return f, image, directory, raw
}

// failureOf returns the error of a call that returns something else, too.
func failureOf[T any](_ T, err error) error { return err }

// TestTheUnknownIsNotAbsent has each way of access fail where its mounts or devices cannot be observed.
func TestTheUnknownIsNotAbsent(t *testing.T) {
	f, image, directory, raw := newUnknowing(t)
	ctx, at := t.Context(), f.At(t, filepath.Join(filepath.Dir(f.V.StagingPath), "at"))

	recorded := f.V.Clone()
	recorded.Device = &staged.Device{Number: brokenLoop, Sequence: 7}

	published := func(v *staged.Volume) *staged.Volume {
		v = v.Clone()
		v.Publications = []staged.Publication{f.Publication}

		return v
	}
	inUse := func(v *staged.Volume) error {
		_, _, err := f.ways.InUse(v)

		return err
	}
	unmounted := published(f.V)

	for _, of := range []struct {
		v       *staged.Volume
		failure error
	}{{image, mount.ErrOutsideAllowed}, {directory, mount.ErrOutsideAllowed}, {raw, syscall.EISDIR}, {recorded, syscall.EISDIR}} {
		way := f.ways.For(of.v)

		for name, err := range map[string]error{
			"Unstage": way.Unstage(ctx, of.v),
			"IsInUse": failureOf(way.IsInUse(of.v)),
			"InUse":   inUse(of.v),
		} {
			require.ErrorIs(t, err, of.failure, "%s of %s", name, of.v.Parameters.Backing)
		}
	}

	imageWay, directoryWay, rawWay := f.ways.For(image), f.ways.For(directory), f.ways.For(raw)

	for name, err := range map[string]error{
		"Stage of an image":         imageWay.Stage(ctx, image, at),
		"IsStaged of an image":      failureOf(imageWay.IsStaged(image)),
		"Publish of an image":       imageWay.Publish(ctx, image, f.Publication, at),
		"Republish":                 imageWay.Republish(ctx, image, f.Publication),
		"IsPublished":               failureOf(imageWay.IsPublished(image, f.Publication)),
		"Unpublish":                 imageWay.Unpublish(image, f.Publication, nil),
		"InUse of a publication":    inUse(unmounted),
		"Expand of an image":        failureOf(imageWay.Expand(ctx, image, image.StagingPath, nil)),
		"Devices of an image":       failureOf(imageWay.Devices(image)),
		"DeviceOf an image":         failureOf(imageWay.DeviceOf(image, f.Publication)),
		"AddFreezeTargets":          imageWay.AddFreezeTargets(image, &freeze.Targets{}),
		"CheckNotShutDown":          f.ways.CheckNotShutDown(image),
		"CheckLength of an image":   f.ways.CheckLength(image),
		"Tune":                      f.ways.Tune(ctx, image),
		"Identify":                  failureOf(f.devices.Identify(image)),
		"RecordMounted":             f.devices.RecordMounted(image),
		"Stage of a directory":      directoryWay.Stage(ctx, directory, at),
		"Publish of a directory":    directoryWay.Publish(ctx, directory, f.Publication, at),
		"IsPublished, a directory":  failureOf(directoryWay.IsPublished(directory, f.Publication)),
		"a publication at its path": inUse(published(directory)),
	} {
		require.ErrorIs(t, err, mount.ErrOutsideAllowed, name)
	}

	for name, err := range map[string]error{
		"Stage of an image":   f.Way.Stage(ctx, recorded, at),
		"IsStaged":            failureOf(rawWay.IsStaged(raw)),
		"Publish":             rawWay.Publish(ctx, raw, f.Publication, f.At(t, at.Path()+".file")),
		"Expand":              failureOf(rawWay.Expand(ctx, raw, raw.StagingPath, nil)),
		"Devices":             failureOf(rawWay.Devices(raw)),
		"DeviceOf":            failureOf(rawWay.DeviceOf(raw, f.Publication)),
		"AddFreezeTargets":    rawWay.AddFreezeTargets(raw, &freeze.Targets{}),
		"CheckLength":         f.ways.CheckLength(raw),
		"Tune":                f.ways.Tune(ctx, raw),
		"Open":                failureOf(f.devices.Open(ctx, raw)),
		"DetachUnusedReader":  f.devices.DetachUnusedReader(ctx, raw),
		"Detach":              f.devices.Detach(ctx, raw, brokenLoop),
		"DetachLeft":          f.devices.DetachLeft(ctx, recorded),
		"IsLeft":              failureOf(f.devices.IsLeft(recorded)),
		"the devices at once": f.devices.Raw().Find(),
	} {
		require.ErrorIs(t, err, syscall.EISDIR, name)
	}

	require.Equal(t, []string{"failure", "failure"}, f.spy.taken(), "want: the stagings of images have failed, and nothing was detached")
}

// TestWhatIsNotAskedCannotFail has calls that need nothing of what cannot be observed.
func TestWhatIsNotAskedCannotFail(t *testing.T) {
	f, image, directory, raw := newUnknowing(t)
	read := func(v *staged.Volume) *staged.Volume {
		v = v.Clone()
		v.ReadOnly = true

		return v
	}
	beneathNothing := func(v *staged.Volume) *staged.Volume {
		v = v.Clone()
		v.StagingPath = filepath.Join(f.V.StagingPath, "missing", "staging")

		return v
	}
	known := image.Clone()
	known.Device = &staged.Device{Number: brokenLoop, Sequence: 7}

	for name, err := range map[string]error{
		"CheckNotShutDown of a directory":     f.ways.CheckNotShutDown(directory),
		"AddFreezeTargets of an image":        f.ways.For(image).AddFreezeTargets(read(image), &freeze.Targets{}),
		"AddFreezeTargets of a raw volume":    f.ways.For(raw).AddFreezeTargets(read(raw), &freeze.Targets{}),
		"Unstage of an image":                 f.ways.For(image).Unstage(t.Context(), beneathNothing(image)),
		"Unstage of a directory":              f.ways.For(directory).Unstage(t.Context(), beneathNothing(directory)),
		"RecordMounted of a known device":     f.devices.RecordMounted(known),
		"RecordMounted of a directory":        f.devices.RecordMounted(directory),
		"Detach of what is attached nowhere":  f.devices.Detach(t.Context(), raw, 4),
		"DetachUnusedReader without a reader": f.devices.DetachUnusedReader(t.Context(), f.V),
		"Unpublish of what is the CO's":       f.ways.For(image).Unpublish(image, staged.Publication{TargetPath: "/proc/target"}, nil),
		"CheckLength of a directory":          f.ways.CheckLength(directory),
	} {
		require.NoError(t, err, name)
	}
}

// TestAFailedStagingLeavesItsPathAsItWas has volumes that no pool stores.
func TestAFailedStagingLeavesItsPathAsItWas(t *testing.T) {
	for _, backing := range []volume.Backing{volume.BackingImage, volume.BackingDirectory} {
		f := newFixtureOf(t, staged.Volume{Parameters: parametersOf(t, backing)}, loopsys.New(t, nil).Loops())

		require.ErrorIs(t, f.Stage(t), pool.ErrMissing, backing)
		require.NoDirExists(t, f.V.StagingPath, "want: the path that was made is removed: %s", backing)

		require.NoError(t, os.Mkdir(f.V.StagingPath, 0o700))
		require.ErrorIs(t, f.Stage(t), pool.ErrMissing, backing)
		require.DirExists(t, f.V.StagingPath, "want: the CO's path stays: %s", backing)

		_, err := f.Way.Stats(t.Context(), f.V, f.At(t, filepath.Join(f.V.StagingPath, "missing")))
		require.ErrorIs(t, err, os.ErrNotExist, "want: there is no usage of what is not there: %s", backing)
	}
}

// TestDevicesOfARawVolume is which device is whose.
func TestDevicesOfARawVolume(t *testing.T) {
	f, _, _, v := newUnknowing(t)
	way := f.ways.For(v)
	reader, writer := staged.Publication{ReadOnly: true}, staged.Publication{}

	read := v.Clone()
	read.ReadOnly = true

	for _, test := range []struct {
		staged, second   int
		all              []int
		ofReader, ofRead int
		ofWriter         int
		isStaged         bool
	}{
		{device.None, device.None, nil, device.None, device.None, device.None, false},
		{stagedLoop, device.None, []int{stagedLoop}, device.None, stagedLoop, stagedLoop, true},
		{stagedLoop, readerLoop, []int{stagedLoop, readerLoop}, readerLoop, stagedLoop, stagedLoop, true},
		{device.None, readerLoop, []int{readerLoop}, readerLoop, readerLoop, readerLoop, false},
	} {
		f.devices.Raw().Add(v.VolumeID, test.staged, 7, false)
		f.devices.Raw().Add(v.VolumeID, test.second, 8, true)

		all, err := way.Devices(v)
		require.NoError(t, err)
		require.Equal(t, test.all, all)

		ofReader, readerErr := way.DeviceOf(v, reader)
		ofRead, readErr := way.DeviceOf(read, reader)
		ofWriter, writerErr := way.DeviceOf(v, writer)
		require.NoError(t, errors.Join(readerErr, readErr, writerErr))
		require.Equal(t, []int{test.ofReader, test.ofRead, test.ofWriter}, []int{ofReader, ofRead, ofWriter})

		isStaged, err := way.IsStaged(v)
		require.NoError(t, err)
		require.Equal(t, test.isStaged, isStaged)

		_, used, err := f.ways.InUse(v)
		require.NoError(t, err)
		require.Equal(t, test.isStaged, used)
	}
}

// TestVolumesAreFoundByTheirIDs, also those without a record and what cannot be observed.
func TestVolumesAreFoundByTheirIDs(t *testing.T) {
	f, image, directory, raw := newUnknowing(t)
	volumes := access.NewVolumes(f.ways, f.Records, f.freezer)
	within := errors.New("within")
	with := func(change func(v *staged.Volume)) *staged.Volume {
		v := f.V.Clone()
		v.VolumeID = volume.NewID()
		change(v)

		return v
	}
	attached := with(func(v *staged.Volume) { v.Capability.Block = true })
	f.devices.Raw().Add(attached.VolumeID, stagedLoop, 7, false)
	directory.VolumeID = volume.NewID()

	for name, test := range map[string]struct {
		v       *staged.Volume
		freezes bool
		failure error
	}{
		"without a record":       {nil, true, nil},
		"an image":               {image, true, mount.ErrOutsideAllowed},
		"a raw volume":           {raw, false, syscall.EISDIR},
		"attached":               {attached, false, nil},
		"attached for reading":   {with(func(v *staged.Volume) { v.Capability.Block, v.ReadOnly = true, true }), true, nil},
		"attached nowhere":       {with(func(v *staged.Volume) { v.Capability.Block = true }), true, nil},
		"a directory":            {directory, false, mount.ErrOutsideAllowed},
		"a directory, unmounted": {with(func(v *staged.Volume) { v.Parameters = directory.Parameters }), true, nil},
	} {
		id := "none"
		if test.v != nil {
			id = test.v.VolumeID
			// Not all of these records would be loaded.
			require.NoError(t, f.Records.PutLazily(test.v), name)
		}

		require.Equal(t, test.freezes, volumes.CanFreeze(id), name)

		_, used, err := volumes.InUse(id)
		require.ErrorIs(t, err, test.failure, name)
		require.Equal(t, name == "attached", used, name)
	}

	_, err := volumes.ErrorCount(image.VolumeID)
	require.ErrorIs(t, err, mount.ErrOutsideAllowed)

	count, err := volumes.ErrorCount("none")
	require.NoError(t, err)
	require.Zero(t, count, "want: nothing is counted without a record")

	call := func(context.Context) error { return within }
	require.ErrorIs(t, volumes.WithFrozen(t.Context(), []string{"none", "none"}, call), within)

	err = volumes.WithFrozen(t.Context(), []string{"none", raw.VolumeID, raw.VolumeID}, call)
	require.ErrorIs(t, err, syscall.EISDIR)
	errtext.Require(t, err, "freeze volume "+raw.VolumeID)
}
