package access

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	idA = "01890000-0000-7000-8000-00000000000a"
	idB = "01890000-0000-7000-8000-00000000000b"
)

// device is a loop device of a machine.
type device struct {
	image               string
	readOnly, autoClear bool
	sequence            uint64
	// broken means that its sequence cannot be read.
	broken bool
}

// machine is a Provider on a sysfs of plain files.
type machine struct {
	*Provider

	sys, root, kubelet string
}

// gates is a Prober of volumes that are not mounted.
type gates struct{ Prober }

func (gates) CloseGate(string) (reopen func()) { return func() {} }

func newMachine(t *testing.T, devices map[int]device) *machine {
	t.Helper()

	directory, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	m := &machine{
		sys: filepath.Join(directory, "sys"), root: filepath.Join(directory, "kata"), kubelet: filepath.Join(directory, "kubelet"),
	}
	for _, each := range []string{filepath.Join(m.sys, "block"), m.root, m.kubelet} {
		require.NoError(t, os.MkdirAll(each, 0o700))
	}

	dirs, err := mount.NewAllowedDirs(m.kubelet)
	require.NoError(t, err)

	log := slog.New(slog.DiscardHandler)
	store := state.New(filepath.Join(directory, "state"), state.Options{Owner: t.Name(), Log: log})
	records := staged.NewVolumes(store)
	require.NoError(t, store.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, store.Close()) })

	m.Provider = New(Config{
		Volumes: records, Dirs: dirs, Log: log, Prober: gates{}, Direct: kata.Runtimes{Root: kata.NewRoot(m.root)},
		// No device can be opened.
		Loops: loop.NewLoops(loop.LoopsOptions{First: 5, Sys: m.sys, Dev: "/dev/null/none"}),
	})

	for number, each := range devices {
		m.attach(t, number, each)
	}

	return m
}

func (m *machine) attach(t *testing.T, number int, of device) {
	t.Helper()

	flag := map[bool]string{false: "0\n", true: "1\n"}
	block := filepath.Join(m.sys, "block", fmt.Sprintf("loop%d", number))
	require.NoError(t, os.RemoveAll(block))
	require.NoError(t, os.MkdirAll(filepath.Join(block, "loop"), 0o700))

	for name, content := range map[string]string{
		"loop/backing_file": of.image + "\n", "loop/autoclear": flag[of.autoClear], "ro": flag[of.readOnly], "diskseq": fmt.Sprintf("%d\n", of.sequence),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(block, name), []byte(content), 0o600))
	}

	if of.broken {
		require.NoError(t, os.Remove(filepath.Join(block, "diskseq")))
		require.NoError(t, os.Mkdir(filepath.Join(block, "diskseq"), 0o700))
	}
}

// used returns a volume of the kind.
func used(id string, change func(*staged.Volume)) *staged.Volume {
	v := &staged.Volume{
		VolumeID: id, Slot: NoDevice, StagingPath: "/staging",
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

// TestDevicesOfARawVolume has the devices of a volume as they were attached, taken by other images, and gone.
func TestDevicesOfARawVolume(t *testing.T) {
	t.Parallel()

	type seen struct {
		devices, frozen []int
		// writer and reader are the devices of publications.
		writer, reader, staged, inUse int
		lost                          bool
	}

	const no, yes = 0, 1

	own, second, other := device{image: "/a.img", sequence: 7}, device{image: "/a.img", sequence: 8, readOnly: true}, device{image: "/b.img", sequence: 9}
	leaving := own
	leaving.autoClear = true

	for name, test := range map[string]struct {
		devices  map[int]device
		second   bool
		readOnly bool
		want     seen
	}{
		"one":              {map[int]device{1: own}, false, false, seen{[]int{1}, []int{1}, 1, NoDevice, yes, yes, false}},
		"two":              {map[int]device{1: own, 2: second}, true, false, seen{[]int{1, 2}, []int{1, 2}, 1, 2, yes, yes, false}},
		"read-only":        {map[int]device{1: own}, false, true, seen{[]int{1}, nil, 1, 1, yes, yes, false}},
		"about to detach":  {map[int]device{1: leaving}, false, false, seen{[]int{1}, []int{1}, 1, NoDevice, no, yes, false}},
		"gone":             {nil, false, false, seen{[]int{1}, []int{1}, 1, NoDevice, no, no, true}},
		"taken":            {map[int]device{1: other}, false, false, seen{nil, nil, NoDevice, NoDevice, no, no, true}},
		"taken, of two":    {map[int]device{1: other, 2: second}, true, false, seen{[]int{2}, []int{2}, 2, 2, no, no, false}},
		"the second taken": {map[int]device{1: own, 2: other}, true, false, seen{[]int{1}, []int{1}, 1, NoDevice, yes, yes, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t, test.devices)
			v := used(idA, rawVolume)
			v.ReadOnly = test.readOnly
			way := m.For(v)

			m.devices.add(idA, 1, 7, false)

			if test.second {
				m.devices.add(idA, 2, 8, true)
			}

			numbers := func(found []int, err error) []int {
				require.NoError(t, err)

				return found
			}
			number := func(found int, err error) int {
				require.NoError(t, err)

				return found
			}
			answer := func(is bool, err error) int {
				require.NoError(t, err)

				return map[bool]int{false: no, true: yes}[is]
			}
			targets := freeze.Targets{}
			require.NoError(t, way.AddFreezeTargets(v, &targets))

			_, lost, err := m.lostDevice(v, staged.Publication{})
			require.NoError(t, err)

			require.Equal(t, test.want, seen{
				devices: numbers(way.Devices(v)), frozen: targets.Devices,
				writer: number(way.DeviceOf(v, staged.Publication{})), reader: number(way.DeviceOf(v, staged.Publication{ReadOnly: true})),
				staged: answer(way.IsStaged(v)), inUse: answer(way.IsInUse(v)), lost: lost,
			})
			require.True(t, m.HadDevice(idA, 1), "want: the volume had the device, whatever has its number")
			require.Equal(t, test.second, m.HadDevice(idA, 2), "want: only a second device was the volume's, too")
		})
	}
}

// TestAnUnreadableDeviceIsUnknown has no device for absent that sysfs does not describe.
func TestAnUnreadableDeviceIsUnknown(t *testing.T) {
	t.Parallel()

	m := newMachine(t, map[int]device{1: {image: "/a.img", sequence: 7, broken: true}})
	raw, ephemeral := used(idA, rawVolume), used(idA, func(v *staged.Volume) { v.Ephemeral = true })
	recorded := used(idA, func(v *staged.Volume) { v.Device = &staged.Device{Number: 1, Sequence: 7} })
	way := m.For(raw)

	for _, second := range []bool{false, true} {
		m.devices.drop(idA)
		m.devices.add(idA, 1, 7, second)

		for name, of := range map[string]func() error{
			"Devices":  func() error { _, err := way.Devices(raw); return err },
			"DeviceOf": func() error { _, err := way.DeviceOf(raw, staged.Publication{}); return err },
			"IsStaged": func() error { _, err := way.IsStaged(raw); return err },
			"IsInUse":  func() error { _, err := way.IsInUse(raw); return err },
			"Expand":   func() error { _, err := way.Expand(t.Context(), raw, "/", nil); return err },
			"frozen":   func() error { return way.AddFreezeTargets(raw, &freeze.Targets{}) },
			"lost":     func() error { _, _, err := m.lostDevice(raw, staged.Publication{}); return err },
			"left":     func() error { _, err := m.IsLeft(recorded); return err },
			"inline":   func() error { _, err := m.IsLeft(ephemeral); return err },
			"detach":   func() error { return m.DetachAll(t.Context(), raw) },
			"reader":   func() error { return m.DetachUnusedReader(t.Context(), raw) },
			"length":   func() error { return m.CheckLength(raw) },
			"find":     m.FindDevices,
			"stale": func() error {
				_, err := m.isStaleNode(used(idB, rawVolume), mount.Point{Source: "/dev/loop1"})
				return err
			},
		} {
			require.ErrorContains(t, of(), "loop1", "want: %s fails", name)
		}
	}

	_, err := m.IsLeft(recorded)
	rpccode.Require(t, err, codes.Unavailable)
}

// TestLeftDevice is the device of a mounted image that is attached without a mount.
func TestLeftDevice(t *testing.T) {
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

			m := newMachine(t, map[int]device{1: {image: "/pool/" + idA + ".img", sequence: 7, autoClear: true}, 2: {image: "/pool/other.img", sequence: 8}})
			v := used(idA, test.change)

			found, attached, err := m.leftDevice(v)
			require.NoError(t, err)
			require.Equal(t, test.want, attached, "want: the device is found if it is left")

			left, err := m.IsLeft(v)
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

// TestFindByName finds the devices of raw and direct volumes that have records, by the names of their images.
func TestFindByName(t *testing.T) {
	t.Parallel()

	const reader, mounted, direct = "01890000-0000-7000-8000-00000000000c", "01890000-0000-7000-8000-00000000000d", "01890000-0000-7000-8000-00000000000e"

	m := newMachine(t, map[int]device{
		1: {image: "/pool/" + idA + ".img", sequence: 11},
		2: {image: "/pool/" + idA + ".img", sequence: 12, readOnly: true},
		3: {image: "/pool/" + idB + ".img (deleted)", sequence: 13},
		4: {image: "/pool/" + reader + ".img", sequence: 14, readOnly: true},
		5: {image: "/pool/" + mounted + ".img", sequence: 15},
		6: {image: "/pool/unknown.img", sequence: 16},
		7: {image: "/pool/" + direct + ".img", sequence: 17},
	})

	for _, v := range []*staged.Volume{
		used(idA, rawVolume), used(idB, rawVolume), used(mounted, nil), used(direct, directly),
		used(reader, func(v *staged.Volume) { rawVolume(v); v.ReadOnly = true }),
	} {
		require.NoError(t, m.config.Volumes.Put(t.Context(), v))
	}

	require.NoError(t, m.FindDevices())

	one := func(number int, sequence uint64) Attachments {
		return Attachments{deviceNumbers: deviceNumbers{Staged: number, ReadOnly: NoDevice}, StagedSequence: sequence}
	}

	require.Equal(t, map[string]Attachments{
		idA: {deviceNumbers: deviceNumbers{Staged: 1, ReadOnly: 2}, StagedSequence: 11, ReadOnlySequence: 12},
		idB: one(3, 13), reader: one(4, 14), direct: one(7, 17),
	}, m.devices.byVolume)
	require.Empty(t, m.devices.notFound, "want: all devices are found")
}

// TestADeviceThatWasNotFoundIsSearchedForAgain has a start that cannot read an assignment.
func TestADeviceThatWasNotFoundIsSearchedForAgain(t *testing.T) {
	t.Parallel()

	m := newMachine(t, map[int]device{1: {image: "/pool/other.img", sequence: 7}})
	v := used(idA, func(v *staged.Volume) {
		directly(v)
		v.Publications = []staged.Publication{{TargetPath: filepath.Join(m.kubelet, "target"), Capability: v.Capability}}
	})
	require.NoError(t, m.config.Volumes.Put(t.Context(), v))
	require.NoError(t, m.config.Volumes.Put(t.Context(), used(idB, nil)))

	require.NoError(t, os.Chmod(m.root, 0o777))
	require.NoError(t, m.FindDevices())
	require.Equal(t, map[string]struct{}{idA: {}}, m.devices.notFound)

	_, err := m.Attachments(idA)
	require.ErrorIs(t, err, kata.ErrUnsafeRoot, "unknown is not absent")

	require.NoError(t, os.Chmod(m.root, 0o700))

	found, err := m.Attachments(idA)
	require.NoError(t, err)
	require.Equal(t, Attachments{deviceNumbers: noDevices()}, found)
	require.Empty(t, m.devices.notFound, "want: no search is open")
	require.NoError(t, m.findAgain("a volume without a record"))
}

// TestCandidateNumbers is where the devices of a volume are looked for: its slot, and its assignments.
func TestCandidateNumbers(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change  func(v *staged.Volume)
		devices []string
		want    []int
	}{
		"no slot":                        {nil, nil, nil},
		"the first slot":                 {func(v *staged.Volume) { v.Slot = 0 }, nil, []int{5}},
		"a slot":                         {func(v *staged.Volume) { v.Slot = 3 }, nil, []int{8}},
		"assignments":                    {directly, []string{"/dev/loop0", "/dev/loop9"}, []int{0, 9}},
		"assignments of a raw volume":    {rawVolume, []string{"/dev/loop4"}, nil},
		"an assignment of another disk":  {directly, []string{"/dev/sda"}, nil},
		"a published volume, unassigned": {directly, []string{""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t, nil)
			v := used(idA, test.change)

			for i, device := range test.devices {
				target := filepath.Join(m.kubelet, fmt.Sprintf("target%d", i))
				v.Publications = append(v.Publications, staged.Publication{TargetPath: target})

				if device != "" {
					require.NoError(t, m.config.Direct.Root.Put(kata.Assignment{TargetPath: target, Device: device, FSType: "ext4"}))
				}
			}

			found, err := m.candidateNumbers(v)
			require.NoError(t, err)
			require.Equal(t, test.want, found)
		})
	}
}

// TestAssignment is what a runtime reads.
func TestAssignment(t *testing.T) {
	t.Parallel()

	m := newMachine(t, nil)

	var err error

	m.config.Direct.HostPaths, err = kata.ParseHostPaths([]string{"/dev/null/none=/dev"})
	require.NoError(t, err)

	for name, test := range map[string]struct {
		flags            []string
		readOnly, reader bool
		want             []string
	}{
		"for writing":                  {[]string{"noatime,rw"}, false, false, []string{"noatime", "rw"}},
		"no flags":                     {nil, false, false, nil},
		"a read-only publication":      {[]string{"noatime", "rw", "ro"}, true, false, []string{"noatime", "ro"}},
		"of a volume that may be read": {nil, false, true, []string{"ro"}},
	} {
		v := used(idA, directly)
		v.ReadOnly = test.reader

		publication := staged.Publication{
			TargetPath: "/target", ReadOnly: test.readOnly, Capability: volume.Capability{MountFlags: test.flags, MountGroup: "4711"},
		}
		require.Equal(t, kata.Assignment{
			TargetPath: "/target", Device: "/dev/loop3", FSType: "ext4", Options: test.want, Group: "4711",
		}, m.assignment(v, publication, 3), name)
	}
}

// TestIsStaleNode has mounts of device nodes at the target path of a raw volume.
func TestIsStaleNode(t *testing.T) {
	t.Parallel()

	m := newMachine(t, map[int]device{1: {image: "/pool/other.img", sequence: 7}, 2: {image: "/pool/another.img", sequence: 8}})
	m.devices.add(idA, 1, 6, false)

	for name, test := range map[string]struct {
		point mount.Point
		want  bool
	}{
		"no device":                           {mount.Point{Source: "tmpfs", Root: "/"}, false},
		"the node of the former device":       {mount.Point{Source: "devtmpfs", Root: "/loop1"}, true},
		"the node of another device":          {mount.Point{Source: "devtmpfs", Root: "/loop2"}, false},
		"the node of no device":               {mount.Point{Source: "devtmpfs", Root: "/loop3"}, true},
		"the filesystem on the former device": {mount.Point{Major: loopMajor, Minor: 1, Source: "/dev/loop1", Root: "/"}, false},
	} {
		stale, err := m.isStaleNode(used(idA, rawVolume), test.point)
		require.NoError(t, err, name)
		require.Equal(t, test.want, stale, name)
	}
}
