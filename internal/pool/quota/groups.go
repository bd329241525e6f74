package quota

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
)

// join makes the subvolume's own group a member of the group that limits it.
func (s *subvolumes) join(group btrfs.Group) error {
	if group.Level() == 0 {
		return nil
	}

	return btrfs.Assign(s.pool, ownGroup(group), group)
}

// leave ends the membership of a group in another, which may be that of another volume. A group whose
// count that has spoilt is made again with the members and the limit that it has: for a moment it has
// no limit, and the kernel logs a warning about its count.
func (s *subvolumes) leave(member, group btrfs.Group) error {
	times, err := btrfs.Unassign(s.pool, member, group)
	if err != nil || times < 2 {
		return err
	}

	counted, err := s.quotas.Read(group)
	if err != nil {
		return errdefs.Ignore(err, fs.ErrNotExist)
	}

	members, err := btrfs.Members(s.pool, group)
	if err != nil {
		return err
	}

	// EBUSY: another subvolume becomes a member meanwhile.
	if err := errdefs.Ignore(btrfs.RemoveGroup(s.pool, group), unix.EBUSY); err != nil {
		return err
	}

	if err := btrfs.CreateGroup(s.pool, group); err != nil {
		return err
	}

	if counted.Limit > 0 {
		if err := btrfs.Limit(s.pool, group, counted.Limit); err != nil {
			return err
		}
	}

	for _, each := range members {
		if err := btrfs.Assign(s.pool, each, group); err != nil {
			return err
		}
	}

	return nil
}

// stale returns the groups without space of subvolumes, and of volumes, that do not exist any
// more. Groups of administrators are not among them.
func (s *subvolumes) stale() ([]btrfs.Group, error) {
	groups, err := btrfs.Groups(s.pool)
	if err != nil {
		return nil, err
	}

	ids, err := btrfs.From(s.pool, firstNumber)
	if err != nil {
		return nil, err
	}

	existing := make(map[uint64]bool, len(ids))
	for _, id := range ids {
		existing[id] = true
	}

	var stale []btrfs.Group

	for _, group := range groups {
		if group.Level() > groupLevel || group.Number() < firstNumber || existing[group.Number()] {
			continue
		}

		counted, err := s.quotas.Read(group)

		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case group.Level() == 0 && counted.Referenced == 0, counted.Limit == abandoned:
			stale = append(stale, group)
		}
	}

	return stale, nil
}
