package quota

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
)

// sightings are what Confine has seen of subvolumes, by their ids.
type sightings struct {
	mu sync.Mutex
	// inside has those that were seen inside of each volume. They are needed once they are removed: the
	// kernel keeps the group of a removed subvolume while its space is in use, but not where it was.
	inside map[uint64]map[uint64]bool
	// evaded has those in which one was found that counted for another volume.
	evaded map[uint64]bool
	// next is the id of the first subvolume that Grown has not seen.
	next uint64
}

func newSightings() sightings {
	return sightings{inside: map[uint64]map[uint64]bool{}, evaded: map[uint64]bool{}}
}

// takeEvaded returns whether the volume was found to contain a subvolume that counted for another one,
// since the last call.
func (s *sightings) takeEvaded(volume uint64) bool {
	evaded := s.evaded[volume]
	delete(s.evaded, volume)

	return evaded
}

// Confine gives the subvolumes inside of the volume the groups that the volume has, as the kernel does
// for one that is made without naming groups, and removes all others from the volume's group. A user
// without any privilege can name groups (BTRFS_IOC_SUBVOL_CREATE_V2), none or those of another volume.
func (s *subvolumes) Confine(directory *os.File) (bool, error) {
	group, limited, err := s.group(directory)
	if err != nil || !limited || s.mode != btrfs.SimpleQuota || s.inspect {
		return false, err
	}

	if _, err := s.quotas.Read(group); err != nil {
		// A snapshot, or a volume that was made without a limit.
		return false, errdefs.Ignore(err, fs.ErrNotExist)
	}

	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()

	if err := s.join(group); err != nil {
		return false, errdefs.Ignore(err, unix.EROFS)
	}

	inside, err := btrfs.AllInside(s.pool, group.Number())
	if err != nil {
		return false, err
	}

	strays, err := s.collectStrays(group, inside)
	if err == nil {
		err = s.removeForeign(group, inside)
	}

	return s.seen.takeEvaded(group.Number()) || strays, errdefs.Ignore(err, unix.EROFS)
}

// collectStrays gives the subvolumes inside of a volume the volume's groups. It returns true if one
// had others.
func (s *subvolumes) collectStrays(group btrfs.Group, inside []uint64) (bool, error) {
	wanted, err := btrfs.Parents(s.pool, ownGroup(group))
	if err != nil {
		return false, err
	}

	strays := false

	for _, id := range inside {
		own := btrfs.GroupOf(0, id)

		has, err := btrfs.Parents(s.pool, own)
		if err != nil {
			return strays, err
		}

		for _, each := range without(has, wanted) {
			strays = true

			if err := s.leave(own, each); err != nil {
				return strays, err
			}
		}

		for _, each := range without(wanted, has) {
			strays = true

			if err := btrfs.Assign(s.pool, own, each); err != nil {
				return strays, errdefs.Ignore(err, unix.ENOENT) // it was removed meanwhile
			}
		}
	}

	return strays, nil
}

// removeForeign removes from the volume's group the subvolumes that are not inside of the volume. Of
// those that do not exist any more it keeps the ones that were seen inside, and those that it finds
// first.
func (s *subvolumes) removeForeign(group btrfs.Group, inside []uint64) error {
	members, err := btrfs.Members(s.pool, group)
	if err != nil {
		return err
	}

	known, isKnown := s.seen.inside[group.Number()]
	seen := map[uint64]bool{group.Number(): true}

	for _, each := range inside {
		seen[each] = true
	}

	for _, member := range members {
		id := member.Number()
		if seen[id] {
			continue
		}

		foreign, exists, err := s.isForeign(id, group.Number())
		if err != nil {
			return err
		}

		if foreign || !exists && isKnown && !known[id] {
			if err := s.leave(member, group); err != nil {
				return err
			}

			continue
		}

		seen[id] = true
	}

	s.seen.inside[group.Number()] = seen

	return nil
}

// isForeign reports whether a subvolume is not inside of a volume, and whether it exists. One that is
// being made or removed is nowhere, and not foreign. Those around a foreign one have evaded their
// limits.
func (s *subvolumes) isForeign(id, volume uint64) (foreign, exists bool, err error) {
	around, found, err := enclosingOf(s.pool, id)
	if err != nil {
		return false, false, err
	}

	if !found {
		exists, err := btrfs.Exists(s.pool, id)

		return false, exists, err
	}

	if slices.ContainsFunc(around, func(each enclosing) bool { return each.id == volume }) {
		return false, true, nil
	}

	for _, each := range around {
		s.seen.evaded[each.id] = true
	}

	return true, true, nil
}

// release ends all memberships of a volume that is removed, and of the subvolumes inside, but those in
// its own group, which is removed next. It removes their own limits, too: a limit that is reached
// keeps a subvolume from being removed.
func (s *subvolumes) release(id uint64) error {
	inside, err := btrfs.AllInside(s.pool, id)
	if err != nil {
		return err
	}

	for _, each := range append(inside, id) {
		own := btrfs.GroupOf(0, each)

		parents, err := btrfs.Parents(s.pool, own)
		if err != nil {
			return err
		}

		for _, parent := range without(parents, []btrfs.Group{btrfs.GroupOf(groupLevel, id)}) {
			if err := s.leave(own, parent); err != nil {
				return err
			}
		}

		if err := btrfs.Unlimit(s.pool, own); err != nil {
			return err
		}
	}

	s.seen.mu.Lock()
	delete(s.seen.inside, id)
	delete(s.seen.evaded, id)
	s.seen.mu.Unlock()

	return nil
}

// Grown follows the subvolumes that are made around each new one: the kernel reports none of them.
func (s *subvolumes) Grown() ([]string, error) {
	if s.mode != btrfs.SimpleQuota || s.inspect {
		return nil, nil
	}

	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()

	made, err := btrfs.From(s.pool, max(firstNumber, s.seen.next))
	if err != nil {
		return nil, err
	}

	var (
		names []string
		next  = s.seen.next
		being uint64
	)

	for _, id := range made {
		around, found, err := enclosingOf(s.pool, id)
		if err != nil {
			return nil, err
		}

		next = id + 1

		for _, each := range around {
			if each.name != "" {
				names = append(names, each.name)
			}
		}

		if !found && being == 0 {
			being = id // It is being made or removed: seen again until it is somewhere, or gone.
		}
	}

	s.seen.next = next
	if being > 0 {
		s.seen.next = being
	}

	slices.Sort(names)

	return slices.Compact(names), nil
}

// enclosing is a subvolume that contains another one. The filesystem's own has no name.
type enclosing struct {
	id   uint64
	name string
}

// enclosingOf returns the subvolumes around one, the innermost first. It returns false for one that is being made or
// removed.
func enclosingOf(pool *os.File, id uint64) (found []enclosing, exists bool, err error) {
	for at := id; ; {
		place, placed, err := btrfs.PlaceOf(pool, at)
		if err != nil || !placed {
			return found, at != id, err
		}

		if at != id {
			found[len(found)-1].name = place.Name
		}

		at = place.Outer
		found = append(found, enclosing{id: at})
	}
}

// Sweep does nothing: Confine finds all.
func (*subvolumes) Sweep(context.Context, *os.File) (bool, error) { return false, nil }

// ownGroup returns the group of the subvolume itself that has the number of a group.
func ownGroup(group btrfs.Group) btrfs.Group { return btrfs.GroupOf(0, group.Number()) }

func without(groups, others []btrfs.Group) []btrfs.Group {
	return slices.DeleteFunc(slices.Clone(groups), func(each btrfs.Group) bool { return slices.Contains(others, each) })
}
