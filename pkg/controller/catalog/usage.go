package catalog

import (
	"sync"

	"github.com/tidwall/btree"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// usage has sums over all volumes and snapshots, so that no call walks them. The store reports every
// change to it, in order.
type usage struct {
	provisioned pool.Provisioned

	mu sync.Mutex
	// nodes has the device slots in use of each node.
	nodes map[string]*slots
}

// slots is a set of numbers in use: all below next except the free ones.
type slots struct {
	next int
	free btree.Set[int]
}

// newUsage returns the usage of an empty store.
func newUsage() *usage {
	return &usage{nodes: map[string]*slots{}}
}

// observeVolume updates the sums with a change of a volume.
func (l *usage) observeVolume(_ string, old, now *record.Volume, hadOld, hasNow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if hadOld {
		l.provisioned.Add(old.Parameters.Pool, -old.CapacityBytes)

		for _, attachment := range old.Attachments {
			l.node(attachment.NodeID).release(attachment.Slot)
		}
	}

	if hasNow {
		l.provisioned.Add(now.Parameters.Pool, now.CapacityBytes)

		for _, attachment := range now.Attachments {
			l.node(attachment.NodeID).take(attachment.Slot)
		}
	}
}

// observeSnapshot updates the sums with a change of a snapshot.
func (l *usage) observeSnapshot(_ string, old, now *record.Snapshot, hadOld, hasNow bool) {
	if hadOld {
		l.provisioned.Add(old.Parameters.Pool, -old.AllocatedBytes)
	}

	if hasNow {
		l.provisioned.Add(now.Parameters.Pool, now.AllocatedBytes)
	}
}

// ProvisionedBytes returns the provisioned bytes of a pool.
func (l *usage) ProvisionedBytes(poolName string) int64 { return l.provisioned.Bytes(poolName) }

// FreeSlot returns the lowest slot that no attachment of the node has, and the number
// of those in use.
func (l *usage) FreeSlot(nodeID string) (int, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	node := l.node(nodeID)
	taken := int64(node.next - node.free.Len())

	if lowest, ok := node.free.Min(); ok {
		return lowest, taken
	}

	return node.next, taken
}

func (l *usage) node(id string) *slots {
	if l.nodes[id] == nil {
		l.nodes[id] = &slots{}
	}

	return l.nodes[id]
}

func (s *slots) take(slot int) {
	s.free.Delete(slot)

	for ; s.next <= slot; s.next++ {
		if s.next < slot {
			s.free.Insert(s.next)
		}
	}
}

func (s *slots) release(slot int) { s.free.Insert(slot) }
