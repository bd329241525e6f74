package pool_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// listed returns what the lists of a pool have, in order, and the first error.
func listed(ctx context.Context, p *pool.Inspection) ([]string, error) {
	var found []string

	err := p.List(ctx, func(each pool.Object) error {
		kind, _, _ := strings.Cut(each.String(), " ")
		found = append(found, fmt.Sprintf("%s %s %s", kind, each.Backing, each.ID))

		return nil
	})

	if err == nil {
		err = p.ListForeign(ctx, func(path string) error {
			found = append(found, "foreign "+filepath.Base(path))

			return nil
		})
	}

	if err == nil {
		err = p.ListScratch(ctx, func(each pool.ScratchObject) error {
			found = append(found, fmt.Sprintf("scratch %s %s in use=%t data=%t", each.ID, filepath.Base(each.Path), each.InProgress, each.Bytes > 0))

			return nil
		})
	}

	slices.Sort(found)

	return found, err
}

var onceListed = []string{
	"foreign alien", "foreign alien.img", "foreign lost+found", "foreign notes",
	"scratch " + onceID + " " + onceID + ".img in use=false data=true",
	"scratch " + onceCopyID + " " + onceCopyID + " in use=false data=true",
	"snapshot directory " + onceCopyID, "snapshot image " + onceCopyID,
	"volume directory " + onceID, "volume image " + onceID,
}

// onceReads are what a driver reads from a pool and decides by.
var onceReads = map[string]syscallfault.Operation{
	"lists": func(directory string) (run, end func() error, err error) {
		p, err := pool.Inspect("once", directory)
		if err != nil {
			return nil, nil, err
		}

		return func() error {
			found, err := listed(context.Background(), p)
			if err != nil {
				return err
			}

			return syscallfault.Differs("the lists", onceListed, found)
		}, p.Close, nil
	},
	"read attributes": inPool(func(_ context.Context, p *pool.Pool) error {
		found, err := p.Mutable(onceID)
		if err != nil {
			return err
		}

		return syscallfault.Differs("the attributes", onceMutable, found)
	}),
	"unused attributes": inPool(func(ctx context.Context, p *pool.Pool) error {
		return p.RemoveUnusedMutable(ctx, func(id string) bool { return id == onceCopyID })
	}),
	"usage of an image": inPool(func(ctx context.Context, p *pool.Pool) error {
		return measureOnce(ctx, p, imageOf(onceID), 1)
	}),
	"usage of a directory": inPool(func(ctx context.Context, p *pool.Pool) error {
		return measureOnce(ctx, p, directoryOf(onceID), 5)
	}),
	"quota of a directory": inPool(func(_ context.Context, p *pool.Pool) error {
		_, limited, err := p.Directories.Quota(onceID)
		if err == nil {
			err = p.Directories.Confine(onceID)
		}

		if err != nil {
			return err
		}

		return syscallfault.Differs("limited", false, limited)
	}),
	"size of an image": inPool(func(_ context.Context, p *pool.Pool) error {
		size, err := p.Size(imageOf(onceID))
		if err != nil {
			return err
		}

		found, err := p.Stat(onceID, volume.BackingImage)
		if err != nil {
			return err
		}

		return errors.Join(syscallfault.Differs("size", onceBytes, size), syscallfault.Differs("stat", onceBytes, found.Size()))
	}),
	"capacity": inPool(func(_ context.Context, p *pool.Pool) error {
		found, err := p.Capacity()
		if err != nil {
			return err
		}

		return syscallfault.Differs("available", true, 0 < found.Available && found.Available <= found.Total)
	}),
	"probe": inPool(func(_ context.Context, p *pool.Pool) error { return p.Probe() }),
	"current image": inPool(func(_ context.Context, p *pool.Pool) error {
		image, err := p.Images.Open(onceID, os.O_RDONLY)
		if err != nil {
			return err
		}
		defer image.Close()

		current, err := p.Images.IsCurrent(onceID, image)
		if err != nil {
			return err
		}

		return syscallfault.Differs("current", true, current)
	}),
	"detached image":   inPool(func(ctx context.Context, p *pool.Pool) error { return p.Images.CheckDetached(ctx, onceID) }),
	"growth of a copy": inPool(func(_ context.Context, p *pool.Pool) error { return p.Images.CheckGrowth(imageOf(onceID), 2*onceBytes) }),
	"empty orphans": inPool(func(ctx context.Context, p *pool.Pool) error {
		removed, err := p.RemoveEmptyOrphan(ctx, pool.Object{ID: onceCopyID, Backing: volume.BackingImage})
		if err != nil {
			return err
		}

		kept, err := p.RemoveEmptyOrphan(ctx, pool.Object{ID: onceID, Backing: volume.BackingImage})
		if err != nil {
			return err
		}

		return errors.Join(syscallfault.Differs("the empty one is removed", true, removed), syscallfault.Differs("the one with data is removed", false, kept))
	}),
	"controller's lock": inPool(func(_ context.Context, p *pool.Pool) error { return p.LockAsController("the first") }),
	"reader's lock":     inPool(func(_ context.Context, p *pool.Pool) error { return p.LockForReading() }),
	"known identity":    openKnown,
	"read identity": func(directory string) (run, end func() error, err error) {
		return func() error {
			found, err := pool.ReadIdentity(directory)
			if err != nil {
				return err
			}

			return syscallfault.Differs("the identity", onceIdentity, found)
		}, func() error { return nil }, nil
	},
	"group copy": inPool(func(_ context.Context, p *pool.Pool) error {
		_, err := p.NewGroupCopy(onceCopyID, nil)
		if !errors.Is(err, pool.ErrNoGroupCopy) {
			return fmt.Errorf("a group copy of a pool that supports none: %w", err)
		}

		return nil
	}),
}

// onceIdentity is the identity of a pool that the state knows.
const onceIdentity = "01a20000-0000-4000-8000-0000000000ff"

// openKnown opens a pool of which the state has the identity.
func openKnown(directory string) (run, end func() error, err error) {
	return func() error {
		p, err := pool.Open("once", directory, pool.Options{Identity: new(onceIdentity)})
		if err != nil {
			return err
		}

		return errors.Join(syscallfault.Differs("the identity", onceIdentity, p.Identity()), p.Close())
	}, func() error { return nil }, nil
}

// measureOnce measures an object in each way.
func measureOnce(ctx context.Context, p *pool.Pool, object pool.Object, inodes int64) error {
	usage, err := p.Usage(ctx, object)
	if err != nil {
		return err
	}

	bytes, err := p.Backing(object.Backing).AllocatedBytes(ctx, object.ID)
	if err != nil {
		return err
	}

	var sum pool.Allocation
	if err := sum.Add(ctx, p, object); err != nil {
		return err
	}

	return errors.Join(syscallfault.Differs("bytes", true, usage.Bytes > 0), syscallfault.Differs("inodes", inodes, usage.Inodes),
		syscallfault.Differs("allocated bytes", usage.Bytes, bytes), syscallfault.Differs("sum", true, sum.Bytes() > 0))
}

// onceRead makes a pool that has something for each read.
func onceRead(t *testing.T, p *pool.Pool) {
	t.Helper()
	onceImage(t, p)
	onceDirectory(t, p)
	require.NoError(t, p.SetMutable(onceID, onceMutable))
	require.NoError(t, os.WriteFile(filepath.Join(p.Path(), "pool.json"), []byte(`{"version":1,"id":"`+onceIdentity+`"}`), 0o600))
	require.NoError(t, p.LockAsController("an earlier one"))

	in := func(names ...string) string { return filepath.Join(append([]string{p.Path()}, names...)...) }

	for _, file := range []string{
		in("snapshots", onceCopyID+".img"), in("scratch", onceID+".img"), in("snapshots", "alien.img"),
		in("images", "alien"), in("directories", "lost+found"), in("scratch", "notes"),
	} {
		require.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	}

	require.NoError(t, os.Mkdir(in("snapshots", onceCopyID), 0o700))
	require.NoError(t, os.MkdirAll(in("scratch", onceCopyID, "sub"), 0o700))
}

// TestEachReadFailsOnce has each system call of what a driver reads fail once: it reports that, and never
// takes what it could not read for what is not there.
func TestEachReadFailsOnce(t *testing.T) {
	t.Parallel()

	cases := map[string]*syscallfault.Case{
		// What may be there keeps its attributes.
		"unused attributes": {Lossy: []string{"attributes"}, Reported: []string{"openat", "getdents64", "unlinkat"}},
		"empty orphans": {Lossy: []string{"images"}, Prepare: prepared(func(t *testing.T, p *pool.Pool) {
			t.Helper()
			onceRead(t, p)
			require.NoError(t, p.Images.Create(onceCopyID, onceBytes, false))
		})},
		"known identity": {Lossy: []string{"scratch/#*"}, Reported: []string{"read"}},
		"read identity":  {Reported: []string{"openat", "read"}},
		// A failure to release a lock is none of the check.
		"detached image": {Reported: []string{"openat", "flock images/" + onceID + ".img#1"}},
		// A full pool is locked, too, without the name of its owner.
		"controller's lock": {Lossy: []string{"controller.lock"}, Reported: []string{"openat", "flock"}},
		"reader's lock":     {Reported: []string{"openat", "flock"}},
		"capacity":          {Reported: []string{"statfs"}},
	}

	for name := range onceReads {
		c := cases[name]
		if c == nil {
			c = &syscallfault.Case{}
		}

		if c.Reported == nil {
			c.Reported = []string{""}
		}

		if c.Prepare == nil {
			c.Prepare = prepared(onceRead)
		}

		c.Operation = name
		c.Verify = func(*testing.T, string) {}

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			c.Causes = true
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}
