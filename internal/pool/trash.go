package pool

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// discardWait is how long complete waits for a removal of the queue.
const discardWait = 2 * time.Second

// trash removes names from the directories of a pool. It moves a directory that takes long to
// removing/<id>, from where complete removes it.
type trash struct {
	label

	// removing is the directory of that name.
	removing *os.Root
	// purging has a mutex for each removing/<id>.
	purging *keyedSemaphores
	// quotas removes the directories that it can remove at once.
	quotas quota.Directories
	// complete purges removing/<id>, at once or by a queue.
	complete func(ctx context.Context, id string) error
	// unsynced are the directories of objects: whether names were removed in them since their last sync,
	// during which syncing is held.
	unsynced map[*os.Root]*atomic.Bool
	syncing  sync.Mutex
}

// newTrash returns the trash of a pool, which completes each removal at once unless it has a queue.
func newTrash(of objects, quotas quota.Directories, queue *removal.Queue) *trash {
	t := &trash{
		label: of.label, removing: of.roots[layout.Removing], quotas: quotas, unsynced: map[*os.Root]*atomic.Bool{},
		purging: newKeyedSemaphores(1),
	}

	t.complete = t.purge
	if queue != nil {
		t.complete = func(ctx context.Context, id string) error { return t.enqueue(ctx, queue, id) }
	}

	for _, root := range of.roots {
		t.unsynced[root] = &atomic.Bool{}
	}

	return t
}

// enqueue purges removing/<id> by the queue. It returns after discardWait at the latest, and the removal
// continues in the background.
func (t *trash) enqueue(ctx context.Context, queue *removal.Queue, id string) error {
	object := "discarded files of " + id
	done := queue.Start(removal.Task{ //nolint:contextcheck // the task outlives this call
		Pool: t.name, Object: object,
		Remove: func(ctx context.Context) error { return t.removeError(object, t.purge(ctx, id)) },
	})

	// Before the driver is ready, the removal is only scheduled.
	if done == nil {
		return nil
	}

	select {
	case <-done:
	case <-time.After(discardWait):
	case <-ctx.Done():
	}

	return nil
}

// ResumeRemovals schedules the removals that earlier processes did not complete.
func (t *trash) ResumeRemovals(ctx context.Context) error {
	err := listIDs(ctx, t.removing, "", func(id string) error { return t.complete(ctx, id) })
	if err != nil {
		return fmt.Errorf("resume removals in pool %q: %w", t.name, err)
	}

	return nil
}

// move removes a name from a directory of the pool: a file or an empty directory at once, any other
// directory, unless package quota removes it at once, by renaming it to removing/<id>, which needs no
// space in a full pool; complete removes it. A name that is missing is no error. Errors:
// tree.ErrMounted.
func (t *trash) move(ctx context.Context, directory *os.Root, name, id string) (moved bool, err error) {
	from, err := directory.Open(".")
	if err != nil {
		return false, err
	}
	defer from.Close()

	removed, err := t.quotas.Remove(ctx, from, name)
	if err != nil || removed {
		return false, err
	}

	empty, err := tree.RemoveName(from, name)
	if err != nil || empty {
		return false, err
	}

	return true, tree.InDirectory(t.removing, func(to *os.File) error { return tree.Move(from, name, to, id) })
}

// purge removes removing/<id>. Errors: tree.ErrMounted, ctx's.
func (t *trash) purge(ctx context.Context, id string) error {
	release, err := t.purging.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()

	return tree.InDirectory(t.removing, func(removing *os.File) error { return tree.Remove(ctx, removing, id) })
}

func (l label) removeError(object string, err error) error {
	if err != nil {
		return fmt.Errorf("remove %s from pool %q: %w; the driver retries it until it succeeds", object, l.name, err)
	}

	return nil
}

// SyncRemovals makes the removals durable that have returned. Until then a power failure brings a
// removed object back, so the record that leads to it must not be forgotten earlier. Several calls
// share one sync.
func (t *trash) SyncRemovals() error {
	t.syncing.Lock()
	defer t.syncing.Unlock()

	for root, unsynced := range t.unsynced {
		if !unsynced.Swap(false) {
			continue
		}

		if err := t.syncDirectory(root); err != nil {
			unsynced.Store(true)

			return err
		}
	}

	return nil
}

// Remove removes an object, its mutable parameters and its scratch. A missing object is no error. It takes
// time in proportion to the number of files. Errors: tree.ErrMounted, ctx's.
func (p *Pool) Remove(ctx context.Context, object Object) error {
	if _, err := p.unlinkObject(ctx, object); err != nil {
		return p.removeError(object.String(), err)
	}

	return p.removeError(object.String(), p.purge(ctx, object.ID))
}

// Discard is Remove for an object whose record is deleted at once: when it returns nil, the object
// is not in place any more, not after a power failure either, and its space is freed then or, if that
// takes long or fails, in the background.
func (p *Pool) Discard(ctx context.Context, object Object) (err error) {
	defer errdefs.Wrapf(&err, "discard %s in pool %q", object, p.name)

	moved, err := p.unlinkObject(ctx, object)
	if err != nil {
		return err
	}

	if moved {
		if err := p.complete(ctx, object.ID); err != nil {
			return err
		}
	}

	return p.SyncRemovals()
}

// unlinkObject removes the name of an object, its mutable parameters and its scratch. It returns true if a
// directory remains for purge.
func (p *Pool) unlinkObject(ctx context.Context, object Object) (moved bool, err error) {
	parent, err := p.parentOf(object)
	if err != nil {
		return false, err
	}

	if !object.Snapshot {
		p.Backing(object.Backing).forget(object.ID)

		if err := p.removeMutable(object.ID); err != nil {
			return false, err
		}
	}

	scratch, err := p.unlink(ctx, object.ID)
	if err != nil {
		return false, err
	}

	moved, err = p.move(ctx, parent, object.fileName(), object.ID)
	p.unsynced[parent].Store(true)

	return moved || scratch, err
}
