package node

import (
	"sync"
	"time"
)

// visits keeps looks out of what an operation is about to unmount: a mount that
// anything is open in stays.
type visits struct {
	mu       sync.Mutex
	byVolume map[string]*visit
}

type visit struct {
	inside, awaited int
	// left is closed when nobody is inside any more.
	left chan struct{}
}

func newVisits() *visits { return &visits{byVolume: map[string]*visit{}} }

// enter returns false where the visitor would be in the way.
func (v *visits) enter(volumeID string) (leave func(), ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()

	found := v.of(volumeID)
	if found.awaited > 0 {
		return nil, false
	}

	found.inside++

	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()

		found.inside--
		if found.inside == 0 {
			close(found.left)
			found.left = make(chan struct{})
		}

		v.drop(volumeID, found)
	}, true
}

// await lets nobody in until the returned func is called, and returns once nobody
// is inside. For one that hangs it does not wait long: the mount may be taken away
// nevertheless.
func (v *visits) await(volumeID string) (end func()) {
	v.mu.Lock()

	found := v.of(volumeID)
	found.awaited++
	inside, left := found.inside, found.left

	v.mu.Unlock()

	if inside > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()

		select {
		case <-left:
		case <-timer.C:
		}
	}

	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()

		found.awaited--
		v.drop(volumeID, found)
	}
}

// of is the volume's own; the caller has the lock.
func (v *visits) of(volumeID string) *visit {
	found, known := v.byVolume[volumeID]
	if !known {
		found = &visit{left: make(chan struct{})}
		v.byVolume[volumeID] = found
	}

	return found
}

func (v *visits) drop(volumeID string, found *visit) {
	if found.inside == 0 && found.awaited == 0 {
		delete(v.byVolume, volumeID)
	}
}
