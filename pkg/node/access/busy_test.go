package access_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestAnOpenDeviceStaysInUse has another program hold the device of a volume that is unstaged.
func TestAnOpenDeviceStaysInUse(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	direct := image
	direct.DirectAssign = true

	for name, test := range map[string]struct {
		v    staged.Volume
		want []string
	}{
		"mounted": {staged.Volume{Parameters: image}, []string{"unstage: staging unmounted, 0 detached, 0 busy, sequence known true"}},
		"raw":     {staged.Volume{Parameters: image, Capability: volume.Capability{Block: true}}, []string{"unstage: 0 detached, 0 busy, sequence known true"}},
		"direct":  {staged.Volume{Parameters: direct}, []string{"unstage: 0 detached, 0 busy, sequence known true"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &life{fixture: newFixture(t, test.v), t: t}
			l.Store(t)
			require.NoError(t, l.Stage(t))

			holder, err := os.Open(l.status(t).Path)
			require.NoError(t, err)

			defer holder.Close()

			l.spy.taken()

			short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()

			require.ErrorIs(t, l.Way.Unstage(short, l.V), loop.ErrInUse)
			l.note("unstage")
			require.Equal(t, test.want, l.reports)

			isStaged, err := l.Way.IsStaged(l.V)
			require.NoError(t, err)
			require.False(t, isStaged, "want: it is not staged any more")

			inUse, err := l.Way.IsInUse(l.V)
			require.NoError(t, err)
			require.True(t, inUse, "want: it is in use until its device is gone")

			require.NoError(t, holder.Close())
			require.NoError(t, l.Way.Unstage(t.Context(), l.V))

			inUse, err = l.Way.IsInUse(l.V)
			require.NoError(t, err)
			require.False(t, inUse, "want: its device is gone")
		})
	}
}

// TestABusyMountIsReported has another program hold a file in each mount of a volume.
func TestABusyMountIsReported(t *testing.T) {
	for name, v := range map[string]staged.Volume{
		"image": {Parameters: parametersOf(t, volume.BackingImage)}, "directory": {Parameters: parametersOf(t, volume.BackingDirectory)},
	} {
		t.Run(name, func(t *testing.T) {
			l := &life{fixture: newFixture(t, v), t: t}
			l.Store(t)
			require.NoError(t, l.Stage(t))
			require.NoError(t, l.Publish(t))
			l.spy.taken()

			for path, end := range map[string]func() error{
				l.V.StagingPath:          func() error { return l.Way.Unstage(t.Context(), l.V) },
				l.Publication.TargetPath: func() error { return l.Way.Unpublish(l.V, l.Publication, l.At(t, l.Publication.TargetPath)) },
			} {
				holder, err := os.Open(path)
				require.NoError(t, err)
				require.ErrorIs(t, end(), mount.ErrBusy)
				require.NoError(t, holder.Close())
				require.Equal(t, []string{filepath.Base(path) + " busy"}, l.spy.taken())
			}

			require.NoError(t, l.Unpublish(t))
			l.end()
		})
	}
}

// TestATargetPathStaysIfItIsUsed removes only what the driver has made.
func TestATargetPathStaysIfItIsUsed(t *testing.T) {
	for name, test := range map[string]struct {
		made bool
		put  func(target string) error
		want bool
	}{
		"made":           {true, func(string) error { return nil }, false},
		"the CO's":       {false, func(string) error { return nil }, true},
		"with content":   {true, func(target string) error { return os.Mkdir(filepath.Join(target, "other"), 0o700) }, true},
		"gone":           {true, os.Remove, false},
		"gone, the CO's": {false, os.Remove, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)})
			f.Publication.Made = test.made
			f.Store(t)
			require.NoError(t, f.Stage(t))
			require.NoError(t, f.Publish(t))
			require.NoError(t, f.At(t, f.Publication.TargetPath).Unmount())
			require.NoError(t, test.put(f.Publication.TargetPath))

			require.NoError(t, f.Way.Unpublish(f.V, f.Publication, nil))

			_, err := os.Lstat(f.Publication.TargetPath)
			require.Equal(t, test.want, err == nil, "want: the path stays if it is another program's: %v", err)
			require.NoError(t, f.Way.Unstage(t.Context(), f.V))
		})
	}
}

// cover mounts another filesystem over a path.
func (f *fixture) cover(t *testing.T, path string) (uncover func()) {
	t.Helper()

	tree, err := mount.NewReadOnlyTmpfs("foreign", map[string][]byte{"file": nil})
	require.NoError(t, err)

	defer tree.Close()

	require.NoError(t, tree.Attach(f.At(t, path)))

	return func() { require.NoError(t, f.At(t, path).Unmount()) }
}

// TestACoveredPublicationIsFound has something else mounted over the paths of each kind of volume.
func TestACoveredPublicationIsFound(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	direct := image
	direct.DirectAssign = true

	for name, v := range map[string]staged.Volume{
		"image": {Parameters: image}, "directory": {Parameters: parametersOf(t, volume.BackingDirectory)}, "direct": {Parameters: direct},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, v)
			f.Store(t)
			require.NoError(t, f.Stage(t))
			require.NoError(t, f.Publish(t))

			target := f.Publication.TargetPath
			uncover := f.cover(t, target)

			published, err := f.Way.IsPublished(f.V, f.Publication)
			require.NoError(t, err)
			require.True(t, published, "want: it is published beneath another mount")

			if !f.V.IsDirect() {
				rpccode.Require(t, rpc.Status(f.Way.Republish(t.Context(), f.V, f.Publication)), codes.FailedPrecondition)
				require.Equal(t, "staging", f.rootOf(t))

				uncoverStaging := f.cover(t, f.V.StagingPath)
				require.Empty(t, f.rootOf(t), "want: no root is visible")
				uncover()
				require.Equal(t, "target", f.rootOf(t))
				uncoverStaging()
			} else {
				uncover()
			}

			rpccode.Require(t, rpc.Status(f.Way.Unpublish(f.V, f.Publication, nil)), codes.OK)
			require.NoError(t, f.Unpublish(t))
			require.NoError(t, f.Way.Unstage(t.Context(), f.V))
			require.Empty(t, f.rootOf(t), "want: no root without a mount")
		})
	}
}

// rootOf returns where the root of the volume's filesystem was opened, "" for nowhere.
func (f *fixture) rootOf(t *testing.T) string {
	t.Helper()

	root, point, err := f.observer.OpenRoot(f.V)
	require.NoError(t, err)
	require.NoError(t, f.ways.CheckNotShutDown(f.V))

	if root == nil {
		require.Equal(t, mount.Point{}, point)

		return ""
	}

	require.NoError(t, root.Close())

	return filepath.Base(point.Path)
}

// TestTheStaleNodeOfADeviceIsUnmounted has another program detach the device of a published raw volume.
func TestTheStaleNodeOfADeviceIsUnmounted(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingImage), Capability: volume.Capability{Block: true}})
	f.Store(t)
	require.NoError(t, f.Stage(t))
	require.NoError(t, f.Publish(t))

	number := f.status(t).Number
	require.NoError(t, f.loops.Detach(t.Context(), number))

	_, err := f.Way.Stats(t.Context(), f.V, nil)
	rpccode.Require(t, err, codes.NotFound)

	file, err := os.Create(filepath.Join(f.pool.Path(), "images", "other"))
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, file.Truncate(size))

	other, err := f.loops.Attach(t.Context(), file, loop.AttachOptions{AutoClear: true, PreferredNumber: number})
	require.NoError(t, err)

	defer other.Close()

	require.Equal(t, number, other.Number, "want: another image has the number")

	_, err = f.Way.Stats(t.Context(), f.V, nil)
	rpccode.Require(t, err, codes.NotFound)
	_, err = f.Way.Expand(t.Context(), f.V, f.V.StagingPath, nil)
	rpccode.Require(t, err, codes.NotFound)
	rpccode.Require(t, rpc.Status(f.Way.Publish(t.Context(), f.V, f.Publication, f.At(t, f.Publication.TargetPath+"2"))), codes.FailedPrecondition)
	require.NoError(t, os.Remove(f.Publication.TargetPath+"2"))

	require.NoError(t, f.Unpublish(t))
	require.NoError(t, f.Way.Unstage(t.Context(), f.V))

	now, attached, err := f.loops.Attachment(number)
	require.NoError(t, err)
	require.True(t, attached && now.Sequence == other.Sequence, "want: the other image stays attached")
}

// TestAFoundMountIsRecorded stages a volume that is mounted without a record, or with another one.
func TestAFoundMountIsRecorded(t *testing.T) {
	image := parametersOf(t, volume.BackingImage)
	other := &staged.Device{Number: 1, Sequence: 1}

	for name, test := range map[string]struct {
		v      staged.Volume
		change func(v *staged.Volume)
		want   func(v *staged.Volume, device *staged.Device)
	}{
		"without a record": {
			staged.Volume{Parameters: image},
			func(v *staged.Volume) {
				v.Device, v.Capability, v.Parameters = nil, volume.Capability{}, volume.Parameters{Backing: volume.BackingImage}
			},
			func(v *staged.Volume, device *staged.Device) { v.Device, v.Parameters.FSType = device, "ext4" },
		},
		"its filesystem is known": {
			staged.Volume{Parameters: image},
			func(v *staged.Volume) {
				v.Device, v.Capability, v.Parameters = nil, volume.Capability{}, volume.Parameters{Backing: volume.BackingImage, FSType: "ext4"}
			},
			func(v *staged.Volume, device *staged.Device) { v.Device = device },
		},
		"another device is recorded": {
			staged.Volume{Parameters: image}, func(v *staged.Volume) { v.Device = other }, func(*staged.Volume, *staged.Device) {},
		},
		"a directory": {
			staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)}, func(*staged.Volume) {}, func(*staged.Volume, *staged.Device) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.v)
			f.Store(t)

			identified, err := f.devices.Identify(f.V)
			require.NoError(t, err)
			require.Same(t, f.V, identified, "want: nothing is known of what is not mounted")

			require.NoError(t, f.Stage(t))

			var device *staged.Device

			if f.V.Parameters.Backing.HasFilesystem() {
				status := f.status(t)
				device = &staged.Device{Number: status.Number, Sequence: status.Sequence}
			}

			require.Equal(t, device, f.V.Device, "want: the device of a staging is recorded")

			proper := f.V
			changed := f.V.Clone()
			test.change(changed)
			f.V, f.Way = changed, f.ways.For(changed)

			want := changed.Clone()
			test.want(want, device)

			f.spy.taken()
			require.NoError(t, f.Stage(t))
			require.Empty(t, f.spy.taken(), "want: what is mounted stays")
			require.Equal(t, want, f.V)
			require.NoError(t, f.ways.For(proper).Unstage(t.Context(), proper))
		})
	}
}
