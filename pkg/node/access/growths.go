package access

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// growthLimit is how long the growth of a mounted filesystem is waited for.
const growthLimit = time.Minute

// growthEndLimit is how long an unmount waits for a growth, which has the mount open.
const growthEndLimit = 10 * time.Second

// errGrowing is returned for a growth that has not ended: nothing can end it.
var errGrowing = errdefs.Errorf(errdefs.ErrFailedPrecondition,
	"its filesystem is still growing, since it is frozen or its disk does not respond; "+
		"thaw it (fsfreeze --unfreeze) or see to its pool, then call again")

// growths are the growths of mounted filesystems that have not ended, by volume.
type growths struct {
	// running has a chan struct{} for each, which is closed at its end.
	running sync.Map
}

// run returns grow's error, or after the limit errGrowing: grow continues then, and the volume has no other
// growth until it has ended.
func (g *growths) run(ctx context.Context, volumeID string, limit time.Duration, grow func() error) error {
	done := make(chan struct{})
	if _, running := g.running.LoadOrStore(volumeID, done); running {
		return errGrowing
	}

	ctx, cancel := context.WithTimeoutCause(ctx, limit, errGrowing)
	defer cancel()

	_, err := operation.Await(ctx, func() (struct{}, error) {
		defer close(done)
		defer g.running.Delete(volumeID)

		return struct{}{}, grow()
	})

	return err
}

// wait waits for the volume's growth to end. Error: errGrowing, after the limit; ctx's.
func (g *growths) wait(ctx context.Context, volumeID string, limit time.Duration) error {
	found, _ := g.running.Load(volumeID)

	running, ok := found.(chan struct{})
	if !ok {
		return nil
	}

	ctx, cancel := context.WithTimeoutCause(ctx, limit, errGrowing)
	defer cancel()

	select {
	case <-running:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// checkThawed returns filesystem.ErrFrozen if the volume's filesystem is mounted for writing and
// frozen, so that what follows does not wait for another program to thaw it.
func checkThawed(way Access, v *staged.Volume) error {
	targets := freeze.Targets{}
	if err := way.AddFreezeTargets(v, &targets); err != nil {
		return err
	}

	for _, each := range targets.Filesystems {
		if err := filesystem.CheckThawed(each.Root); err != nil {
			return errors.Join(err, targets.Close())
		}
	}

	return targets.Close()
}
