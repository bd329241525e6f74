package direct

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/loopsys"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	idA = "01890000-0000-7000-8000-00000000000a"
	idB = "01890000-0000-7000-8000-00000000000b"
)

// machine has volumes on a sysfs of plain files.
type machine struct {
	*Access

	ways    *access.Ways
	devices *device.Devices
	sys     loopsys.Sys

	root, kubelet string
	// checker is the one that a volume's checks are ended with, and closeStore lets no record be stored.
	checker    *checker
	closeStore func()
}

// checker has checks that come to their end, or not.
type checker struct {
	access.Checker

	err      error
	within   context.Context //nolint:containedctx // to see that it ends
	failures []error
}

func (c *checker) Cancel(ctx context.Context, _ string) error {
	c.within = ctx

	return c.err
}

func (c *checker) RecordFailure(_ context.Context, _ *staged.Volume, failure error) {
	c.failures = append(c.failures, failure)
}

// gates is what is asked about volumes that are not mounted.
type gates struct{ access.Events }

func (gates) Close(string) (reopen func()) { return func() {} }

func newMachine(t *testing.T, devices map[int]loopsys.Device) *machine {
	t.Helper()

	directory, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	m := &machine{checker: &checker{}, sys: loopsys.New(t, devices), root: filepath.Join(directory, "kata"), kubelet: filepath.Join(directory, "kubelet")}
	for _, each := range []string{m.root, m.kubelet} {
		require.NoError(t, os.MkdirAll(each, 0o700))
	}

	dirs, err := mount.NewAllowedDirs(m.kubelet)
	require.NoError(t, err)

	log := slog.New(slog.DiscardHandler)
	store := state.New(filepath.Join(directory, "state"), state.Options{Owner: t.Name(), Log: log})
	records := staged.NewVolumes(store)
	require.NoError(t, store.Open(t.Context()))

	m.closeStore = sync.OnceFunc(func() { require.NoError(t, store.Close()) })
	t.Cleanup(m.closeStore)

	pools := pool.NewSet(map[string]string{"default": filepath.Join(directory, "pool")})
	t.Cleanup(func() { require.NoError(t, pools.Close()) })

	loops, root := m.sys.Loops(), kata.NewRoot(m.root)
	observer := observe.New(dirs, loops)
	config := access.Config{
		Config: device.Config{Pools: staged.Pools{Volumes: pools}, Loops: loops, Volumes: records, Observer: observer, Assigned: device.AssignedBy(root), Log: log},
		Dirs:   dirs, Checker: m.checker, Gate: gates{}, MountEvents: gates{},
	}
	m.devices = device.New(config.Config)
	config.Devices = m.devices
	shared := access.NewShared(config)
	m.Access = New(Config{Config: config, Runtimes: kata.Runtimes{Root: root}, Shared: shared})
	m.ways = access.New(shared, m.Access)

	return m
}

// used returns a volume of the kind.
func used(id string, change func(*staged.Volume)) *staged.Volume {
	v := &staged.Volume{
		VolumeID: id, Slot: device.None, StagingPath: "/staging",
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

	own, second, other := loopsys.Device{Image: "/a.img", Sequence: 7}, loopsys.Device{Image: "/a.img", Sequence: 8, ReadOnly: true}, loopsys.Device{Image: "/b.img", Sequence: 9}
	leaving := own
	leaving.AutoClear = true

	for name, test := range map[string]struct {
		devices  map[int]loopsys.Device
		second   bool
		readOnly bool
		want     seen
	}{
		"one":              {map[int]loopsys.Device{1: own}, false, false, seen{[]int{1}, []int{1}, 1, device.None, yes, yes, false}},
		"two":              {map[int]loopsys.Device{1: own, 2: second}, true, false, seen{[]int{1, 2}, []int{1, 2}, 1, 2, yes, yes, false}},
		"read-only":        {map[int]loopsys.Device{1: own}, false, true, seen{[]int{1}, nil, 1, 1, yes, yes, false}},
		"about to detach":  {map[int]loopsys.Device{1: leaving}, false, false, seen{[]int{1}, []int{1}, 1, device.None, no, yes, false}},
		"gone":             {nil, false, false, seen{[]int{1}, []int{1}, 1, device.None, no, no, true}},
		"taken":            {map[int]loopsys.Device{1: other}, false, false, seen{nil, nil, device.None, device.None, no, no, true}},
		"taken, of two":    {map[int]loopsys.Device{1: other, 2: second}, true, false, seen{[]int{2}, []int{2}, 2, 2, no, no, false}},
		"the second taken": {map[int]loopsys.Device{1: own, 2: other}, true, false, seen{[]int{1}, []int{1}, 1, device.None, yes, yes, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t, test.devices)
			v := used(idA, rawVolume)
			v.ReadOnly = test.readOnly
			way := m.ways.For(v)

			m.devices.Raw().Add(idA, 1, 7, false)

			if test.second {
				m.devices.Raw().Add(idA, 2, 8, true)
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

			_, lost, err := m.Assignments.lostDevice(v, staged.Publication{})
			require.NoError(t, err)

			require.Equal(t, test.want, seen{
				devices: numbers(way.Devices(v)), frozen: targets.Devices,
				writer: number(way.DeviceOf(v, staged.Publication{})), reader: number(way.DeviceOf(v, staged.Publication{ReadOnly: true})),
				staged: answer(way.IsStaged(v)), inUse: answer(way.IsInUse(v)), lost: lost,
			})
			require.True(t, m.devices.Raw().Had(idA, 1), "want: the volume had the device, whatever has its number")
			require.Equal(t, test.second, m.devices.Raw().Had(idA, 2), "want: only a second device was the volume's, too")
		})
	}
}

// TestAnUnreadableDeviceIsUnknown has no device for absent that sysfs does not describe.
func TestAnUnreadableDeviceIsUnknown(t *testing.T) {
	t.Parallel()

	m := newMachine(t, map[int]loopsys.Device{1: {Image: "/a.img", Sequence: 7, Broken: true}})
	raw, ephemeral := used(idA, rawVolume), used(idA, func(v *staged.Volume) { v.Ephemeral = true })
	recorded := used(idA, func(v *staged.Volume) { v.Device = &staged.Device{Number: 1, Sequence: 7} })

	for _, second := range []bool{false, true} {
		m := newMachine(t, map[int]loopsys.Device{1: {Image: "/a.img", Sequence: 7, Broken: true}})
		way := m.ways.For(raw)
		m.devices.Raw().Add(idA, 1, 7, second)

		for name, of := range map[string]func() error{
			"Devices":  func() error { _, err := way.Devices(raw); return err },
			"DeviceOf": func() error { _, err := way.DeviceOf(raw, staged.Publication{}); return err },
			"Expand":   func() error { _, err := way.Expand(t.Context(), raw, "/", nil); return err },
			"frozen":   func() error { return way.AddFreezeTargets(raw, &freeze.Targets{}) },
			"lost":     func() error { _, _, err := m.Assignments.lostDevice(raw, staged.Publication{}); return err },
			"left":     func() error { _, err := m.devices.IsLeft(recorded); return err },
			"inline":   func() error { _, err := m.devices.IsLeft(ephemeral); return err },
			"detach":   func() error { return m.devices.DetachAll(t.Context(), raw) },
			"reader":   func() error { return m.devices.DetachUnusedReader(t.Context(), raw) },
			"length":   func() error { return m.ways.CheckLength(raw) },
			"find":     m.devices.Raw().Find,
			"stale": func() error {
				_, err := m.devices.Raw().IsStaleNode(used(idB, rawVolume), mount.Point{Source: "/dev/loop1"})
				return err
			},
		} {
			errtext.Require(t, of(), "loop1", "want: %s fails", name)
		}

		_, err := way.IsStaged(raw)
		require.Equal(t, second, err == nil, "want: the first device says whether it is staged")

		_, err = way.IsInUse(raw)
		require.Equal(t, second, err == nil, "want: the first device says whether it is in use")
	}

	_, err := m.devices.IsLeft(recorded)
	rpccode.Require(t, err, codes.Unavailable)
}

func TestARuntimeReadsTheAssignment(t *testing.T) {
	t.Parallel()

	m := newMachine(t, nil)

	var err error

	m.config.Runtimes.HostPaths, err = kata.ParseHostPaths([]string{"/dev/null/none=/dev"})
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
		}, m.Assignments.assignment(v, publication, 3), name)
	}
}

// TestAssignedBy is the number in the assignment of a publication.
func TestAssignedBy(t *testing.T) {
	t.Parallel()

	m := newMachine(t, nil)
	find := device.AssignedBy(m.config.Runtimes.Root)

	for name, test := range map[string]struct {
		change   func(v *staged.Volume)
		device   string
		want     int
		assigned bool
	}{
		"a loop device":      {directly, "/dev/loop9", 9, true},
		"the first one":      {directly, "/dev/loop0", 0, true},
		"of a raw volume":    {rawVolume, "/dev/loop4", device.None, false},
		"another disk":       {directly, "/dev/sda", 0, false},
		"nothing is written": {directly, "", device.None, false},
	} {
		publication := staged.Publication{TargetPath: filepath.Join(m.kubelet, name)}

		if test.device != "" {
			require.NoError(t, m.config.Runtimes.Root.Put(kata.Assignment{TargetPath: publication.TargetPath, Device: test.device, FSType: "ext4"}))
		}

		number, assigned, err := find(used(idA, test.change), publication)
		require.NoError(t, err, name)
		require.Equal(t, test.assigned, assigned, "want: whether a device is assigned: %s", name)
		require.Equal(t, test.want, number, name)
	}

	require.NoError(t, os.Chmod(m.root, 0o777))

	_, _, err := find(used(idA, directly), staged.Publication{TargetPath: "/target"})
	require.ErrorIs(t, err, kata.ErrUnsafeRoot, "unknown is not absent")
}

func TestAnErrorHasNoWordsOfTheGuest(t *testing.T) {
	t.Parallel()

	other := errors.New("the directory is gone")

	for _, test := range []struct{ failure, want error }{
		{errReadOnlyGuest, errReadOnlyGuest},
		{fmt.Errorf("%w: words of a guest", kata.ErrUnimplemented), kata.ErrUnimplemented},
		{fmt.Errorf("%w: words of a guest", kata.ErrNoSandbox), kata.ErrNoSandbox},
		{fmt.Errorf("%w: words of a guest", kata.ErrNoAnswer), kata.ErrNoAnswer},
		{other, other},
	} {
		require.Equal(t, test.want, guestCause(test.failure))
	}
}
