package probe

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// inUse returns the state of a probe of the volume, which is in use as that.
func (f *fixture) inUse(used *staged.Volume) *probeState {
	f.node.inUse[f.id] = used

	return f.state()
}

func (f *fixture) suspicion() *fsck.Suspicion {
	if check := f.config.Checker.Get(f.id); check != nil {
		return check.Suspicion
	}

	return nil
}

// sized is an image of a size.
type sized struct {
	fs.FileInfo

	bytes int64
}

func (s sized) Size() int64 { return s.bytes }

func TestImagesAreCompared(t *testing.T) {
	t.Parallel()

	const size = 1 << 20

	here, other := loop.Identity{Inode: 1}, loop.Identity{Inode: 2}

	for name, test := range map[string]struct {
		device   *loop.Status
		bytes    int64
		capacity int64
		want     []health.Reason
	}{
		"not attached":            {nil, 1, size, nil},
		"the same":                {&loop.Status{Backing: here, SizeBytes: size}, size, size, nil},
		"grown":                   {&loop.Status{Backing: here, SizeBytes: size}, 2 * size, size, nil},
		"replaced":                {&loop.Status{Backing: other, SizeBytes: size}, size, size, []health.Reason{health.BackingFileMissing}},
		"shorter than the device": {&loop.Status{Backing: here, SizeBytes: size}, size - 1, 0, []health.Reason{health.BackingFileTruncated}},
		"shorter than the volume": {&loop.Status{Backing: here, SizeBytes: size}, size, size + 1, []health.Reason{health.BackingFileTruncated}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			s := f.inUse(f.image())
			s.device, s.registered.CapacityBytes = test.device, test.capacity
			s.compareImage(here, sized{bytes: test.bytes})
			require.Equal(t, test.want, reasons(s.entries))
			require.Equal(t, test.bytes, s.imageBytes)
			require.Equal(t, test.want != nil, s.unsettled, "want: an operation may cause the finding")

			truncated := len(test.want) > 0 && test.want[0] == health.BackingFileTruncated
			require.Equal(t, truncated, f.suspicion() != nil, "want: a truncation is remembered")
		})
	}
}

func TestLostBackings(t *testing.T) {
	t.Parallel()

	for backing, want := range map[volume.Backing]health.Reason{
		volume.BackingImage: health.BackingFileMissing, volume.BackingDirectory: health.VolumeNotFound,
	} {
		s := &probeState{}
		s.addLostBacking(backing, movedOrDeleted, putBack)
		require.Equal(t, []health.Reason{want}, reasons(s.entries))
		require.True(t, s.unsettled, "want: an operation may cause the finding")
	}
}

func TestDirectoriesAreCompared(t *testing.T) {
	t.Parallel()

	root, err := os.Open(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })

	identity, err := loop.IdentityOf(root)
	require.NoError(t, err)

	s := &probeState{root: root}
	require.NoError(t, s.compareDirectory(identity))
	require.Empty(t, s.entries, "want: the mounted directory is the pool's")
	require.NoError(t, s.compareDirectory(loop.Identity{}))
	require.Equal(t, []health.Reason{health.VolumeNotFound}, reasons(s.entries))

	s = &probeState{}
	require.NoError(t, s.compareDirectory(loop.Identity{}))
	require.Empty(t, s.entries, "want: without a mount nothing is compared")
}

func TestFilesystemsThatStoppedWriting(t *testing.T) {
	t.Parallel()

	readOnlyFlag := volume.Capability{MountFlags: []string{"ro"}}

	for name, test := range map[string]struct {
		volume staged.Volume
		point  mount.Point
		want   []health.Reason
	}{
		"writes":                    {staged.Volume{}, mount.Point{SuperOptions: []string{"rw"}}, nil},
		"shut down":                 {staged.Volume{}, mount.Point{SuperOptions: []string{"rw", "shutdown"}}, []health.Reason{health.DiskFailure}},
		"an error":                  {staged.Volume{}, mount.Point{SuperOptions: []string{"emergency_ro"}, SuperReadOnly: true}, []health.Reason{health.ReadOnlyRemount}},
		"made read-only":            {staged.Volume{}, mount.Point{SuperReadOnly: true}, []health.Reason{health.ReadOnlyRemount}},
		"read-only by its flags":    {staged.Volume{Capability: readOnlyFlag}, mount.Point{SuperReadOnly: true}, nil},
		"attached for reading":      {staged.Volume{ReadOnly: true}, mount.Point{SuperReadOnly: true}, nil},
		"shut down after an error":  {staged.Volume{}, mount.Point{SuperOptions: []string{"shutdown", "emergency_ro"}}, []health.Reason{health.DiskFailure, health.ReadOnlyRemount}},
		"its mount alone read-only": {staged.Volume{}, mount.Point{ReadOnly: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := &probeState{volume: &test.volume, point: test.point}
			s.probeWritable()
			require.Equal(t, test.want, reasons(s.entries))
			require.Equal(t, name == "made read-only", s.unsettled, "want: an operation may cause the finding")
		})
	}
}

func TestExhaustedFilesystemsAreConditions(t *testing.T) {
	t.Parallel()

	full := mount.Usage{Bytes: mount.Amount{Total: 1 << 30}, Inodes: mount.Amount{Total: 10, Available: 1}}
	noInode := mount.Usage{Bytes: mount.Amount{Total: 1 << 30, Available: 1 << 30}, Inodes: mount.Amount{Total: 10}}
	s := &findings{}
	s.addExhausted(full, true)
	require.Equal(t, []health.Reason{health.OutOfCapacity}, reasons(s.entries))
	require.NotContains(t, s.entries[0].Message, "pool", "want: an image is full by itself")

	s = &findings{}
	s.addExhausted(full, false)
	require.Contains(t, s.entries[0].Message, "its pool is full")

	s = &findings{}
	s.addExhausted(noInode, true)
	require.Equal(t, []health.Reason{health.InodesExhausted}, reasons(s.entries))
	require.True(t, Contradicts(noInode, NewRecord("volume")), "want: exhausted inodes contradict a healthy answer")
	require.False(t, Contradicts(noInode, NewRecord("volume", s.entries...)), "want: the answer has the exhausted inodes")
}

func TestGuestsAreAskedForTheUsage(t *testing.T) {
	t.Parallel()

	broken := errors.New("the guest says something private")

	for name, test := range map[string]struct {
		change  func(v *staged.Volume, s *probeState)
		guest   error
		want    []health.Reason
		asked   bool
		again   time.Duration
		noEarly bool
	}{
		"answers":       {nil, nil, []health.Reason{health.OutOfCapacity}, true, 0, false},
		"no answer":     {nil, broken, []health.Reason{health.GuestStatsUnavailable}, false, guestRetryPeriod, true},
		"no sandbox":    {nil, kata.ErrNoSandbox, []health.Reason{health.GuestStatsUnavailable}, false, 0, false},
		"not direct":    {func(v *staged.Volume, _ *probeState) { v.Parameters.DirectAssign = false }, broken, nil, false, 0, false},
		"not published": {func(v *staged.Volume, _ *probeState) { v.Publications = nil }, broken, nil, false, 0, false},
		"no device":     {func(_ *staged.Volume, s *probeState) { s.device = nil }, broken, nil, false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			used := f.image()
			used.Parameters.DirectAssign, used.Publications = true, []staged.Publication{{TargetPath: "/target"}}
			f.node.guest, f.node.usage = test.guest, mount.Usage{Bytes: mount.Amount{Total: 1 << 30}}
			s := f.inUse(used)
			s.device = &loop.Status{}

			if test.change != nil {
				test.change(used, s)
			}

			require.NoError(t, s.probeGuest(t.Context()))
			require.Equal(t, test.want, reasons(s.entries))
			require.Equal(t, test.asked, s.usage != nil, "want: the usage is the guest's")
			require.Equal(t, test.again, s.result().Again)
			require.Equal(t, test.noEarly, s.result().NoEarlyProbe, "want: a guest that may hang is probed less often")

			for _, entry := range s.entries {
				require.NotContains(t, entry.Message, broken.Error(), "want: the guest's words are not reported")
			}
		})
	}

	require.NotEqual(t, GuestFinding(broken).Message, GuestFinding(kata.ErrNoSandbox).Message)
}

func TestUnmountedPathsAreConditions(t *testing.T) {
	t.Parallel()

	busy := &busyVolume{device: Attachment{Number: 7}}

	for name, test := range map[string]struct {
		busy     *busyVolume
		expected expectedMount
		remedy   string
	}{
		"staging path":                    {nil, expectedMount{path: "/path"}, "stage it again: /path"},
		"target path":                     {nil, expectedMount{path: "/path", isTarget: true}, "restart its pod: /path"},
		"persistent target path":          {nil, expectedMount{path: "/path", isTarget: true, isPersistent: true}, "mount it again: /path"},
		"staging path, mounted elsewhere": {&busyVolume{path: "/other"}, expectedMount{path: "/path"}, "stage it again: /path"},
		"unstaged, but attached":          {busy, expectedMount{path: "/path"}, ""},
		"target path, but attached":       {busy, expectedMount{path: "/path", isTarget: true}, "restart its pod: /path"},
	} {
		s := &findings{}
		s.addUnmounted(test.expected, test.busy.isDevice(), "not mounted any more")
		require.True(t, s.unsettled, "want: an operation may cause the finding: %s", name)

		if test.remedy == "" {
			require.Empty(t, s.entries, name)
		} else {
			require.Equal(t, []health.Reason{health.VolumeUnmounted}, reasons(s.entries), name)
			require.Equal(t, "not mounted any more; "+test.remedy, s.entries[0].Message)
		}
	}
}

func TestMountsAreMatchedToVolumes(t *testing.T) {
	t.Parallel()

	const path = "/path"

	image, directory := volume.Parameters{Backing: volume.BackingImage}, volume.Parameters{Backing: volume.BackingDirectory}
	direct := volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}
	onLoop := mount.Point{ID: 9, Major: loop.Major, Minor: 3}
	was := map[string]observedMount{path: {id: 9}}

	for name, test := range map[string]struct {
		parameters volume.Parameters
		block      bool
		point      mount.Point
		last       observation
		attached   *Attachment
		had        bool
		want       bool
		sequence   uint64
	}{
		"its directory":                   {parameters: directory, point: mount.Point{Root: "/pool/volume"}, want: true},
		"another directory":               {parameters: directory, point: mount.Point{ID: 5, Root: "/pool/other"}},
		"its directory, renamed":          {parameters: directory, point: mount.Point{ID: 9, Root: "/pool/other"}, last: observation{mounts: was}, want: true},
		"a guest's":                       {parameters: direct, point: mount.Point{FSType: observe.DirectFSType, Source: observe.DirectSource("volume")}, want: true},
		"another guest's":                 {parameters: direct, point: mount.Point{FSType: observe.DirectFSType, Source: observe.DirectSource("other")}},
		"no loop device":                  {parameters: image, point: mount.Point{Major: 8, Source: "/dev/sda"}},
		"no loop device, raw":             {parameters: image, block: true, point: mount.Point{Major: 8, Source: "/dev/sda"}, had: true},
		"its raw device":                  {parameters: image, block: true, point: onLoop, had: true, want: true},
		"another raw device":              {parameters: image, block: true, point: onLoop},
		"the device that was found":       {parameters: image, point: onLoop, attached: &Attachment{Number: 3, Sequence: 5}, want: true, sequence: 5},
		"another than was found":          {parameters: image, point: onLoop, attached: &Attachment{Number: 4, Sequence: 5}, sequence: 5},
		"mounted since the last probe":    {parameters: image, point: onLoop, last: observation{mounts: was, attached: &Attachment{Number: 3, Sequence: 6}}, want: true, sequence: 6},
		"another device than at the last": {parameters: image, point: mount.Point{ID: 9, Major: loop.Major, Minor: 1<<20 - 1}, last: observation{mounts: was, attached: &Attachment{Number: 3, Sequence: 6}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			f.node.attached = test.had
			used := &staged.Volume{VolumeID: "volume", Parameters: test.parameters, Capability: volume.Capability{Block: test.block}}
			s := f.inUse(used)
			s.volume, s.last.observation, s.attached = used, test.last, test.attached

			found, err := s.isVolume(path, &test.point)
			require.NoError(t, err)
			require.Equal(t, test.want, found, "want: the mount is the volume's")

			if test.sequence != 0 {
				require.Equal(t, test.sequence, s.attached.Sequence, "want: the attachment is known")
			}
		})
	}
}

func TestEarliestRequestedProbeWins(t *testing.T) {
	t.Parallel()

	s := &probeState{}

	for _, step := range []struct{ wait, want time.Duration }{{3, 3}, {5, 3}, {3, 3}, {2, 2}} {
		s.probeAgainAfter(step.wait)
		require.Equal(t, step.want, s.result().Again)
	}
}

// TestRawDevicesOfNoNumberAreMissing, the second one only where there is one.
func TestRawDevicesOfNoNumberAreMissing(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	used := f.image()
	used.Capability.Block = true
	s := f.inUse(used)
	require.NoError(t, s.probeRawDevices(t.Context()))
	require.Equal(t, []health.Reason{health.DeviceMissing}, reasons(s.entries), "want: one finding, of the device of the staging")
	require.Nil(t, s.device, "want: no device is found")
	require.True(t, s.unsettled, "want: an operation may cause the finding")

	s = f.state()
	found, err := s.probeRawDevice(1<<20-1, 1)
	require.NoError(t, err)
	require.Nil(t, found, "want: the number has no device")
	require.Equal(t, []health.Reason{health.DeviceMissing}, reasons(s.entries))

	s = f.state()
	s.attached = &Attachment{Number: 1<<20 - 1}
	require.NoError(t, s.probeMountedDevice())
	require.Equal(t, []health.Reason{health.DeviceMissing}, reasons(s.entries))
}

// TestDetachingDevicesAreBusy unless something of the volume is known to be busy.
func TestDetachingDevicesAreBusy(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	s := f.inUse(f.image())
	s.addDetaching(7, 12)
	require.Equal(t, Attachment{Number: 7, Sequence: 12}, f.busy.get(f.id).device)
	require.True(t, s.busy.isUnstaged() && s.unsettled, "want: this probe reports it, unless an operation causes it")

	f.busy.forget(f.id)
	f.busy.add(f.id, busyVolume{path: "/target"})

	s = f.state()
	s.addDetaching(7, 12)
	require.Equal(t, "/target", f.busy.get(f.id).path, "want: what a call could not release stays")

	f.busy.forget(f.id)

	s = f.state()
	delete(f.node.inUse, f.id)
	s.addDetaching(7, 12)
	require.Nil(t, f.busy.get(f.id), "want: nothing is remembered of a volume that was unstaged during the probe")

	s = f.inUse(f.image())
	f.during(func() { s.addDetaching(7, 12) })
	require.Nil(t, f.busy.get(f.id), "want: an operation that is running detaches it itself")
}
