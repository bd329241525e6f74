package filesystem_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// TestWhatIsAGrowth: a growth begins with the first block, or group, that fits. A context that has ended
// shows it.
func TestWhatIsAGrowth(t *testing.T) {
	t.Parallel()
	needRoot(t)

	ended, cancel := context.WithCancel(context.Background())
	cancel()

	for name, least := range map[string]int64{filesystem.Ext4: block, filesystem.Btrfs: block, filesystem.XFS: 64 * block} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			fs := byName(t, name)
			use := mount(t, fs, newFilesystem(t, fs, imageSize), loop.AttachOptions{})
			directory := use.open(t)

			for bytes, grows := range map[int64]bool{
				0: false, 1: false, block: false, imageSize - block: false, imageSize: false, imageSize + least - 1: false,
				imageSize + least: true, imageSize + least + 1: true, 2 * imageSize: true,
			} {
				err := fs.GrowMounted(ended, directory, bytes)
				if grows {
					require.ErrorIs(t, err, context.Canceled, "%s of %d bytes on %d", name, imageSize, bytes)
				} else {
					require.NoError(t, err, "%s of %d bytes on %d", name, imageSize, bytes)
				}
			}

			require.NoError(t, directory.Close())
		})
	}
}

// ofMounted returns an operation of the filesystem that is mounted in a directory, whose root is open.
func ofMounted(name string, run func(fs filesystem.Filesystem, root *os.File) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		fs, err := filesystem.ByName(name, onceTools{})
		if err != nil {
			return nil, nil, err
		}

		root, err := os.Open(filepath.Join(directory, "mounted"))

		return func() error {
			err := run(fs, root)
			if err == nil || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) {
				return err
			}

			return syscallfault.Differs("the report", "that of the failed call", err)
		}, root.Close, err
	}
}

func mountedOperations() map[string]syscallfault.Operation {
	all := map[string]syscallfault.Operation{}

	for _, name := range []string{filesystem.XFS, filesystem.Btrfs} {
		all["grow mounted "+name] = ofMounted(name, func(fs filesystem.Filesystem, root *os.File) error {
			return fs.GrowMounted(context.Background(), root, 2*imageSize)
		})
		all["errors of "+name] = ofMounted(name, func(_ filesystem.Filesystem, root *os.File) error {
			found, err := filesystem.ReadErrors(name, 0, root)

			return answered(filesystem.ErrorCounts{}, found, err)
		})
		all["sync "+name] = ofMounted(name, func(_ filesystem.Filesystem, root *os.File) error { return filesystem.Sync(root) })
		all["thawed "+name] = ofMounted(name, func(_ filesystem.Filesystem, root *os.File) error { return filesystem.CheckThawed(root) })
		all["freeze "+name] = ofMounted(name, func(_ filesystem.Filesystem, root *os.File) error {
			// A repeated call may find it frozen.
			if err := filesystem.Freeze(root); err != nil && !errors.Is(err, filesystem.ErrFrozen) {
				return err
			}

			return filesystem.Thaw(root)
		})
	}

	all["finish the replay of xfs"] = ofMounted(filesystem.XFS, func(fs filesystem.Filesystem, root *os.File) error { return fs.FinishReplay(root) })
	delete(all, "errors of "+filesystem.XFS)

	return all
}

// TestEachCallForAMountedFilesystemFailsOnce has each call fail once that is made for a mounted
// filesystem. The failure is reported, and the operation succeeds when it is repeated.
func TestEachCallForAMountedFilesystemFailsOnce(t *testing.T) {
	t.Parallel()
	needRoot(t)

	for operation := range mountedOperations() {
		name := operation[len(operation)-len("xfs"):]
		if name != filesystem.XFS {
			name = filesystem.Btrfs
		}

		t.Run(operation, func(t *testing.T) {
			t.Parallel()

			fs := byName(t, name)
			image := newFilesystem(t, fs, imageSize)
			require.NoError(t, image.Truncate(2*imageSize))

			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: operation, Mounts: true, Reported: []string{"openat", "fstatfs", "ioctl", "syncfs", "fsconfig", "read", "getdents64"},
				Prepare: func(t *testing.T, directory string) {
					t.Helper()

					at := filepath.Join(directory, "mounted")
					require.NoError(t, os.Mkdir(at, 0o700))

					device := attach(t, copyOf(t, image), loop.AttachOptions{})
					require.NoError(t, unix.Mount(device.Path, at, name, 0, ""))
					t.Cleanup(func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
				},
				Verify: func(t *testing.T, directory string) {
					t.Helper()

					grown := capacity(t, filepath.Join(directory, "mounted")) > imageSize
					require.Equal(t, operation == "grow mounted "+name, grown, "whether the filesystem has grown")

					root, err := os.Open(filepath.Join(directory, "mounted"))
					require.NoError(t, err)
					require.NoError(t, filesystem.CheckThawed(root), "want: nothing is frozen")
					require.NoError(t, root.Close())
				},
			})
		})
	}
}
