package pool_test

import (
	"cmp"
	"context"
	"errors"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// onceGroupID is the id of a group copy.
const onceGroupID = "01a20000-0000-7000-8000-000000000003"

// onceGroup copies an image as the only one of a group.
func onceGroup(ctx context.Context, p *pool.Pool) error {
	copied, err := p.NewCopy(p, imageOf(onceID), onceTarget(volume.BackingImage, true), pool.CopyOptions{SourceBytes: onceBytes})
	if err != nil {
		return err
	}

	member, _ := copied.Image()

	group, err := p.NewGroupCopy(onceGroupID, []*pool.ImageCopy{member})
	if err == nil {
		if err = group.Take(); err == nil {
			err = group.CopyData(ctx)
		}

		err = errors.Join(err, group.Close())
	}

	if err == nil {
		_, err = member.Commit(ctx)
	}

	return errors.Join(err, member.Abort())
}

// TestEachCallFailsOnceOnBtrfs is TestEachCallFailsOnce for what is done in another way on a filesystem with
// subvolumes, whose directories are removed at once, and for space on one whose files share blocks.
func TestEachCallFailsOnceOnBtrfs(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	within, shared := testpool.Btrfs(t, 1024*mebi), testpool.Reflink(t, 512*mebi)

	// A hint to write dirty pages may fail, a directory that may be no subvolume is copied as a tree, the end of a
	// directory of links that is removed need not be read, and a
	// subvolume that cannot be removed at once (BTRFS_IOC_SNAP_DESTROY) is removed as one.
	const destroy = `ioctl\+0x5000940f (directories|scratch)#`

	unreported := map[string]string{
		"group of images":         `syncfs images#|` + destroy,
		"snapshot of a directory": `fstat(fs)? directories/`,
		"removal of a directory":  destroy,
		"clone of a directory":    `fstat directories/|getdents64 scratch/\S+\.links#[23]$`,
	}

	for _, c := range []*syscallfault.Case{
		{
			// The copy of a member is that of the next case.
			Operation: "group of images", Except: regexp.MustCompile(`-0*2\.img`), Prepare: prepared(onceImage), Verify: onceCopied(imageOf(onceID), onceTarget(volume.BackingImage, true)),
		},
		{
			Operation: "snapshot of an image", Prepare: prepared(onceImage), Verify: onceCopied(imageOf(onceID), onceTarget(volume.BackingImage, true)),
		},
		{
			Operation: "snapshot of a directory", Prepare: prepared(onceDirectory),
			Verify: onceCopied(directoryOf(onceID), onceTarget(volume.BackingDirectory, true)),
		},
		{Operation: "removal of a directory", Prepare: prepared(onceDirectory), Verify: onceGone(directoryOf(onceID))},
		{
			// A directory of an earlier release is copied file by file.
			Operation: "clone of a directory", Verify: onceCopied(directoryOf(onceID), onceTarget(volume.BackingDirectory, false)),
			Prepare: prepared(func(t *testing.T, p *pool.Pool) {
				t.Helper()
				require.NoError(t, os.Mkdir(placeOf(p, directoryOf(onceID)), 0o755))
				onceDirectory(t, p)
			}),
		},
		// The files of a directory that is no subvolume are measured one by one.
		{Operation: "usage of an image", Within: shared, Prepare: prepared(onceImage), Verify: func(*testing.T, string) {}},
		{Operation: "usage of a directory", Within: shared, Prepare: prepared(onceDirectory), Verify: func(*testing.T, string) {}},
	} {
		t.Run(c.Operation, func(t *testing.T) {
			t.Parallel()

			c.Within, c.Causes, c.Reported, c.Lossy = cmp.Or(c.Within, within), true, []string{""}, []string{"*", "*/*", "*/*/*", "*/*/*/*"}
			c.Unreported = regexp.MustCompile("^(" + onceUnreported[""] + "|" + cmp.Or(unreported[c.Operation], "$") + ")")
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}
