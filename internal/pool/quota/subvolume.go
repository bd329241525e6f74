package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// groupLevel is the level of the quota group that limits a volume. It has the number of the volume's
// subvolume, whose own group is its member: a subvolume that is made inside of the volume becomes a
// member too, and so cannot exceed the limit.
const groupLevel = 1

// firstNumber is the lowest number of a subvolume that is not the kernel's.
const firstNumber = 256

// abandoned is the limit of a group of a removed volume that could not be removed yet. It differs from
// all that an administrator would give a group of that level, and limits nothing.
const abandoned = 1<<62 + 1

// subvolumes makes a subvolume for each directory, on btrfs.
type subvolumes struct {
	// pool is an open directory of the filesystem, for requests about quota groups: the kernel
	// reserves their metadata in the subvolume of the directory, which fails in a full volume.
	pool   *os.File
	quotas *btrfs.Quotas
	mode   btrfs.Mode
	reason string
	// inspect means that quotas are not turned on.
	inspect bool
	seen    sightings
}

// openSubvolumes returns false if the filesystem is no btrfs. Without inspect it turns on simple
// quotas, unless the system itself is on the filesystem.
func openSubvolumes(pool *os.File, inspect bool) (Directories, bool, error) {
	found, err := btrfs.IsFilesystem(pool)
	if err != nil || !found {
		return nil, false, err
	}

	_, err = btrfs.Inside(pool, firstNumber)

	switch {
	case errors.Is(err, unix.EPERM):
		return plain{reason: "subvolumes of btrfs can be limited and removed with CAP_SYS_ADMIN only; give it to the driver"}, true, nil
	case err != nil:
		return nil, false, err
	}

	id, err := btrfs.UUID(pool)
	if err != nil {
		return nil, false, err
	}

	s := &subvolumes{pool: pool, quotas: btrfs.QuotasOf(id), inspect: inspect, seen: newSightings()}
	if s.mode, err = s.quotas.Mode(); err != nil {
		return nil, false, err
	}

	if s.mode == btrfs.QuotaOff {
		if err := s.enable(id, inspect); err != nil {
			return nil, false, err
		}
	}

	return s, true, nil
}

// enable turns on simple quotas, or notes why it does not.
func (s *subvolumes) enable(id string, inspect bool) error {
	remedy := "; to limit sizes run btrfs quota enable --simple " + filepath.Clean(s.pool.Name()) +
		" (btrfs-progs 6.7 or newer) and start the driver again; kernels before 6.7 cannot mount the filesystem then"

	switch {
	case anyOnFilesystem(id, "/", "/proc/1/root/"): // the root directory of this process, and of the host's init
		s.reason = "quotas are off, and the driver does not turn them on in the filesystem of the system itself" + remedy

		return nil
	case inspect:
		s.reason = "quotas are off; the driver turns them on when it opens the pool"

		return nil
	}

	if err := btrfs.Enable(s.pool); err != nil {
		s.reason = fmt.Sprintf("simple quotas cannot be turned on: %v", err) + remedy

		return nil
	}

	var err error
	s.mode, err = s.quotas.Mode()

	return err
}

// anyOnFilesystem reports whether one of the directories, where it can be opened, is on the filesystem with
// this UUID.
func anyOnFilesystem(uuid string, paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		root, err := os.Open(path)
		if err != nil {
			return false
		}
		defer root.Close()

		own, err := btrfs.UUID(root) // another filesystem does not know the request

		return err == nil && own == uuid
	})
}

func (s *subvolumes) Support() Support {
	return Support{Kind: Subvolume, Limited: s.mode != btrfs.QuotaOff, Reason: s.reason, Snapshots: true}
}

func (*subvolumes) Make(parent *os.Root, name string, mode os.FileMode) error {
	err := tree.InDirectory(parent, func(directory *os.File) error { return btrfs.Create(directory, name) })
	if err != nil {
		return err
	}

	return setMode(parent, name, mode)
}

// group returns the group that limits a directory. It returns false for one that is no subvolume.
func (s *subvolumes) group(directory *os.File) (btrfs.Group, bool, error) {
	found, err := btrfs.IsSubvolume(directory)
	if err != nil || !found {
		return 0, false, err
	}

	id, err := btrfs.ID(directory)
	if err != nil {
		return 0, false, err
	}

	// Full quotas count a snapshot for a group of another level only after a scan of the filesystem.
	if s.mode == btrfs.FullQuota {
		return btrfs.GroupOf(0, id), true, nil
	}

	return btrfs.GroupOf(groupLevel, id), true, nil
}

func (s *subvolumes) Limit(directory *os.File, bytes int64) error {
	group, found, err := s.group(directory)
	if err != nil || !found || s.mode == btrfs.QuotaOff {
		return err
	}

	counted, err := s.quotas.Read(group)

	switch {
	case err == nil && counted.Limit >= bytes:
		return s.join(group)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}

	if group.Level() > 0 {
		if err := btrfs.CreateGroup(s.pool, group); err != nil {
			return err
		}
	}

	if err := btrfs.Limit(s.pool, group, bytes); err != nil {
		return err
	}

	return s.join(group)
}

func (s *subvolumes) Usage(directory *os.File) (Usage, bool, error) {
	group, found, err := s.group(directory)
	if err != nil || !found || s.mode == btrfs.QuotaOff {
		return Usage{}, false, err
	}

	counted, err := s.quotas.Read(group)
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, false, nil
	}

	return Usage{LimitBytes: counted.Limit, Bytes: counted.Referenced}, err == nil && counted.Limit > 0, err
}

// Allocated returns what simple quotas have counted, which assign each extent to one subvolume. Full
// quotas count a shared extent for each of them.
func (s *subvolumes) Allocated(directory *os.File) (int64, bool, error) {
	group, found, err := s.group(directory)
	if err != nil || !found || s.mode != btrfs.SimpleQuota {
		return 0, false, err
	}

	// A snapshot has no other group than its own.
	for _, each := range []btrfs.Group{group, ownGroup(group)} {
		counted, err := s.quotas.Read(each)
		if !errors.Is(err, fs.ErrNotExist) {
			return counted.Referenced, err == nil, err
		}
	}

	return 0, false, nil
}

func (*subvolumes) CanSnapshot(source *os.File) bool {
	found, err := btrfs.IsSubvolume(source)

	return err == nil && found
}

func (*subvolumes) Snapshot(source *os.File, parent *os.Root, name string) error {
	return tree.InDirectory(parent, func(directory *os.File) error { return btrfs.Snapshot(source, directory, name) })
}

func (*subvolumes) Seal(directory *os.File) error {
	found, err := btrfs.IsSubvolume(directory)
	if err != nil || !found {
		return err
	}

	return btrfs.SetReadOnly(directory, true)
}

// Sync ends the transaction: fsync writes the log of a subvolume, which does not contain the quota
// groups.
func (*subvolumes) Sync(directory *os.File) error { return btrfs.Commit(directory) }

// Remove removes the quota group before the subvolume, so that an interruption leaves no group whose
// subvolume is gone. A group that cannot be removed, because a subvolume elsewhere becomes a member
// meanwhile, is left to RemoveStale.
func (s *subvolumes) Remove(_ context.Context, parent *os.File, name string) (bool, error) {
	directory, err := openToRemove(parent, name)
	if err != nil || directory == nil {
		return false, err
	}
	defer directory.Close()

	found, err := btrfs.IsSubvolume(directory)
	if err != nil || !found {
		return false, err
	}

	id, err := btrfs.ID(directory)
	if err != nil {
		return false, err
	}

	if err := s.releaseAll(id); err != nil {
		return false, err
	}

	if err := btrfs.DestroyAll(parent, name, id); err == nil {
		return true, nil
	}

	// The caller's walk clears what forbids it, such as an immutable flag, or reports it. It needs a
	// subvolume that can be renamed and written.
	return false, btrfs.SetReadOnly(directory, false)
}

// releaseAll removes what limits a volume and the subvolumes inside, unless quotas were turned off.
func (s *subvolumes) releaseAll(id uint64) error {
	mode, err := s.quotas.Mode()
	if err != nil || mode == btrfs.QuotaOff {
		return err
	}

	if err := s.release(id); err != nil {
		return err
	}

	group := btrfs.GroupOf(groupLevel, id)

	err = btrfs.RemoveGroup(s.pool, group)
	if errors.Is(err, unix.EBUSY) {
		err = btrfs.Limit(s.pool, group, abandoned)
	}

	return err
}

// RemoveStale removes the groups of subvolumes that do not exist any more. The kernel keeps the group
// of a removed subvolume while a snapshot uses its space, and does not remove it later.
func (s *subvolumes) RemoveStale(ctx context.Context) error {
	mode, err := s.quotas.Mode()
	if err != nil || mode == btrfs.QuotaOff {
		return err
	}

	stale, err := s.stale()
	if err != nil || len(stale) == 0 {
		return err
	}

	// A subvolume that is being made has its group first. Once the transaction has ended it exists.
	if err := btrfs.Commit(s.pool); err != nil {
		return err
	}

	if stale, err = s.stale(); err != nil {
		return err
	}

	for _, group := range stale {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		// EBUSY: its space is still in use, or it has members.
		if err := errdefs.Ignore(btrfs.RemoveGroup(s.pool, group), unix.EBUSY); err != nil {
			return err
		}
	}

	return nil
}

func (s *subvolumes) Close() error { return s.pool.Close() }
