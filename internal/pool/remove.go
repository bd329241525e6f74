package pool

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// discardWait is how long Discard waits for a removal.
const discardWait = 2 * time.Second

// Remove removes an object, its mutable parameters and its scratch. A missing object is no error. It takes
// time in proportion to the number of files. Errors: tree.ErrMounted, ctx's.
func (p *Pool) Remove(ctx context.Context, object Object) error {
	if _, err := p.unlinkObject(ctx, object); err != nil {
		return p.removeError(object.String(), err)
	}

	return p.removeError(object.String(), p.purge(ctx, object.ID))
}

func (p *Pool) removeError(object string, err error) error {
	if err != nil {
		return fmt.Errorf("remove %s from pool %q: %w; the driver retries it until it succeeds", object, p.name, err)
	}

	return nil
}

// Discard is Remove for an object whose record is deleted at once: when it returns nil, the object
// is not in place any more, and its space is freed then or, if that takes long or fails, in the
// background.
func (p *Pool) Discard(ctx context.Context, object Object) (err error) {
	defer errdefs.Wrapf(&err, "discard %s in pool %q", object, p.name)

	moved, err := p.unlinkObject(ctx, object)
	if err != nil || !moved {
		return err
	}

	return p.purgeOrSchedule(ctx, object.ID)
}

// ResumeRemovals schedules the removals that earlier processes did not complete.
func (p *Pool) ResumeRemovals(ctx context.Context) error {
	err := listIDs(ctx, p.removing, "", func(id string) error { return p.purgeOrSchedule(ctx, id) })
	if err != nil {
		return fmt.Errorf("resume removals in pool %q: %w", p.name, err)
	}

	return nil
}

// unlinkObject removes the name of an object, its mutable parameters and its scratch. It returns true if a
// directory remains for purge.
func (p *Pool) unlinkObject(ctx context.Context, object Object) (moved bool, err error) {
	if err := checkID(object.ID); err != nil {
		return false, err
	}

	if !object.Snapshot {
		p.resized.Delete(object.ID)
		p.evaded.Delete(object.ID)

		if err := p.removeMutable(object.ID); err != nil {
			return false, err
		}
	}

	scratch, err := p.unlinkScratch(ctx, object.ID)
	if err != nil {
		return false, err
	}

	moved, err = p.moveToRemoving(ctx, p.parentOf(object), object.fileName(), object.ID)
	p.unsynced.add(p.parentOf(object))

	return moved || scratch, err
}

// purgeOrSchedule purges removing/<id>. It returns after discardWait at the latest; the removal
// then continues in the background. Without a queue it always waits.
func (p *Pool) purgeOrSchedule(ctx context.Context, id string) error {
	if p.removals == nil {
		return p.purge(ctx, id)
	}

	object := "discarded files of " + id
	done := p.removals.Start(removal.Task{ //nolint:contextcheck // the task outlives this call
		Pool: p.name, Object: object,
		Remove: func(ctx context.Context) error { return p.removeError(object, p.purge(ctx, id)) },
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

// moveToRemoving removes a name from a directory of the pool: a file or an empty directory at once,
// any other directory, unless package quota removes it at once, by renaming it to removing/<id>,
// which needs no space in a full pool; purge removes it. A name that is missing is no error. Errors:
// tree.ErrMounted.
func (p *Pool) moveToRemoving(ctx context.Context, directory *os.Root, name, id string) (moved bool, err error) {
	from, err := directory.Open(".")
	if err != nil {
		return false, err
	}
	defer from.Close()

	removed, err := p.quotas.Remove(ctx, from, name)
	if err != nil || removed {
		return false, err
	}

	empty, err := tree.RemoveName(from, name)
	if err != nil || empty {
		return false, err
	}

	if p.removing == nil {
		return false, fmt.Errorf("%s: %w; start a driver with this pool once, which makes it",
			filepath.Join(p.path, layout.Removing), fs.ErrNotExist)
	}

	to, err := p.removing.Open(".")
	if err != nil {
		return false, err
	}
	defer to.Close()

	return tree.Move(from, name, to, id)
}

// purge removes removing/<id>. Errors: tree.ErrMounted, ctx's.
func (p *Pool) purge(ctx context.Context, id string) error {
	if p.removing == nil {
		return nil
	}

	release, err := p.purging.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()

	removing, err := p.removing.Open(".")
	if err != nil {
		return err
	}
	defer removing.Close()

	return tree.Remove(ctx, removing, id)
}
