package device

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/loopsys"
)

// TestAssignedBy reads the assignments of a root.
func TestAssignedBy(t *testing.T) {
	t.Parallel()

	root, unsafe := kata.NewRoot(filepath.Join(t.TempDir(), "root")), filepath.Join(t.TempDir(), "unsafe")
	require.NoError(t, os.WriteFile(unsafe, nil, 0o600))

	for target, device := range map[string]string{"/none/loop": "/dev/loop7", "/none/other": "/dev/sda"} {
		require.NoError(t, root.Put(kata.Assignment{TargetPath: target, Device: device, FSType: "ext4"}))
	}

	for name, test := range map[string]struct {
		v      *staged.Volume
		target string
		number int
		found  bool
	}{
		"assigned":       {used(idA, directly), "/none/loop", 7, true},
		"another device": {used(idA, directly), "/none/other", 0, false},
		"none":           {used(idA, directly), "/none/none", None, false},
		"raw block":      {used(idA, rawVolume), "/none/loop", None, false},
	} {
		number, found, err := AssignedBy(root)(test.v, staged.Publication{TargetPath: test.target})
		require.NoError(t, err, name)
		require.Equal(t, test.found, found, name)
		require.Equal(t, test.number, number, name)
	}

	_, _, err := AssignedBy(kata.NewRoot(unsafe))(used(idA, directly), staged.Publication{TargetPath: "/none/loop"})
	require.Error(t, err, "want: unknown is not absent")
}

func TestOnlyDevicesOfTheVolumeAreReturned(t *testing.T) {
	t.Parallel()

	const broken = 4

	d, _ := newDevices(t, loopsys.New(t, map[int]loopsys.Device{1: {Image: "/pool/a.img", Sequence: 11}, 2: {Image: "/pool/a.img", Sequence: 12}, broken: {Image: "/pool/b.img", Broken: true}}), nil)

	for name, test := range map[string]struct {
		held    Attachments
		want    Numbers
		failure error
	}{
		"none":                {Attachments{Numbers: noNumbers()}, noNumbers(), nil},
		"both":                {Attachments{Numbers{1, 2}, 11, 12, false}, Numbers{1, 2}, nil},
		"another first":       {Attachments{Numbers{1, 2}, 10, 12, false}, Numbers{None, 2}, nil},
		"another second":      {Attachments{Numbers{1, 2}, 11, 10, false}, Numbers{1, None}, nil},
		"detached":            {Attachments{Numbers{3, None}, 11, 0, false}, Numbers{3, None}, nil},
		"unknown first":       {Attachments{Numbers{broken, 2}, 11, 12, false}, noNumbers(), syscall.EISDIR},
		"unknown second":      {Attachments{Numbers{1, broken}, 11, 12, false}, Numbers{1, None}, syscall.EISDIR},
		"unknown, and no one": {Attachments{Numbers{None, broken}, 11, 12, false}, noNumbers(), syscall.EISDIR},
	} {
		d.raw.byVolume[idA] = test.held

		got, err := d.Raw().Get(idA)
		require.ErrorIs(t, err, test.failure, name)
		require.Equal(t, test.want, got, name)

		first, err := d.For(t.Context(), used(idA, rawVolume), staged.Publication{})
		require.Equal(t, test.want.Staged, first, name)

		switch {
		case test.failure != nil:
			require.ErrorIs(t, err, test.failure, name)
		case test.want.Staged == None:
			require.ErrorIs(t, err, ErrTaken, name)
		default:
			require.NoError(t, err, name)
		}
	}

	d.raw.byVolume[idA] = Attachments{Numbers{1, broken}, 11, 12, false}
	require.ErrorIs(t, d.DetachAll(t.Context(), used(idA, rawVolume)), syscall.EISDIR)
	require.Contains(t, d.raw.byVolume, idA, "want: what is unknown is not forgotten")

	_, _, err := d.Raw().Attachment("none")
	require.NoError(t, err)
	d.raw.Add(idB, broken, 1, false)
	_, _, err = d.Raw().Attachment(idB)
	require.ErrorIs(t, err, syscall.EISDIR)
}

// TestSearchesFail where the devices cannot be listed, and where a mount cannot be observed.
func TestSearchesFail(t *testing.T) {
	t.Parallel()

	sys, failure := loopsys.New(t, map[int]loopsys.Device{1: {Image: "/pool/old.img"}}), errors.New("no assignment can be read")
	d, records := newDevices(t, sys, nil)
	v := used(idA, func(v *staged.Volume) {
		rawVolume(v)
		v.Publications = []staged.Publication{{TargetPath: "/proc/target", Capability: v.Capability}}
	})
	require.NoError(t, records.PutLazily(v))

	_, err := d.raw.candidateNumbers(v)
	require.ErrorIs(t, err, mount.ErrOutsideAllowed)
	require.ErrorIs(t, d.raw.findAgain(idA), mount.ErrOutsideAllowed)

	d.config.Assigned = func(*staged.Volume, staged.Publication) (int, bool, error) { return 1, true, failure }
	require.ErrorIs(t, d.raw.findByPublication(v, nil), failure)

	// No node of a device can be opened.
	d.config.Assigned = func(*staged.Volume, staged.Publication) (int, bool, error) { return 1, true, nil }
	v.Publications[0].TargetPath = "/none/target"
	require.ErrorIs(t, d.raw.findByPublication(v, nil), syscall.ENOTDIR)
	require.ErrorIs(t, d.Detach(t.Context(), v, 1), syscall.ENOTDIR, "want: a device without a sequence is asked itself")

	_, err = d.Resize([]int{1}, nil)
	require.ErrorIs(t, err, syscall.ENOTDIR)

	require.NoError(t, os.RemoveAll(filepath.Join(string(sys), "block")))
	require.ErrorIs(t, d.raw.Find(), fs.ErrNotExist)
	require.ErrorIs(t, d.raw.findAgain(idA), fs.ErrNotExist)

	_, err = d.IsLeft(used(idA, func(v *staged.Volume) { v.Ephemeral = true }))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestAnUnrecordedDeviceIsRecorded(t *testing.T) {
	t.Parallel()

	d, records := newDevices(t, loopsys.New(t, nil), nil)
	v := used(idA, nil)

	for _, want := range []staged.Device{{Number: 1, Sequence: 7}, {Number: 1, Sequence: 8}, {Number: 2, Sequence: 8}} {
		require.NoError(t, d.Record(v, &loop.Device{Status: loop.Status{Number: want.Number, Sequence: want.Sequence}}))

		now, ok := records.Get(idA)
		require.True(t, ok, "want: the volume has a record")
		require.Equal(t, &want, now.Device)
		require.NotSame(t, v, now, "want: a record is not changed, but replaced")

		v = now
		require.NoError(t, d.Record(v, &loop.Device{Status: loop.Status{Number: want.Number, Sequence: want.Sequence}}))

		now, _ = records.Get(idA)
		require.Same(t, v, now, "want: the same device is not recorded again")
	}
}
