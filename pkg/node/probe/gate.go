package probe

import (
	"sync"
	"time"
)

// gateTimeout is how long Gate.Close waits for probes that are inside.
const gateTimeout = time.Second

// Gate is a read/write gate for each volume: probes hold it shared, unmounting takes
// it exclusively, because an open file keeps a mount busy.
type Gate struct {
	mu       sync.Mutex
	byVolume map[string]*volumeGate
}

type volumeGate struct {
	// inside is the number of probes that hold the gate, closers the number of
	// operations that have closed it.
	inside, closers int
	// empty is closed when the last probe leaves: none enters again before the gate is removed.
	empty chan struct{}
}

// NewGate returns a gate that is open for all volumes.
func NewGate() *Gate { return &Gate{byVolume: map[string]*volumeGate{}} }

// TryEnter holds the volume's gate until leave is called. It returns false at once
// where the gate is closed.
func (g *Gate) TryEnter(volumeID string) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	found := g.volumeLocked(volumeID)
	if found.closers > 0 {
		return nil, false
	}

	found.inside++

	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()

		found.inside--
		if found.inside == 0 {
			close(found.empty)
		}

		g.removeIfUnusedLocked(volumeID, found)
	}, true
}

// Close closes the volume's gate until reopen is called, and returns when no probe is
// inside, but after gateTimeout at the latest: a probe that hangs does not block the
// caller, whose unmount may succeed nevertheless.
func (g *Gate) Close(volumeID string) (reopen func()) {
	g.mu.Lock()

	found := g.volumeLocked(volumeID)
	found.closers++
	inside, empty := found.inside, found.empty

	g.mu.Unlock()

	if inside > 0 {
		timer := time.NewTimer(gateTimeout)
		defer timer.Stop()

		select {
		case <-empty:
		case <-timer.C:
		}
	}

	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()

		found.closers--
		g.removeIfUnusedLocked(volumeID, found)
	}
}

// volumeLocked returns the volume's gate, a new one where it has none.
func (g *Gate) volumeLocked(volumeID string) *volumeGate {
	found, ok := g.byVolume[volumeID]
	if !ok {
		found = &volumeGate{empty: make(chan struct{})}
		g.byVolume[volumeID] = found
	}

	return found
}

func (g *Gate) removeIfUnusedLocked(volumeID string, found *volumeGate) {
	if found.inside == 0 && found.closers == 0 {
		delete(g.byVolume, volumeID)
	}
}
