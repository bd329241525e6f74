package freeze_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

var errStillFrozen = errors.New("the volume stays recorded as frozen")

const onceID = "01a20000-0000-7000-8000-000000000001"

// onceOperations freeze the filesystem that is mounted at a directory's "mounted", with the records in
// its "state". They end when the filesystem is thawed: a failed thaw is retried in the background.
var onceOperations = map[string]syscallfault.Operation{
	"freeze": func(directory string) (run, end func() error, err error) {
		at := filepath.Join(directory, "mounted")
		f, store := freezerOnce(directory)

		err = store.Open(context.Background())
		if err != nil {
			return nil, nil, err
		}

		f.Load()
		f.ThawRecorded()

		return func() error { return freezeOnce(f, at) }, func() error {
			f.Close()

			return store.Close()
		}, nil
	},
	"thaw device": func(directory string) (run, end func() error, err error) {
		f, _ := freezerOnce(directory)
		m, err := leftIn(directory)

		return func() error { return f.ThawDevice(m.id, filesystem.Ext4, m.device, mount.Options{}) }, func() error { return nil }, err
	},
	"thaw recorded": func(directory string) (run, end func() error, err error) {
		f, store := freezerOnce(directory)
		m, err := leftIn(directory)

		if err == nil {
			err = store.Open(context.Background())
		}

		f.Load()

		return func() error {
				f.ThawRecorded()

				return awaitThawed(f, m.id)
			}, func() error {
				f.Close()

				return store.Close()
			}, err
	},
}

// leftIn returns the volume that is left frozen and without a mount, as a file of the directory names it.
func leftIn(directory string) (mounted, error) {
	var m mounted

	text, err := os.ReadFile(filepath.Join(directory, "left"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &m.id, &m.device)
	}

	return m, err
}

func awaitThawed(f *freeze.Freezer, id string) error {
	for deadline := time.Now().Add(time.Minute); f.IsFrozen(id); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return errStillFrozen
		}
	}

	return nil
}

// freezerOnce returns a freezer of what is in a directory, and its store, which is not open yet.
func freezerOnce(directory string) (*freeze.Freezer, *state.Store) {
	log := slog.New(slog.DiscardHandler)
	// What is done in the background waits for the end, so that each run makes the same calls.
	store := state.New(filepath.Join(directory, "state"), state.Options{Log: log, LazyFlush: time.Hour, RetrySpace: time.Hour})

	return freeze.New(freeze.Config{
		Loops: loop.NewLoops(loop.LoopsOptions{First: firstLoop}), Log: log,
		OpenRoot: func(string) (*os.File, error) {
			root, err := os.Open(filepath.Join(directory, "mounted"))
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}

			return root, err
		},
	}, store), store
}

func freezeOnce(f *freeze.Freezer, at string) error {
	root, err := os.Open(at)
	if err != nil {
		return err
	}

	err = f.WithFrozen(context.Background(), freeze.Targets{Filesystems: []freeze.Filesystem{
		{VolumeID: onceID, FSType: filesystem.Ext4, Root: root},
	}}, func(context.Context) error {
		again, err := os.Open(at)
		if err != nil {
			return err
		}
		defer again.Close()

		if err := filesystem.Freeze(again); !errors.Is(err, filesystem.ErrFrozen) {
			return fmt.Errorf("the filesystem is not frozen in the window: %w", err)
		}

		return nil
	})

	return rpc.Status(errors.Join(err, awaitThawed(f, onceID)))
}

// TestEachCallFailsOnce has each system call of a freeze fail once: sync, freeze, thaw, and those of the
// records. The filesystem is thawed in any case, and its record is dropped then and not before; after a
// failed record the freeze is refused until the next start.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	volume := newMounted(t, loop.NewLoops(loop.LoopsOptions{First: firstLoop}))
	thawed := func(t *testing.T, _ string) {
		t.Helper()
		require.False(t, volume.isFrozen(t), "the filesystem stays frozen")
	}

	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Causes: true, Operation: "freeze",
		// The record of a window that ended is dropped lazily.
		Lossy: []string{"state/*"},
		// A sync reports once what could not be written; the freeze after it would copy the rest.
		Reported: []string{"openat", "syncfs", "ioctl", "pwrite64 state/state.jsonl", "fdatasync"},
		// The state accepts no change after a failed one, until a restart.
		Lasting: "code = Unavailable desc = record volume " + onceID + ": state is read-only",
		Prepare: func(t *testing.T, directory string) {
			t.Helper()

			at := filepath.Join(directory, "mounted")
			require.NoError(t, os.Mkdir(at, 0o700))
			require.NoError(t, unix.Mount(volume.directory, at, "", unix.MS_BIND, ""))
			t.Cleanup(func() {
				_ = volume.isFrozen(t)

				require.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
			})
		},
		Failed: thawed,
		Verify: func(t *testing.T, directory string) {
			t.Helper()
			thawed(t, directory)

			// The next start finds no record, or drops the one of a filesystem that is thawed.
			f, store := freezerOnce(directory)

			require.NoError(t, store.Open(t.Context()))
			f.Load()
			f.ThawRecorded()
			require.False(t, f.IsFrozen(onceID), "the record of a filesystem that is thawed")
			f.Close()
			require.NoError(t, store.Close())
		},
	})
}

// TestEachCallOfAThawFailsOnce for a filesystem that is frozen and not mounted any more. The thaw at its
// device reports the failure, the thaw of its record is retried; the record stays until then.
func TestEachCallOfAThawFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})

	for operation, reported := range map[string][]string{"thaw device": {""}, "thaw recorded": nil} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()

			left := mounted{}

			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Causes: true, Operation: operation, Mounts: true, Lossy: []string{"state/*"}, Reported: reported,
				Except: regexp.MustCompile("state/|^fstat(at)? /(sys|dev)/"),
				Prepare: func(t *testing.T, directory string) {
					t.Helper()

					left = newLeft(t, loops)
					recordLeft(t, filepath.Join(directory, "state"), left.id)
					require.NoError(t, os.WriteFile(filepath.Join(directory, "left"), fmt.Appendln(nil, left.id, left.device), 0o600))
				},
				Verify: func(t *testing.T, _ string) {
					t.Helper()
					left.requireThawed(t, loops.Path(left.device))
				},
			})
		})
	}
}
