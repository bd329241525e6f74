package pool_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	onceID     = "01a20000-0000-7000-8000-000000000001"
	onceCopyID = "01a20000-0000-7000-8000-000000000002"
)

// onceBytes is the size of an image; it is grown by as much.
const onceBytes = 8 * mebi

// inPool returns an operation in a pool that is open.
func inPool(run func(ctx context.Context, p *pool.Pool) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		p, err := pool.Open("once", directory, pool.Options{})
		if err != nil {
			return nil, nil, err
		}

		return func() error { return run(context.Background(), p) }, p.Close, nil
	}
}

// writeOnce writes the new image as mkfs does.
func writeOnce(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}

	_, err = file.WriteAt([]byte("filled"), mebi)

	return errors.Join(err, file.Close())
}

func onceCopy(ctx context.Context, p *pool.Pool, source, target pool.Object, options pool.CopyOptions) error {
	making, err := p.NewCopy(p, source, target, options)
	if err != nil {
		return err
	}

	err = making.CopyData(ctx)
	if err == nil {
		_, err = making.Commit(ctx)
	}

	return errors.Join(err, making.Abort())
}

func abortOnce(ctx context.Context, p *pool.Pool, source pool.Object) error {
	making, err := p.NewCopy(p, source, onceTarget(source.Backing, false), pool.CopyOptions{})
	if err != nil {
		return err
	}

	return errors.Join(making.CopyData(ctx), making.Abort())
}

func onceTarget(backing volume.Backing, snapshot bool) pool.Object {
	return pool.Object{ID: onceCopyID, Backing: backing, Snapshot: snapshot}
}

var onceMutable = volume.Mutable{volume.KeyIOScheduler: "none"}

// openOnce opens the pool itself.
func openOnce(directory string) (run, end func() error, err error) {
	return func() error {
		p, err := pool.Open("once", filepath.Join(directory, "pool"), pool.Options{})
		if err != nil {
			return err
		}

		return p.Close()
	}, func() error { return nil }, nil
}

// syncOnce removes an image once, and makes that durable.
func syncOnce(directory string) (run, end func() error, err error) {
	removed := false

	return inPool(func(ctx context.Context, p *pool.Pool) error {
		if !removed {
			if err := p.Remove(ctx, imageOf(onceID)); err != nil {
				return err
			}
		}

		removed = true

		return p.SyncRemovals()
	})(directory)
}

// onceOperations are what a driver does with a pool.
var onceOperations = map[string]syscallfault.Operation{
	"opened pool":      openOnce,
	"adopted identity": adoptOnce,
	"moved identity":   moveOnce,
	"synced removal":   syncOnce,
	"thin image": inPool(func(_ context.Context, p *pool.Pool) error {
		err := p.Images.Create(onceID, onceBytes, false)
		if err == nil {
			err = p.Images.Sync(onceID)
		}

		return err
	}),
	"thick image": inPool(func(_ context.Context, p *pool.Pool) error { return p.Images.Create(onceID, onceBytes, true) }),
	"thin growth": inPool(func(_ context.Context, p *pool.Pool) error {
		return p.Images.Grow(onceID, pool.Growth{From: onceBytes, To: 2 * onceBytes})
	}),
	"thick growth": inPool(func(_ context.Context, p *pool.Pool) error {
		return p.Images.Grow(onceID, pool.Growth{From: onceBytes, To: 2 * onceBytes, Thick: true})
	}),
	"filled image": inPool(func(_ context.Context, p *pool.Pool) error { return refill(p, onceID, true, writeOnce) }),
	"directory": inPool(func(_ context.Context, p *pool.Pool) error {
		err := p.Directories.Create(onceID, onceBytes, false)
		if err == nil {
			err = p.Directories.Sync(onceID)
		}

		return err
	}),
	"filled image that grows": inPool(func(_ context.Context, p *pool.Pool) error {
		return refill(p, onceID, false, func(string) error { return os.Truncate(p.ObjectPath(imageOf(onceID)), 2*onceBytes) })
	}),
	"growth of a directory": inPool(func(_ context.Context, p *pool.Pool) error {
		return p.Directories.Grow(onceID, pool.Growth{To: 2 * onceBytes})
	}),
	"empty directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return emptyOrphan(volume.BackingDirectory)(ctx, p, onceID)
	}),
	"attributes":      inPool(func(_ context.Context, p *pool.Pool) error { return p.SetMutable(onceID, onceMutable) }),
	"group of images": inPool(onceGroup),
	"snapshot of an image": inPool(func(ctx context.Context, p *pool.Pool) error {
		return onceCopy(ctx, p, imageOf(onceID), onceTarget(volume.BackingImage, true), pool.CopyOptions{SourceBytes: onceBytes})
	}),
	"thick clone of an image": inPool(func(ctx context.Context, p *pool.Pool) error {
		return onceCopy(ctx, p, imageOf(onceID), onceTarget(volume.BackingImage, false),
			pool.CopyOptions{SourceBytes: onceBytes, SizeBytes: 2 * onceBytes, Thick: true, Progress: func(int64, int64) {}})
	}),
	"snapshot of a directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return onceCopy(ctx, p, directoryOf(onceID), onceTarget(volume.BackingDirectory, true), pool.CopyOptions{})
	}),
	"clone of a directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return onceCopy(ctx, p, directoryOf(onceID), onceTarget(volume.BackingDirectory, false),
			pool.CopyOptions{SizeBytes: onceBytes, Progress: func(int64, int64) {}})
	}),
	"aborted copy of an image": inPool(func(ctx context.Context, p *pool.Pool) error {
		return abortOnce(ctx, p, imageOf(onceID))
	}),
	"aborted copy of a directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return abortOnce(ctx, p, directoryOf(onceID))
	}),
	"removal of an image": inPool(func(ctx context.Context, p *pool.Pool) error {
		return errors.Join(p.Remove(ctx, imageOf(onceID)), p.SyncRemovals())
	}),
	"removal of a directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return errors.Join(p.Remove(ctx, directoryOf(onceID)), p.SyncRemovals())
	}),
	"discarded directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return p.Discard(ctx, directoryOf(onceID))
	}),
	"leftovers": inPool(func(ctx context.Context, p *pool.Pool) error { return p.RemoveStaleScratch(ctx) }),
}

// prepared makes the directory with a pool that is closed then.
func prepared(prepare func(t *testing.T, p *pool.Pool)) func(t *testing.T, directory string) {
	return func(t *testing.T, directory string) {
		t.Helper()

		p, err := pool.Open("once", directory, pool.Options{})
		require.NoError(t, err)
		prepare(t, p)
		require.NoError(t, p.Close())
	}
}

// verified checks the pool as the next process finds it. Nothing is left half made.
func verified(verify func(t *testing.T, p *pool.Pool)) func(t *testing.T, directory string) {
	return prepared(func(t *testing.T, p *pool.Pool) {
		t.Helper()
		require.NoError(t, p.RemoveStaleScratch(t.Context()))
		require.Empty(t, scratchOf(t, p), "want: no scratch file is left")
		verify(t, p)
	})
}

func onceImage(t *testing.T, p *pool.Pool) {
	t.Helper()
	require.NoError(t, p.Images.Create(onceID, onceBytes, false))

	image, err := p.Images.Open(onceID, os.O_RDWR)
	require.NoError(t, err)

	for _, at := range []int64{0, onceBytes / 2} {
		_, err = image.WriteAt(bytes.Repeat([]byte{1, 2, 3}, 7000), at)
		require.NoError(t, err)
	}

	require.NoError(t, image.Close())
}

func onceDirectory(t *testing.T, p *pool.Pool) {
	t.Helper()
	require.NoError(t, p.Directories.Create(onceID, onceBytes, false))

	root := placeOf(p, directoryOf(onceID))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "sub", "subsub"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(root, "sub", "file"), bytes.Repeat([]byte("content"), 3000), 0o640))
	require.NoError(t, os.Link(filepath.Join(root, "sub", "file"), filepath.Join(root, "link")))
	require.NoError(t, os.Symlink("sub/file", filepath.Join(root, "symlink")))
}

// onceSized requires the image to have that size, and all blocks of it if it is thick.
func onceSized(size int64, thick bool) func(t *testing.T, directory string) {
	return verified(func(t *testing.T, p *pool.Pool) {
		t.Helper()

		image, err := p.Images.Open(onceID, os.O_RDONLY)
		require.NoError(t, err)

		defer image.Close()

		info, err := image.Stat()
		require.NoError(t, err)
		require.Equal(t, size, info.Size(), "want: the image has its size")

		if thick {
			require.GreaterOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks*512, size, "not all blocks of a thick image are allocated")
		}
	})
}

func onceCopied(source, target pool.Object) func(t *testing.T, directory string) {
	return verified(func(t *testing.T, p *pool.Pool) {
		t.Helper()

		if source.Backing == volume.BackingImage {
			sameContent(t, p, source, p, target)

			return
		}

		// Other programs may read the files.
		accessed := regexp.MustCompile(` atime=\S+`)
		require.Equal(t, accessed.ReplaceAllString(strings.Join(describe(t, placeOf(p, source)), "\n"), ""),
			accessed.ReplaceAllString(strings.Join(describe(t, placeOf(p, target)), "\n"), ""))
	})
}

func onceGone(object pool.Object) func(t *testing.T, directory string) {
	return verified(func(t *testing.T, p *pool.Pool) {
		t.Helper()
		require.NoError(t, p.ResumeRemovals(t.Context()))
		require.NoFileExists(t, placeOf(p, object))
		require.NoDirExists(t, placeOf(p, object))

		left, err := os.ReadDir(filepath.Join(p.Path(), "removing"))
		require.NoError(t, err)
		require.Empty(t, left, "want: nothing is left of the removed object")
	})
}

// onceUnreported match the calls whose failure an operation need not report: what fails in a removal is
// removed by its next pass, a pool without an identity is used as it is, and one without reflinks, too.
// Those without a name are of any operation: the removal of what is missing, the reading of the end of a
// directory, of the path of an open file and of a missing one.
var onceUnreported = map[string]string{
	"":                            `unlinkat (attributes|scratch)/|getdents64 removing/\S+#[23]$|readlinkat |fstatat attributes/\S+\.json#`,
	"filled image":                `flock images/\S+#[23]$|fallocate scratch/`,
	"filled image that grows":     `flock images/\S+#[23]$`,
	"aborted copy of a directory": `(unlinkat|getdents64|openat2|fstat) removing/`,
	"removal of a directory":      `(unlinkat|getdents64|openat2|fstat) removing/`,
	"discarded directory":         `(unlinkat|getdents64|openat2|fstat) removing/`,
	"opened pool":                 `fstat \S+#[1-46]$|fstatat (\.#|pool#|\S+#2$)|openat\S+ pool/scratch#|pwrite64 |ioctl`,
	"adopted identity":            `fstat|openat\S+ scratch#|pwrite64 |ioctl|write |renameat2 |unlinkat `,
	"moved identity":              `fstat|renameat2|unlinkat to/`,
}

// TestEachCallFailsOnce has each system call of a pool's operations fail once: its write, sync, rename,
// unlink, extent mapping, ioctl, statfs and sync of a directory among them. The operation then fails,
// and succeeds when it is repeated; what it has acknowledged is durable.
func TestEachCallFailsOnce(t *testing.T) {
	t.Parallel()

	// A leftover is removed by the next process.
	scratch := []string{"scratch", "scratch/*", "scratch/*/*", "removing", "removing/*"}

	for _, c := range []*syscallfault.Case{
		// The sync of a directory makes its own name durable, too, on the filesystems of pools.
		{
			Operation: "opened pool", Lossy: []string{".", "pool", "pool/scratch/#*"},
			Prepare: func(t *testing.T, directory string) {
				t.Helper()

				// Root gives what it makes to the owner of the directory.
				if os.Geteuid() == 0 {
					require.NoError(t, os.Chown(directory, otherUser, otherUser))
				}
			},
			Verify: func(t *testing.T, directory string) {
				t.Helper()

				above, err := os.Stat(directory)
				require.NoError(t, err)

				for _, path := range paths(t, directory) {
					info, err := os.Stat(path)
					require.NoError(t, err)
					require.Equal(t, above.Sys().(*syscall.Stat_t).Uid, info.Sys().(*syscall.Stat_t).Uid, "want: %s has the owner of the directory above", path)
				}

				verified(func(*testing.T, *pool.Pool) {})(t, filepath.Join(directory, "pool"))
			},
		},
		{
			Operation: "adopted identity", Lossy: []string{"scratch/#*"}, Prepare: prepared(func(*testing.T, *pool.Pool) {}),
			Verify: func(t *testing.T, directory string) {
				t.Helper()

				id, err := pool.ReadIdentity(directory)
				require.NoError(t, err)
				require.NotEmpty(t, id, "want: the pool gets an identity")

				left, err := filepath.Glob(filepath.Join(directory, ".pool.json.*"))
				require.NoError(t, err)
				require.Empty(t, left, "files of identities that are not used")
			},
		},
		{
			// Another process may not have made it durable.
			Operation: "adopted identity", Lossy: []string{"scratch/#*"}, Prepare: prepared(onceRead), Verify: func(t *testing.T, directory string) {
				t.Helper()

				id, err := pool.ReadIdentity(directory)
				require.NoError(t, err)
				require.Equal(t, onceIdentity, id, "want: the pool keeps its identity")
			},
		},
		{
			Operation: "moved identity",
			Prepare: func(t *testing.T, directory string) {
				t.Helper()
				require.NoError(t, os.Mkdir(filepath.Join(directory, "to"), 0o700))

				p, err := pool.Open("once", filepath.Join(directory, "from"), pool.Options{})
				require.NoError(t, err)
				onceRead(t, p)
				require.NoError(t, p.Close())
			},
			Verify: func(t *testing.T, directory string) {
				t.Helper()

				for name, want := range map[string]string{"from": "", "to": onceIdentity} {
					id, err := pool.ReadIdentity(filepath.Join(directory, name))
					require.NoError(t, err)
					require.Equal(t, want, id, name)
				}
			},
		},
		{
			Operation: "synced removal", Prepare: prepared(onceImage), Verify: onceGone(imageOf(onceID)),
			Lossy: []string{"scratch", "removing", "attributes"},
		},
		{Operation: "thin image", Verify: onceSized(onceBytes, false)},
		{Operation: "thick image", Verify: onceSized(onceBytes, true)},
		{Operation: "thin growth", Prepare: prepared(onceImage), Verify: onceSized(2*onceBytes, false)},
		{Operation: "thick growth", Prepare: prepared(onceImage), Verify: onceSized(2*onceBytes, true)},
		{
			Operation: "filled image", Lossy: scratch, Verify: onceSized(onceBytes, true),
			Prepare: prepared(func(t *testing.T, p *pool.Pool) {
				t.Helper()
				require.NoError(t, p.Images.Create(onceID, onceBytes, false))
			}),
		},
		{Operation: "filled image that grows", Lossy: scratch, Prepare: prepared(onceImage), Verify: onceSized(2*onceBytes, false)},
		{Operation: "growth of a directory", Prepare: prepared(onceDirectory), Verify: verified(func(*testing.T, *pool.Pool) {})},
		{
			Operation: "empty directory", Lossy: []string{"directories"}, Verify: onceGone(directoryOf(onceID)),
			Prepare: prepared(func(t *testing.T, p *pool.Pool) {
				t.Helper()
				require.NoError(t, p.Directories.Create(onceID, onceBytes, false))
			}),
		},
		{Operation: "directory", Verify: verified(func(t *testing.T, p *pool.Pool) {
			t.Helper()
			require.DirExists(t, placeOf(p, directoryOf(onceID)))
		})},
		{
			Operation: "attributes",
			Prepare: prepared(func(t *testing.T, p *pool.Pool) {
				t.Helper()
				require.NoError(t, p.SetMutable(onceID, volume.Mutable{volume.KeyIOScheduler: "kyber"}))
			}),
			Failed: prepared(func(t *testing.T, p *pool.Pool) {
				t.Helper()

				found, err := p.Mutable(onceID)
				require.NoError(t, err, "a failed change leaves the attributes readable")
				require.Contains(t, []string{"kyber", "none"}, found[volume.KeyIOScheduler])
			}),
			Verify: verified(func(t *testing.T, p *pool.Pool) {
				t.Helper()

				found, err := p.Mutable(onceID)
				require.NoError(t, err)
				require.Equal(t, onceMutable, found)
			}),
		},
		{
			Operation: "snapshot of an image", Lossy: scratch, Prepare: prepared(onceImage),
			Verify: onceCopied(imageOf(onceID), onceTarget(volume.BackingImage, true)),
		},
		{
			Operation: "thick clone of an image", Lossy: scratch, Prepare: prepared(onceImage),
			Verify: verified(func(t *testing.T, p *pool.Pool) {
				t.Helper()

				source, err := os.ReadFile(placeOf(p, imageOf(onceID)))
				require.NoError(t, err)

				copied, err := os.ReadFile(placeOf(p, imageOf(onceCopyID)))
				require.NoError(t, err)
				require.Len(t, copied, 2*onceBytes, "want: the copy has all bytes of the image")
				require.True(t, bytes.Equal(source, copied[:onceBytes]), "the copy differs from its source")
			}),
		},
		{
			Operation: "snapshot of a directory", Lossy: scratch, Prepare: prepared(onceDirectory),
			Verify: onceCopied(directoryOf(onceID), onceTarget(volume.BackingDirectory, true)),
		},
		{
			Operation: "clone of a directory", Lossy: scratch, Prepare: prepared(onceDirectory),
			Verify: onceCopied(directoryOf(onceID), onceTarget(volume.BackingDirectory, false)),
		},
		{Operation: "aborted copy of an image", Lossy: scratch, Prepare: prepared(onceImage), Verify: onceGone(onceTarget(volume.BackingImage, false))},
		{Operation: "aborted copy of a directory", Lossy: scratch, Prepare: prepared(onceDirectory), Verify: onceGone(onceTarget(volume.BackingDirectory, false))},
		{Operation: "removal of an image", Lossy: scratch, Prepare: prepared(onceImage), Verify: onceGone(imageOf(onceID))},
		{Operation: "removal of a directory", Lossy: scratch, Prepare: prepared(onceDirectory), Verify: onceGone(directoryOf(onceID))},
		{Operation: "discarded directory", Lossy: scratch, Prepare: prepared(onceDirectory), Verify: onceGone(directoryOf(onceID))},
		{
			Operation: "leftovers", Lossy: scratch, Verify: verified(func(*testing.T, *pool.Pool) {}),
			Prepare: prepared(func(t *testing.T, p *pool.Pool) {
				t.Helper()

				for _, name := range []string{onceID + ".img", onceCopyID + ".img"} {
					require.NoError(t, os.WriteFile(filepath.Join(p.Path(), "scratch", name), []byte("half made"), 0o600))
				}

				require.NoError(t, os.MkdirAll(filepath.Join(p.Path(), "scratch", onceCopyID, "sub"), 0o700))
			}),
		},
	} {
		t.Run(c.Operation, func(t *testing.T) {
			t.Parallel()

			// What cannot be read is taken for no empty directory.
			c.Causes = c.Operation != "empty directory"
			c.Reported, c.Unreported = []string{""}, regexp.MustCompile("^("+onceUnreported[""]+"|"+cmp.Or(onceUnreported[c.Operation], "$")+")")
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}
