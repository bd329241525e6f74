package removal_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// disposable is a directory in a pool that a CO can have removed.
type disposable struct {
	// path is its path, and removing its path until it is gone.
	path, removing string
	remove         func() error
}

// disposables make one of each kind, with what fill puts into it.
func disposables() map[string]func(t *testing.T, d *harness.Driver, fill func(path string)) disposable {
	rooms := func(room, id string) (string, string) { return filepath.Join(room, id), filepath.Join("removing", id) }
	ctx := context.Background()

	volume := func(t *testing.T, d *harness.Driver, fill func(string)) disposable {
		t.Helper()

		id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "volume", Parameters: harness.DirectoryBacked()}).VolumeID
		path, removing := rooms("directories", id)
		fill(filepath.Join(d.Pool(), path))

		return disposable{path, removing, func() error {
			_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

			return err
		}}
	}

	return map[string]func(t *testing.T, d *harness.Driver, fill func(path string)) disposable{
		"volume": volume,
		"snapshot": func(t *testing.T, d *harness.Driver, fill func(string)) disposable {
			t.Helper()

			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "source", Parameters: harness.DirectoryBacked()})
			id := harness.TakeSnapshot(t, d, claim.VolumeID, "snapshot")
			path, removing := rooms("snapshots", id)
			fill(filepath.Join(d.Pool(), path))

			return disposable{path, removing, func() error {
				_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})

				return err
			}}
		},
		"ephemeral": func(t *testing.T, d *harness.Driver, fill func(string)) disposable {
			t.Helper()

			claim := harness.InlineClaim(t, d, map[string]string{"size": "16Mi", "backing": "directory"})
			namespace.NeedRoot(t)
			require.NoError(t, d.Publish(t.Context(), claim))

			path, removing := rooms("directories", harness.EphemeralObjects(t, d)[0])
			fill(claim.TargetPath)

			return disposable{
				filepath.Join("ephemeral", path), filepath.Join("ephemeral", removing),
				func() error { return d.Unpublish(ctx, claim) },
			}
		},
	}
}

// goes waits until nothing of it is left.
func (o disposable) goes(t *testing.T, d *harness.Driver) {
	t.Helper()

	require.Eventually(t, func() bool {
		_, place := os.Lstat(filepath.Join(d.Pool(), o.path))
		_, removing := os.Lstat(filepath.Join(d.Pool(), o.removing))

		return errors.Is(place, fs.ErrNotExist) && errors.Is(removing, fs.ErrNotExist)
	}, 80*time.Second, 10*time.Millisecond, "waited for %s, and %s, to be gone", o.path, o.removing)
}

// deepen makes directories inside each other, as `mkdir d; cd d` does.
func deepen(t *testing.T, directory string, levels int) {
	t.Helper()

	const name = "a-directory-with-a-long-name"

	at, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)

	for range levels {
		require.NoError(t, unix.Mkdirat(at, name, 0o755))

		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(at))

		at = next
	}

	require.NoError(t, unix.Close(at))
}

// limitDescriptors lets this process, which the driver is in too, open only so many more files until
// the test ends.
func limitDescriptors(t *testing.T, more int) {
	t.Helper()

	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)

	var before unix.Rlimit

	// Setrlimit would have Go's children get this limit, too.
	self := os.Getpid()
	require.NoError(t, unix.Prlimit(self, unix.RLIMIT_NOFILE, nil, &before))
	require.NoError(t, unix.Prlimit(self, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(len(entries) + more), Max: before.Max}, nil))
	t.Cleanup(func() { require.NoError(t, unix.Prlimit(self, unix.RLIMIT_NOFILE, &before, nil)) })
}

func TestDeepTreesAreRemovedWithFewDescriptors(t *testing.T) {
	// Deeper than what the pool copies and measures; no path can be as long.
	const few, levels = 100, 2100

	for kind, makeObject := range disposables() {
		t.Run(kind, func(t *testing.T) {
			d := harness.Start(t)
			object := makeObject(t, d, func(path string) { deepen(t, path, levels) })
			limitDescriptors(t, few)
			require.NoError(t, object.remove())
			object.goes(t, d)
		})
	}
}

func TestImmutableFilesAreRemoved(t *testing.T) {
	namespace.NeedRoot(t)

	for kind, makeObject := range disposables() {
		t.Run(kind, func(t *testing.T) {
			d := harness.Start(t)
			object := makeObject(t, d, func(path string) {
				require.NoError(t, os.Mkdir(filepath.Join(path, "locked"), 0o755))
				harness.WriteFile(t, filepath.Join(path, "locked", "immutable"), "stays")
				harness.WriteFile(t, filepath.Join(path, "log"), "grows")
				harness.RunTool(t, 0, "chattr", "+i", filepath.Join(path, "locked", "immutable"), filepath.Join(path, "locked"))
				harness.RunTool(t, 0, "chattr", "+a", filepath.Join(path, "log"))
			})
			require.NoError(t, object.remove())
			object.goes(t, d)
		})
	}
}

// TestAMountBelowIsNotRemoved refuses before the first step, and names the mount.
func TestAMountBelowIsNotRemoved(t *testing.T) {
	namespace.NeedRoot(t)

	for kind, makeObject := range disposables() {
		t.Run(kind, func(t *testing.T) {
			d := harness.Start(t)
			object := makeObject(t, d, func(path string) {
				require.NoError(t, os.MkdirAll(filepath.Join(path, "a", "mounted"), 0o755))
				harness.WriteFile(t, filepath.Join(path, "kept"), "data")
			})

			foreign, mounted := t.TempDir(), filepath.Join(d.Pool(), object.path, "a", "mounted")
			harness.WriteFile(t, filepath.Join(foreign, "precious"), "data")
			require.NoError(t, unix.Mount(foreign, mounted, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })

			harness.RequireCode(t, object.remove(), codes.FailedPrecondition, mounted)
			harness.RequireFile(t, filepath.Join(foreign, "precious"), "data")
			harness.RequireFile(t, filepath.Join(d.Pool(), object.path, "kept"), "data")

			require.NoError(t, unix.Unmount(mounted, 0))
			require.NoError(t, object.remove())
			object.goes(t, d)
			harness.RequireFile(t, filepath.Join(foreign, "precious"), "data")
		})
	}
}

// TestFailedRemovalBlocksNothing: the removal of one file fails: the driver starts, other volumes
// are made and deleted, a condition names the object, and it clears once the file can be removed.
func TestFailedRemovalBlocksNothing(t *testing.T) {
	namespace.NeedRoot(t)

	for kind, makeObject := range disposables() {
		t.Run(kind, func(t *testing.T) {
			served := faults.Serve(t)
			d := harness.Start(t, harness.Relists, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
			object := makeObject(t, d, func(path string) { harness.WriteFile(t, filepath.Join(path, "stuck"), "data") })

			served.Inject(t, faults.Fault{
				Name: filepath.Join("pool", object.removing, "stuck"), Ops: faults.Names, Errno: syscall.EIO,
			})

			err := object.remove()

			if kind == "ephemeral" {
				require.NoError(t, err, "the pod has to end")
			} else {
				harness.RequireCode(t, err, codes.Internal, kind, "stuck", "input/output error")
				harness.RequireCode(t, object.remove(), codes.Internal, "stuck")
			}

			for range 2 {
				harness.AwaitStorage(t, d, "cannot remove ", health.RemovalFailed)

				// The name is free.
				other := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: "volume", Parameters: harness.DirectoryBacked()})
				harness.DeleteVolume(t, d, other.VolumeID)
				d.Restart(t)
			}

			served.Release(t)
			harness.AwaitStorage(t, d, "")
			object.goes(t, d)
			require.NoError(t, object.remove(), "it is gone")
		})
	}
}
