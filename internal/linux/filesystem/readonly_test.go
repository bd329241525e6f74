package filesystem_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// examine also shows that not a byte has changed.
func examine(t *testing.T, fs filesystem.Filesystem, path string, o filesystem.ReadOnlyCheckOptions) filesystem.Verdict {
	t.Helper()

	image, err := os.Open(path)
	require.NoError(t, err)

	defer image.Close()

	before := modified(t, image)
	verdict, err := fs.CheckReadOnly(t.Context(), path, o)
	require.NoError(t, err)
	require.Equal(t, before, modified(t, image), "the image was written")
	require.Equal(t, verdict.State == filesystem.Clean, verdict.Detail == "", verdict.Detail)

	return verdict
}

func requireExamined(t *testing.T, want filesystem.State, fs filesystem.Filesystem, path string) {
	t.Helper()

	verdict := examine(t, fs, path, filesystem.ReadOnlyCheckOptions{})
	require.Equal(t, want, verdict.State, verdict.Detail)
}

// eachFilesystem tests all filesystems, and ext4 in its newer form.
func eachFilesystem(t *testing.T, test func(t *testing.T, fs filesystem.Filesystem, image *os.File)) {
	t.Helper()
	needRoot(t)

	for name, fs := range filesystems(t) {
		t.Run(name, func(t *testing.T) { test(t, fs, newFilesystem(t, fs, imageSize)) })
	}

	t.Run("ext4 with an orphan file", func(t *testing.T) {
		ext4, image := byName(t, filesystem.Ext4), newImage(t, imageSize)
		o := filesystem.MakeOptions{Options: []string{"-O", "orphan_file"}}
		require.NoError(t, ext4.Make(t.Context(), image.Name(), o))
		test(t, ext4, image)
	})
}

func TestDamageIsFoundAtRest(t *testing.T) {
	eachFilesystem(t, func(t *testing.T, fs filesystem.Filesystem, image *os.File) {
		t.Helper()
		use := mount(t, fs, image, loop.AttachOptions{})
		use.write(t)
		use.unmount(t)
		requireExamined(t, filesystem.Clean, fs, image.Name())

		overwriteMetadata(t, image)
		requireExamined(t, filesystem.Damaged, fs, image.Name())

		_, err := image.WriteAt(make([]byte, 128<<10), 0)
		require.NoError(t, err)
		requireExamined(t, filesystem.Damaged, fs, image.Name())
	})
}

func TestExamineAfterACrash(t *testing.T) {
	needRoot(t)

	for _, name := range []string{filesystem.Ext4, filesystem.XFS} {
		t.Run(name, func(t *testing.T) {
			fs := byName(t, name)
			image := newFilesystem(t, fs, imageSize)
			use := mount(t, fs, image, loop.AttachOptions{})
			use.crash(t)
			use.unmount(t)

			requireExamined(t, filesystem.NeedsReplay, fs, image.Name())
			replayLog(t, fs, image)
			requireExamined(t, filesystem.Clean, fs, image.Name())
		})
	}
}

// replayLog mounts the image, completes the replay and unmounts it again.
func replayLog(t *testing.T, fs filesystem.Filesystem, image *os.File) {
	t.Helper()

	device, directory := attach(t, image, loop.AttachOptions{}), t.TempDir()
	require.NoError(t, unix.Mount(device.Path, directory, fs.Name(), 0, strings.Join(fs.ReplayFlags(), ",")))

	root, err := os.Open(directory)
	require.NoError(t, err)
	require.NoError(t, fs.FinishReplay(root))
	require.NoError(t, root.Close())
	require.NoError(t, unix.Unmount(directory, 0))
	detach(t, device)
}

// whileFrozen uses the filesystem, with files that are open and have been deleted
// if orphans says so, and calls within while it is frozen.
func whileFrozen(t *testing.T, fs filesystem.Filesystem, image *os.File, orphans bool, within func()) {
	t.Helper()

	use := mount(t, fs, image, loop.AttachOptions{})
	use.write(t)

	if orphans {
		for _, name := range []string{"one", "two"} {
			path := filepath.Join(use.directory, name)
			require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))

			open, err := os.Open(path)
			require.NoError(t, err)

			t.Cleanup(func() { open.Close() })
			require.NoError(t, os.Remove(path))
		}
	}

	root := use.openToRead(t)
	require.NoError(t, filesystem.Freeze(root))

	defer func() { require.NoError(t, filesystem.Thaw(root)) }()

	within()
}

func TestACopyOfAFrozenFilesystemHasNoDamage(t *testing.T) {
	for name, orphans := range map[string]bool{"as it is": false, "with files that are deleted and open": true} {
		t.Run(name, func(t *testing.T) {
			eachFilesystem(t, func(t *testing.T, fs filesystem.Filesystem, image *os.File) {
				t.Helper()
				var made *os.File

				whileFrozen(t, fs, image, orphans, func() {
					made = copyOf(t, image)
					requireNoDamage(t, fs, made, orphans)
				})
			})
		})
	}
}

// requireNoDamage is of a copy that was made of a frozen filesystem, which may
// still be mounted.
func requireNoDamage(t *testing.T, fs filesystem.Filesystem, made *os.File, orphans bool) {
	t.Helper()

	verdict := examine(t, fs, made.Name(), filesystem.ReadOnlyCheckOptions{})
	require.Contains(t, []filesystem.State{filesystem.Clean, filesystem.NeedsReplay}, verdict.State, verdict.Detail)

	if fs.Name() == filesystem.Ext4 {
		require.Equal(t, orphans, verdict.State == filesystem.NeedsReplay, verdict.Detail)
	}

	if verdict.State == filesystem.NeedsReplay {
		replayLog(t, fs, made)
	}

	requireExamined(t, filesystem.Clean, fs, made.Name())
}

func TestDamageIsFoundWhileFrozen(t *testing.T) {
	eachFilesystem(t, func(t *testing.T, fs filesystem.Filesystem, image *os.File) {
		t.Helper()
		whileFrozen(t, fs, image, false, func() {
			verdict := examine(t, fs, image.Name(), filesystem.ReadOnlyCheckOptions{Frozen: true})
			if fs.Name() == filesystem.XFS {
				require.Equal(t, filesystem.NeedsReplay, verdict.State, verdict.Detail)
			} else {
				require.Equal(t, filesystem.Clean, verdict.State, verdict.Detail)
			}

			overwriteMetadata(t, image)

			verdict = examine(t, fs, image.Name(), filesystem.ReadOnlyCheckOptions{Frozen: true})
			require.Equal(t, filesystem.Damaged, verdict.State, verdict.Detail)
		})
	})
}

func TestCopyMetadata(t *testing.T) {
	for name, orphans := range map[string]bool{"as it is": false, "with files that are deleted and open": true} {
		t.Run(name, func(t *testing.T) {
			eachFilesystem(t, func(t *testing.T, fs filesystem.Filesystem, image *os.File) {
				t.Helper()
				target, err := os.Create(filepath.Join(t.TempDir(), "copy"))
				require.NoError(t, err)

				defer target.Close()

				var taken *filesystem.MetadataCopy

				whileFrozen(t, fs, image, orphans, func() {
					o := filesystem.ReadOnlyCheckOptions{Frozen: true, Urgent: true}
					taken, err = fs.CopyMetadata(t.Context(), image.Name(), target.Name(), o)
				})

				if errors.Is(err, errors.ErrUnsupported) {
					require.Equal(t, filesystem.Btrfs, fs.Name())

					return
				}

				require.NoError(t, err)
				require.NoError(t, taken.Complete(t.Context()))
				require.NoError(t, taken.Close())

				info, err := target.Stat()
				require.NoError(t, err)
				require.Equal(t, imageSize, info.Size(), "want: the copy of the metadata has the size of the image")
				require.Equal(t, []string{"copy"}, namesIn(t, filepath.Dir(target.Name())), "nothing is left beside it")
				requireNoDamage(t, fs, target, orphans)
			})
		})
	}
}

func namesIn(t *testing.T, directory string) []string {
	t.Helper()

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return names
}

// TestCopyMetadataOfADamagedFilesystem has a copy that shows the damage, or none.
func TestCopyMetadataOfADamagedFilesystem(t *testing.T) {
	needRoot(t)

	for _, name := range []string{filesystem.Ext4, filesystem.XFS} {
		t.Run(name, func(t *testing.T) {
			fs := byName(t, name)
			image := newFilesystem(t, fs, imageSize)
			use := mount(t, fs, image, loop.AttachOptions{})
			use.write(t)
			use.unmount(t)
			overwriteMetadata(t, image)

			target := newImage(t, 0)

			taken, err := fs.CopyMetadata(t.Context(), image.Name(), target.Name(), filesystem.ReadOnlyCheckOptions{})
			if err == nil {
				err = errors.Join(taken.Complete(t.Context()), taken.Close())
			}

			if err != nil {
				require.NotErrorIs(t, err, errors.ErrUnsupported)

				return
			}

			requireExamined(t, filesystem.Damaged, fs, target.Name())
		})
	}
}

// TestCheckAllDistrustsACleanExt4: it has damage that is safe to repair.
func TestCheckAllDistrustsACleanExt4(t *testing.T) {
	ext4 := byName(t, filesystem.Ext4)
	image := newFilesystem(t, ext4, 64*mebibyte)
	debugfs(t, image, "set_inode_field <2> links_count 9")

	requireState(t, filesystem.Clean, ext4, image.Name())
	requireExamined(t, filesystem.Damaged, ext4, image.Name())

	verdict, err := ext4.ForceCheck(t.Context(), image.Name())
	require.NoError(t, err)
	require.Equal(t, filesystem.Repaired, verdict.State, verdict.Detail)
	requireExamined(t, filesystem.Clean, ext4, image.Name())

	for name, fs := range filesystems(t) {
		verdict, err := fs.ForceCheck(t.Context(), newFilesystem(t, fs, imageSize).Name())
		require.NoError(t, err)
		require.Equal(t, filesystem.Clean, verdict.State, "%s: %s", name, verdict.Detail)
	}
}

func TestConsistentWhileWritten(t *testing.T) {
	for name, fs := range filesystems(t) {
		require.Equal(t, name == filesystem.Btrfs, fs.ConsistentWhileWritten(), name)
	}
}

func TestAReadErrorIsNoDamage(t *testing.T) {
	for _, name := range []string{filesystem.Ext4, filesystem.XFS} {
		image := newFilesystem(t, byName(t, name), imageSize)
		fs, err := filesystem.ByName(name, &recorder{result: filesystem.Result{
			ExitCode: 1 | 4 | 8, Output: "Error reading block 7 (Input/output error).\n",
		}})
		require.NoError(t, err)

		_, err = fs.CheckReadOnly(t.Context(), image.Name(), filesystem.ReadOnlyCheckOptions{})
		require.ErrorIs(t, err, filesystem.ErrReadIncomplete, name)
		errtext.Require(t, err, "block 7")
	}
}

func TestAnExaminationIsIdleUnlessItIsUrgent(t *testing.T) {
	for _, name := range filesystem.Names() {
		image := newFilesystem(t, byName(t, name), imageSize)
		run := &recorder{}

		fs, err := filesystem.ByName(name, run)
		require.NoError(t, err)

		for _, urgent := range []bool{false, true} {
			_, err = fs.CheckReadOnly(t.Context(), image.Name(), filesystem.ReadOnlyCheckOptions{Urgent: urgent})
			require.NoError(t, err)
			require.NotEmpty(t, run.commands, "want: the check runs a tool")

			for _, command := range run.commands {
				require.Equal(t, !urgent, command.Idle, "%s: %v", name, command)
			}

			run.commands = nil
		}
	}
}
