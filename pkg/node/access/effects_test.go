package access_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// life is what is done with a volume, in order, and what is reported to the checker and the prober meanwhile.
type life struct {
	*fixture

	t       *testing.T
	reports []string
}

func (l *life) step(name string, err error) {
	l.t.Helper()
	require.NoError(l.t, err, name)
	l.note(name)
}

func (l *life) note(name string) {
	l.t.Helper()
	require.Zero(l.t, l.spy.closed, "want: each gate is opened again")

	if notes := l.spy.taken(); len(notes) > 0 {
		l.reports = append(l.reports, fmt.Sprintf("%s: %s", name, strings.Join(notes, ", ")))
	}
}

func (l *life) use() {
	l.t.Helper()
	l.step("publish", l.Publish(l.t))
	l.step("republish", l.Way.Republish(l.t.Context(), l.V, l.Publication))
	l.step("unpublish", l.Unpublish(l.t))
	l.step("unpublish again", l.Unpublish(l.t))
	l.step("detach reader", l.devices.DetachUnusedReader(l.t.Context(), l.V))
}

func (l *life) end() {
	l.t.Helper()
	l.step("unstage", l.Way.Unstage(l.t.Context(), l.V))
	l.step("unstage again", l.Way.Unstage(l.t.Context(), l.V))
	l.requireDetached()
}

// change has the volume staged in another way.
func (l *life) change(change func(v *staged.Volume)) {
	changed := l.V.Clone()
	change(changed)
	l.V, l.Way = changed, l.ways.For(changed)
}

// TestCheckerAndProberAreNotified in the lifecycle of volumes.
func TestCheckerAndProberAreNotified(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	direct, withOptions := image, image
	direct.DirectAssign, withOptions.MkfsOptions = true, "-m 7"

	raw := volume.Capability{Block: true}

	const formatted, checked = "stage: 0 attached until its last user, formatted", "stage again: 0 attached until its last user, check ext4, error count 0"

	unpublished, unstaged := "unpublish: target unmounted", "unstage: staging unmounted, 0 detached"
	second, withoutSecond, detached := "1 attached read-only as the second", "detach reader: 1 detached", "unstage: 0 detached"
	prepared := "stage again: 0 attached until its last user, check ext4, 0 detached, 0 attached"

	for name, test := range map[string]struct {
		v        staged.Volume
		readOnly bool
		want     []string
	}{
		"mounted":       {staged.Volume{Parameters: image}, false, []string{formatted, unpublished, unstaged, checked, unstaged}},
		"mounted, read": {staged.Volume{Parameters: image}, true, []string{formatted, unpublished, unstaged, checked, unstaged}},
		"mounted, with options": {
			staged.Volume{Parameters: withOptions},
			false,
			[]string{"stage: 0 detached, 0 attached until its last user, formatted", unpublished, unstaged, checked, unstaged},
		},
		"raw": {
			staged.Volume{Parameters: image, Capability: raw},
			false,
			[]string{"stage: 0 attached, forget", unpublished, detached, "stage again: 0 attached, forget", detached},
		},
		"raw, read": {
			staged.Volume{Parameters: image, Capability: raw},
			true,
			[]string{"stage: 0 attached, forget", "publish: " + second, unpublished, withoutSecond, detached, "stage again: 0 attached, forget", detached},
		},
		"raw, attached to be read": {
			staged.Volume{Parameters: image, Capability: raw, ReadOnly: true},
			true,
			[]string{"stage: 0 attached read-only", unpublished, detached, "stage again: 0 attached read-only", detached},
		},
		"directory": {
			staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)},
			false,
			[]string{unpublished, "unstage: staging unmounted", "unstage: staging unmounted"},
		},
		"direct": {
			staged.Volume{Parameters: direct},
			false,
			[]string{"stage: formatted, 0 attached", "publish: cancel, limited true", unpublished, detached, prepared, detached},
		},
		"direct, read": {
			staged.Volume{Parameters: direct},
			true,
			[]string{"stage: formatted, 0 attached", "publish: cancel, limited true, " + second, unpublished, withoutSecond, detached, prepared, detached},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &life{fixture: newFixture(t, test.v), t: t}
			l.Publication.ReadOnly = test.readOnly

			l.Store(t)
			l.step("stage", l.Stage(t))
			l.use()
			l.end()
			l.step("stage again", l.Stage(t))
			l.end()
			require.Equal(t, test.want, l.reports)
		})
	}
}

// TestAFilesystemIsPreparedForItsMount has a filesystem that is there staged in another way, twice.
func TestAFilesystemIsPreparedForItsMount(t *testing.T) {
	const (
		checked  = "0 attached until its last user, check ext4"
		prepared = checked + ", 0 detached, "
		mounted  = checked + ", error count 0"
		direct   = prepared + "0 attached"
		shared   = "0 attached read-only until its last user"
	)

	for name, test := range map[string]struct {
		direct bool
		change func(v *staged.Volume)
		first  string
		second string
	}{
		"as before":            {false, func(*staged.Volume) {}, mounted, mounted},
		"for reading":          {false, func(v *staged.Volume) { v.ReadOnly = true }, mounted, mounted},
		"for readers on nodes": {false, func(v *staged.Volume) { v.Capability.Mode = readers }, shared, shared},
		"a copy":               {false, func(v *staged.Volume) { v.Copy = true }, mounted, mounted},
		"a copy for reading":   {false, func(v *staged.Volume) { v.Copy, v.ReadOnly = true, true }, prepared + mounted, mounted},
		"a copy for readers":   {false, func(v *staged.Volume) { v.Copy, v.Capability.Mode = true, readers }, prepared + shared, shared},
		"direct":               {true, func(*staged.Volume) {}, direct, direct},
		"a direct copy":        {true, func(v *staged.Volume) { v.Copy = true }, direct, direct},
	} {
		t.Run(name, func(t *testing.T) {
			l := formattedLife(t, test.direct)
			l.change(test.change)

			for _, want := range []string{test.first, test.second} {
				l.step("stage", l.Stage(t))
				require.Equal(t, []string{"stage: " + want}, l.reports)
				l.requireFreezable()
				require.Equal(t, l.V.Copy, l.hasOwnUUID(), "want: only a copy gets the volume's id as its UUID")
				l.end()
				l.reports = nil
			}
		})
	}
}

// TestDamageIsRecorded has a check fail: the staging fails, and nothing is left of it.
func TestDamageIsRecorded(t *testing.T) {
	damaged := errors.New("it is damaged")

	for _, test := range []struct {
		isDirect, toBeRead bool
		spy                spy
	}{
		{false, false, spy{failure: damaged}},
		{true, false, spy{failure: damaged}},
		{false, true, spy{failure: damaged}},
		{false, false, spy{first: damaged}},
		{true, false, spy{first: damaged}},
	} {
		l := formattedLife(t, test.isDirect)
		l.change(func(v *staged.Volume) { v.Copy, v.ReadOnly = test.toBeRead, test.toBeRead })
		l.spy.failure, l.spy.first = test.spy.failure, test.spy.first

		require.ErrorIs(t, l.Stage(t), damaged)
		l.note("stage")
		require.Equal(t, []string{"stage: 0 attached until its last user, check ext4, 0 detached, failure"}, l.reports)
		require.NoDirExists(t, l.V.StagingPath)
		l.requireDetached()
	}
}

// TestRawVolumeWithoutItsRecordDroppedIsNotStaged: its filesystem would be checked again.
func TestRawVolumeWithoutItsRecordDroppedIsNotStaged(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingImage), Capability: volume.Capability{Block: true}})
	f.Store(t)
	f.spy.first = errors.New("the record stays")

	require.ErrorIs(t, f.Stage(t), f.spy.first)
	require.NoError(t, f.Way.Unstage(t.Context(), f.V))
}

// TestBadFlagsAreTheFaultOfTheirUser also where the filesystem is only read.
func TestBadFlagsAreTheFaultOfTheirUser(t *testing.T) {
	for _, mode := range []string{csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER.String(), readers} {
		l := formattedLife(t, false)
		l.change(func(v *staged.Volume) { v.Capability.Mode, v.Capability.MountFlags = mode, []string{"none-such"} })
		rpccode.Require(t, rpc.Status(l.Way.Stage(t.Context(), l.V, l.At(t, l.V.StagingPath))), codes.InvalidArgument)
		l.requireDetached()
	}
}

// formattedLife is that of an image with a filesystem.
func formattedLife(t *testing.T, direct bool) *life {
	t.Helper()

	parameters := parametersOf(t, volume.BackingImage)
	parameters.DirectAssign = direct
	l := &life{fixture: newFixture(t, staged.Volume{Parameters: parameters}), t: t}
	l.Store(t)
	require.NoError(t, l.Stage(t))
	require.NoError(t, l.Way.Unstage(t.Context(), l.V))
	require.NoError(t, os.RemoveAll(l.V.StagingPath))
	l.spy.taken()

	return l
}

func (l *life) image() *os.File {
	l.t.Helper()

	image, err := l.pool.Images.Open(l.V.VolumeID, os.O_RDONLY)
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = image.Close() })

	return image
}

func (l *life) hasOwnUUID() bool {
	l.t.Helper()

	ext4, err := filesystem.ByName(filesystem.Ext4, nil)
	require.NoError(l.t, err)

	own, err := ext4.HasUUID(l.image(), l.V.VolumeID)
	require.NoError(l.t, err)

	return own
}

// requireFreezable requires that all that may be written is frozen before a copy, and nothing else.
func (l *life) requireFreezable() {
	l.t.Helper()

	targets := freeze.Targets{}
	require.NoError(l.t, l.Way.AddFreezeTargets(l.V, &targets))
	require.Equal(l.t, !l.V.IsReadOnly(), len(targets.Filesystems)+len(targets.Devices) == 1, "want: what may be written is frozen")
	require.NoError(l.t, targets.Close())
}

func (l *life) requireDetached() {
	l.t.Helper()

	if l.V.Parameters.Backing.HasFilesystem() {
		require.Eventually(l.t, func() bool {
			found, err := l.loops.Find(l.image())

			return err == nil && len(found) == 0
		}, await.Limit, 10*time.Millisecond, "the image is detached")
	}
}

// TestPublicationsOutliveTheirStaging mounts the volume again without a check: it is in use.
func TestPublicationsOutliveTheirStaging(t *testing.T) {
	l := formattedLife(t, false)
	require.NoError(t, l.Stage(t))
	require.NoError(t, l.Publish(t))
	l.spy.taken()

	require.NoError(t, l.At(t, l.V.StagingPath).Unmount())

	proper := l.V
	l.change(func(v *staged.Volume) { v.Capability.MountFlags = []string{"none-such"} })
	rpccode.Require(t, rpc.Status(l.Stage(t)), codes.InvalidArgument)
	require.Equal(t, []string{"0 attached until its last user", "failure"}, l.spy.taken(), "want: the device stays")
	l.change(func(v *staged.Volume) { v.Capability = proper.Capability })

	l.step("stage", l.Stage(t))
	l.step("unpublish", l.Unpublish(t))
	l.end()
	require.Equal(t, []string{
		"stage: 0 attached until its last user", "unpublish: target unmounted", "unstage: staging unmounted, 0 detached",
	}, l.reports)
}
