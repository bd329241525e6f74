package record

import (
	"fmt"
	"slices"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// The names of the controller's collections.
const (
	VolumesCollection   = "volumes"
	SnapshotsCollection = "snapshots"
	GroupsCollection    = "groups"
)

// Collections are the controller's collections of a store.
type Collections struct {
	Volumes   *state.Collection[*Volume]
	Snapshots *state.Collection[*Snapshot]
	Groups    *state.Collection[*Group]
}

// Options are added to those that every store has for its records.
type Options struct {
	Volumes   []state.CollectionOption[*Volume]
	Snapshots []state.CollectionOption[*Snapshot]
}

// Register adds the collections to a store that is not open yet. No record is read that is
// incomplete, has an unknown value, or contradicts another one.
func Register(store *state.Store, more Options) Collections {
	c := Collections{
		Volumes: state.Register(store, VolumesCollection, append([]state.CollectionOption[*Volume]{
			state.WithIndex(NameIndex, func(v *Volume) string { return v.Phase.indexed(v.Name) }), state.WithCheck(checkVolume),
		}, more.Volumes...)...),
		Snapshots: state.Register(store, SnapshotsCollection, append([]state.CollectionOption[*Snapshot]{
			state.WithIndex(NameIndex, func(s *Snapshot) string { return s.Phase.indexed(s.Name) }), state.WithCheck(checkSnapshot),
		}, more.Snapshots...)...),
		Groups: state.Register(store, GroupsCollection,
			state.WithIndex(NameIndex, func(g *Group) string { return g.Phase.indexed(g.Name) }), state.WithCheck(checkGroup)),
	}
	store.AddCheck(c.checkMembers)

	return c
}

// checkMembers reports groups and snapshots that disagree: the removal of an unfinished group removes
// its members. A group may lack members, and a member its group, after a repair.
func (c Collections) checkMembers(tx *state.Tx, report func(collection, key string, reason error)) {
	groups, snapshots := c.Groups.In(tx), c.Snapshots.In(tx)

	for id, group := range groups.Ascend("") {
		for _, memberID := range group.SnapshotIDs {
			member, ok := snapshots.Get(memberID)

			switch {
			case !ok:
			case member.GroupID != id:
				report(GroupsCollection, id, fmt.Errorf("%w: snapshot %s is a member of group %q", errContradiction, memberID, member.GroupID))
			case group.Phase.IsUnfinished() && member.Phase != group.Phase, member.Phase == PhaseCreating && group.Phase == PhaseReady:
				report(GroupsCollection, id, fmt.Errorf("%w: phase %q, and %q of its member %s",
					errContradiction, group.Phase, member.Phase, memberID))
			}
		}
	}

	for id, member := range snapshots.Ascend("") {
		if group, ok := groups.Get(member.GroupID); ok && !slices.Contains(group.SnapshotIDs, id) {
			report(SnapshotsCollection, id, fmt.Errorf("%w: it is no member of its group %s", errContradiction, member.GroupID))
		}
	}
}
