package catalog

import (
	"sync"

	"github.com/tidwall/btree"

	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// snapshotIndex has the snapshots of each volume, so that listing them needs no walk over
// all snapshots. The store reports every change to it, in order, also
// changes that are not durable yet.
type snapshotIndex struct {
	mu        sync.Mutex
	snapshots map[string]*btree.Set[string]
}

// newSnapshotIndex returns an empty index.
func newSnapshotIndex() *snapshotIndex {
	return &snapshotIndex{snapshots: map[string]*btree.Set[string]{}}
}

// observe updates the index with a change of the store.
func (l *snapshotIndex) observe(id string, old, now *record.Snapshot, hadOld, hasNow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch {
	case hasNow && !hadOld:
		if l.snapshots[now.SourceVolumeID] == nil {
			l.snapshots[now.SourceVolumeID] = &btree.Set[string]{}
		}

		l.snapshots[now.SourceVolumeID].Insert(id)
	case hadOld && !hasNow:
		ids := l.snapshots[old.SourceVolumeID]
		ids.Delete(id)

		if ids.Len() == 0 {
			delete(l.snapshots, old.SourceVolumeID)
		}
	}
}

// of returns the ids of a volume's snapshots behind after, ordered, at most
// that many.
func (l *snapshotIndex) of(volumeID, after string, most int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	var found []string

	if ids := l.snapshots[volumeID]; ids != nil {
		ids.Ascend(after, func(id string) bool {
			if id != after {
				found = append(found, id)
			}

			return len(found) < most
		})
	}

	return found
}
