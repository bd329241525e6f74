package device

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
)

const (
	idA = "01890000-0000-7000-8000-00000000000a"
	idB = "01890000-0000-7000-8000-00000000000b"
)

// newDevices returns the devices of a sysfs of plain files. Assigned is that of Config.
func newDevices(
	t *testing.T, sys loopsys.Sys, assigned func(v *staged.Volume, publication staged.Publication) (int, bool, error),
) (*Devices, *staged.Records[*staged.Volume]) {
	t.Helper()

	directory, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	dirs, err := mount.NewAllowedDirs("/none", directory)
	require.NoError(t, err)

	log, loops := slog.New(slog.DiscardHandler), sys.Loops()
	store := state.New(filepath.Join(directory, "state"), state.Options{Owner: t.Name(), Log: log})
	records := staged.NewVolumes(store)
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	if assigned == nil {
		assigned = func(*staged.Volume, staged.Publication) (int, bool, error) { return None, false, nil }
	}

	return New(Config{Loops: loops, Volumes: records, Observer: observe.New(dirs, loops), Assigned: assigned, Log: log}), records
}

// used returns a volume of the kind.
func used(id string, change func(*staged.Volume)) *staged.Volume {
	v := &staged.Volume{
		VolumeID: id, Slot: None, StagingPath: "/staging",
		Capability: volume.Capability{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"},
		Parameters: volume.Parameters{
			Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
		},
	}
	if change != nil {
		change(v)
	}

	return v
}

func rawVolume(v *staged.Volume) {
	v.Capability = volume.Capability{Block: true, Mode: "SINGLE_NODE_WRITER"}
}

func directly(v *staged.Volume) { v.Parameters.DirectAssign = true }

func TestADeviceWithoutItsMountIsFound(t *testing.T) {
	t.Parallel()

	at := func(number int, sequence uint64) *staged.Device {
		return &staged.Device{Number: number, Sequence: sequence}
	}

	for name, test := range map[string]struct {
		change func(v *staged.Volume)
		want   bool
	}{
		"recorded":                      {func(v *staged.Volume) { v.Device = at(1, 7) }, true},
		"another attachment":            {func(v *staged.Volume) { v.Device = at(1, 6) }, false},
		"not attached":                  {func(v *staged.Volume) { v.Device = at(4, 7) }, false},
		"not recorded":                  {nil, false},
		"inline":                        {func(v *staged.Volume) { v.Ephemeral = true }, true},
		"inline, of another attachment": {func(v *staged.Volume) { v.Ephemeral, v.Device = true, at(1, 6) }, false},
		"another inline volume":         {func(v *staged.Volume) { v.VolumeID, v.Ephemeral = "none", true }, false},
		"raw block":                     {func(v *staged.Volume) { v.Device, v.Capability.Block = at(1, 7), true }, false},
		"direct":                        {func(v *staged.Volume) { v.Device, v.Parameters.DirectAssign = at(1, 7), true }, false},
		"directory":                     {func(v *staged.Volume) { v.Device, v.Parameters.Backing = at(1, 7), volume.BackingDirectory }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d, _ := newDevices(t, loopsys.New(t, map[int]loopsys.Device{1: {Image: "/pool/" + idA + ".img", Sequence: 7, AutoClear: true}, 2: {Image: "/pool/other.img", Sequence: 8}}), nil)
			v := used(idA, test.change)

			found, attached, err := d.leftDevice(v)
			require.NoError(t, err)
			require.Equal(t, test.want, attached, "want: the device is found if it is left")

			left, err := d.IsLeft(v)
			require.NoError(t, err)
			require.Equal(t, test.want, left, "want: IsLeft agrees")

			if test.want {
				require.Equal(t, loop.Attachment{
					Number: 1, Path: "/dev/null/none/loop1", BackingPath: "/pool/" + idA + ".img", AutoClear: true, Sequence: 7,
				}, found)
			}
		})
	}
}

// TestADeviceOfAnotherBootIsNotTakenOver has a record whose number and sequence another image's device got after a boot. It
// is not taken for the volume's by its path; the name at its attachment decides, which needs a real device.
func TestADeviceOfAnotherBootIsNotTakenOver(t *testing.T) {
	t.Parallel()

	d, _ := newDevices(t, loopsys.New(t, map[int]loopsys.Device{2: {Image: "/pool/other.img", Sequence: 8}}), nil)

	_, _, err := d.leftDevice(used(idA, func(v *staged.Volume) { v.Device = &staged.Device{Number: 2, Sequence: 8} }))
	errtext.Require(t, err, "it is unknown whether volume "+idA+" is attached to loop2", "want: the device's own name is asked for")
}

func TestDevicesAreFoundByTheNamesOfTheirImages(t *testing.T) {
	t.Parallel()

	const reader, mounted, direct = "01890000-0000-7000-8000-00000000000c", "01890000-0000-7000-8000-00000000000d", "01890000-0000-7000-8000-00000000000e"

	d, records := newDevices(t, loopsys.New(t, map[int]loopsys.Device{
		1: {Image: "/pool/" + idA + ".img", Sequence: 11},
		2: {Image: "/pool/" + idA + ".img", Sequence: 12, ReadOnly: true},
		3: {Image: "/pool/" + idB + ".img (deleted)", Sequence: 13},
		4: {Image: "/pool/" + reader + ".img", Sequence: 14, ReadOnly: true},
		5: {Image: "/pool/" + mounted + ".img", Sequence: 15},
		6: {Image: "/pool/unknown.img", Sequence: 16},
		7: {Image: "/pool/" + direct + ".img", Sequence: 17},
	}), func(*staged.Volume, staged.Publication) (int, bool, error) {
		return None, false, errors.New("a search that is not needed")
	})

	for _, v := range []*staged.Volume{
		used(idA, rawVolume), used(idB, rawVolume), used(mounted, nil), used(direct, func(v *staged.Volume) {
			directly(v)
			v.Publications = []staged.Publication{{TargetPath: "/none/target", Capability: v.Capability}}
		}),
		used(reader, func(v *staged.Volume) { rawVolume(v); v.ReadOnly = true }),
	} {
		require.NoError(t, records.Put(t.Context(), v))
	}

	require.NoError(t, d.Raw().Find())

	one := func(number int, sequence uint64) Attachments {
		return Attachments{Numbers: Numbers{Staged: number, ReadOnly: None}, StagedSequence: sequence}
	}

	require.Equal(t, map[string]Attachments{
		idA: {Numbers: Numbers{Staged: 1, ReadOnly: 2}, StagedSequence: 11, ReadOnlySequence: 12},
		idB: one(3, 13), reader: one(4, 14), direct: one(7, 17),
	}, d.raw.byVolume)
}

// TestCandidateNumbers is where the devices of a volume are looked for: its slot, and its assignments.
func TestCandidateNumbers(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		slot     int
		assigned []int
		want     []int
	}{
		"no slot":        {staged.NoSlot, nil, nil},
		"the first slot": {0, nil, []int{5}},
		"a slot":         {3, nil, []int{8}},
		"assignments":    {staged.NoSlot, []int{0, 9}, []int{0, 9}},
		"both":           {3, []int{0, None}, []int{8, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d, _ := newDevices(t, loopsys.New(t, nil), func(v *staged.Volume, publication staged.Publication) (int, bool, error) {
				at := slices.IndexFunc(v.Publications, func(p staged.Publication) bool { return p.TargetPath == publication.TargetPath })

				return test.assigned[at], test.assigned[at] != None, nil
			})
			v := used(idA, directly)
			v.Slot = test.slot

			for i := range test.assigned {
				v.Publications = append(v.Publications, staged.Publication{TargetPath: fmt.Sprintf("/none/target%d", i)})
			}

			found, err := d.raw.candidateNumbers(v)
			require.NoError(t, err)
			require.Equal(t, test.want, found)
		})
	}
}

// TestIsStaleNode has mounts of device nodes at the target path of a raw volume.
func TestIsStaleNode(t *testing.T) {
	t.Parallel()

	d, _ := newDevices(t, loopsys.New(t, map[int]loopsys.Device{
		1: {Image: "/pool/other.img", Sequence: 7}, 2: {Image: "/pool/another.img", Sequence: 8},
		4: {Image: "/pool/broken.img", Broken: true},
	}), nil)
	d.raw.Add(idA, 1, 6, false)

	for name, test := range map[string]struct {
		point mount.Point
		want  bool
	}{
		"no device":                           {mount.Point{Source: "tmpfs", Root: "/"}, false},
		"the node of the former device":       {mount.Point{Source: "devtmpfs", Root: "/loop1"}, true},
		"the node of another device":          {mount.Point{Source: "devtmpfs", Root: "/loop2"}, false},
		"the node of no device":               {mount.Point{Source: "devtmpfs", Root: "/loop3"}, true},
		"the filesystem on the former device": {mount.Point{Major: loop.Major, Minor: 1, Source: "/dev/loop1", Root: "/"}, false},
	} {
		stale, err := d.raw.IsStaleNode(used(idA, rawVolume), test.point)
		require.NoError(t, err, name)
		require.Equal(t, test.want, stale, name)
	}

	_, err := d.raw.IsStaleNode(used(idA, rawVolume), mount.Point{Source: "devtmpfs", Root: "/loop4"})
	errtext.Require(t, err, "it is unknown whether", "want: unknown is not absent")
}

func TestDevicesThatAStartDidNotFindAreSearchedAgain(t *testing.T) {
	t.Parallel()

	failure, searched := errors.New("no descriptor is left"), 0
	search := failure

	d, records := newDevices(t, loopsys.New(t, nil), func(*staged.Volume, staged.Publication) (int, bool, error) {
		searched++

		return None, false, search
	})
	r, none := d.Raw(), Attachments{Numbers: Numbers{Staged: None, ReadOnly: None}}

	require.NoError(t, records.Put(t.Context(), used(idA, func(v *staged.Volume) {
		directly(v)
		v.Publications = []staged.Publication{{TargetPath: "/none/target", Capability: v.Capability}}
	})))
	require.NoError(t, records.Put(t.Context(), used(idB, nil)))

	got, err := r.Found(idA)
	require.NoError(t, err)
	require.Equal(t, none, got)
	require.Zero(t, searched, "want: no search without a failure")

	require.NoError(t, r.Find())
	require.Equal(t, map[string]Attachments{idA: {Numbers: noNumbers(), notFound: true}}, r.byVolume)

	got, err = r.Found(idA)
	require.ErrorIs(t, err, failure)
	require.Equal(t, none, got)

	numbers, err := r.Get(idA)
	require.ErrorIs(t, err, failure, "unknown is not absent")
	require.Equal(t, none.Numbers, numbers)

	_, attached, err := r.Attachment(idA)
	require.ErrorIs(t, err, failure)
	require.False(t, attached, "want: no device is known")
	require.Equal(t, 4, searched, "want: each call searches again")

	search = nil

	for range 2 {
		got, err = r.Found(idA)
		require.NoError(t, err)
		require.Equal(t, none, got)
	}

	require.Equal(t, 5, searched, "want: what was found is not searched for")
	require.Equal(t, none, r.byVolume[idA], "want: no search is open")
	require.NoError(t, r.findAgain("a volume without a record"))

	r.Add(idA, 1_000_000, 7, false)

	want := Attachments{Numbers: Numbers{Staged: 1_000_000, ReadOnly: None}, StagedSequence: 7}
	require.Equal(t, want, r.recorded(idA))

	r.Add(idA, 1_000_001, 8, true)
	require.True(t, r.Had(idA, 1_000_000), "want: the first device")
	require.True(t, r.Had(idA, 1_000_001), "want: the second device")
	require.False(t, r.Had(idA, 1_000_002), "want: no other device")

	r.Add(idA, None, 0, true)
	r.Add(idB, None, 0, true)
	require.Equal(t, want, r.recorded(idA))
	require.Equal(t, none, r.recorded(idB))

	r.change(idA, func(a *Attachments) { a.notFound = true })
	r.drop(idA)

	got, err = r.Found(idA)
	require.NoError(t, err)
	require.Equal(t, none, got)
	require.Equal(t, 5, searched, "want: no search for a volume that was dropped")
}

// TestRawDevicesOfSeveralVolumesAtOnce changes and reads records at the same time.
func TestRawDevicesOfSeveralVolumesAtOnce(t *testing.T) {
	t.Parallel()

	d, _ := newDevices(t, loopsys.New(t, nil), nil)
	r := d.Raw()

	var changing sync.WaitGroup

	for worker := range 8 {
		changing.Go(func() {
			id := strconv.Itoa(worker)

			for range 500 {
				r.change(id, func(a *Attachments) { a.notFound = true })
				r.Add(id, worker, 1, false)
				r.Add(id, None, 0, true)

				if got, err := r.Found(id); err != nil || got.Staged != worker {
					t.Errorf("volume %s has device %d: %v", id, got.Staged, err)
				}

				r.drop(id)
			}
		})
	}

	changing.Wait()
}
