package pool

import (
	"maps"
	"os"
	"slices"
	"sync"
)

// unsyncedRemovals are the directories in which names were removed since their last sync.
type unsyncedRemovals struct {
	// syncing is held during a sync.
	syncing sync.Mutex
	// mu guards directories.
	mu          sync.Mutex
	directories map[*os.Root]bool
}

func (u *unsyncedRemovals) add(directories ...*os.Root) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.directories == nil {
		u.directories = map[*os.Root]bool{}
	}

	for _, each := range directories {
		u.directories[each] = true
	}
}

func (u *unsyncedRemovals) take() []*os.Root {
	u.mu.Lock()
	defer u.mu.Unlock()

	taken := slices.Collect(maps.Keys(u.directories))
	u.directories = nil

	return taken
}

// SyncRemovals makes the removals durable that have returned. Until then a power failure brings a
// removed object back, so the record that leads to it must not be forgotten earlier. Several calls
// share one sync.
func (p *Pool) SyncRemovals() error {
	p.unsynced.syncing.Lock()
	defer p.unsynced.syncing.Unlock()

	directories := p.unsynced.take()

	for i, each := range directories {
		if err := p.syncDirectory(each); err != nil {
			p.unsynced.add(directories[i:]...)

			return err
		}
	}

	return nil
}
