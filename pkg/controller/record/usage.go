package record

import (
	"sync"

	"github.com/tidwall/btree"
)

// ledger keeps sums over all volumes and snapshots, so that no call has to walk
// them. The store tells it of every change, in order.
type Usage struct {
	mu sync.Mutex
	// sold is the promised bytes of each pool.
	provisioned map[string]int64
	// nodes holds the taken device slots of each node.
	nodes map[string]*slots
}

// slots are the taken ones among the natural numbers: all below next but the
// free ones.
type slots struct {
	next int
	free btree.Set[int]
}

func NewUsage() *Usage {
	return &Usage{provisioned: map[string]int64{}, nodes: map[string]*slots{}}
}

func (l *Usage) ObserveVolume(_ string, old, now *Volume, hadOld, hasNow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if hadOld {
		l.provisioned[old.Parameters.Pool] -= old.CapacityBytes

		for _, attachment := range old.Attachments {
			l.node(attachment.NodeID).release(attachment.Slot)
		}
	}

	if hasNow {
		l.provisioned[now.Parameters.Pool] += now.CapacityBytes

		for _, attachment := range now.Attachments {
			l.node(attachment.NodeID).take(attachment.Slot)
		}
	}
}

func (l *Usage) ObserveSnapshot(_ string, old, now *Snapshot, hadOld, hasNow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if hadOld {
		l.provisioned[old.Parameters.Pool] -= old.AllocatedBytes
	}

	if hasNow {
		l.provisioned[now.Parameters.Pool] += now.AllocatedBytes
	}
}

func (l *Usage) ProvisionedBytes(pool string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.provisioned[pool]
}

// FreeSlot returns the lowest slot that no attachment of the node has, and how
// many are taken.
func (l *Usage) FreeSlot(nodeID string) (int, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()

	node := l.node(nodeID)
	taken := int64(node.next - node.free.Len())

	if lowest, ok := node.free.Min(); ok {
		return lowest, taken
	}

	return node.next, taken
}

func (l *Usage) node(id string) *slots {
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
