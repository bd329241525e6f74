package freeze

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// syncLimit is how long the data that is not written yet may take before a freeze. Nothing waits for it
// but the caller.
const syncLimit = 5 * time.Minute

var errSyncLimit = errdefs.Errorf(errdefs.ErrFailedPrecondition,
	"the data of the volume was not written within %s; see whether its pool responds, and try again", syncLimit)

// window is the time in which the filesystems of one call are frozen.
type window struct {
	freezer *Freezer
	mounted []Filesystem
	// recorded means that the records of mounted are of this window.
	recorded bool
	// frozen is how many of mounted are frozen, and since the time of the first freeze.
	frozen int
	since  time.Time
	close  func() error
}

// prepare syncs devices and filesystems, so that the freeze itself writes little, and
// records the filesystems that are about to be frozen.
func (w *window) prepare(ctx context.Context, devices []int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, syncLimit, errSyncLimit)
	defer cancel()

	for _, number := range devices {
		_, err := operation.Await(ctx, func() (struct{}, error) { return struct{}{}, w.freezer.syncDevice(number) })
		if err != nil {
			return err
		}
	}

	if len(w.mounted) == 0 {
		return nil
	}

	records := make([]*Frozen, 0, len(w.mounted))

	for i := range w.mounted {
		volume := &w.mounted[i]
		if w.freezer.IsFrozen(volume.VolumeID) {
			return errdefs.Errorf(errdefs.ErrUnavailable, "freeze volume %s: it is still frozen, since thawing it failed; that is being retried",
				volume.VolumeID)
		}

		err := volume.call(ctx, filesystem.Sync, func(err error) {
			w.freezer.config.Log.Warn("a sync has ended after its time limit", "volume", volume.VolumeID, "error", err)
		})
		if err != nil {
			return fmt.Errorf("freeze volume %s: %w", volume.VolumeID, err)
		}

		records = append(records, &Frozen{VolumeID: volume.VolumeID, FSType: volume.FSType})
	}

	w.recorded = true

	return w.freezer.frozen.PutAll(ctx, records)
}

func (w *window) freeze(ctx context.Context) error {
	w.since = time.Now()

	for i := range w.mounted {
		volume := &w.mounted[i]
		if err := w.freezeOne(ctx, volume); err != nil {
			return fmt.Errorf("freeze volume %s: %w", volume.VolumeID, err)
		}

		w.frozen++
	}

	return nil
}

// freezeOne freezes one filesystem. It returns when ctx ends, too: a disk that hangs blocks
// the freeze, and with it the volumes that are frozen already. If the freeze succeeds after
// that, it is undone; in any case its record is dropped, since end leaves the filesystem out.
func (w *window) freezeOne(ctx context.Context, volume *Filesystem) error {
	return volume.call(ctx, filesystem.Freeze, func(err error) {
		if err == nil {
			err = w.freezer.thaw(volume.VolumeID, volume.Root)
		} else {
			err = errors.Join(err, w.freezer.frozen.DeleteLazily(volume.VolumeID))
		}

		w.freezer.config.Log.Warn("a freeze has ended after its time limit", "volume", volume.VolumeID, "error", err)
	})
}

// call calls do, and late if ctx ends before it: do has the root until then.
func (f *Filesystem) call(ctx context.Context, do func(root *os.File) error, late func(err error)) error {
	done := make(chan error)

	go func() {
		err := do(f.Root)

		select {
		case done <- err:
		case <-ctx.Done():
			late(err)
			_ = f.Root.Close()
		}
	}()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		f.abandoned = true

		return context.Cause(ctx)
	}
}

// end thaws the frozen filesystems, the last one first, and closes all roots.
func (w *window) end() error {
	var failures []error

	for i, volume := range slices.Backward(w.mounted) {
		switch {
		case volume.abandoned:
			continue
		case i < w.frozen:
			failures = append(failures, w.freezer.thaw(volume.VolumeID, volume.Root))
		case w.recorded:
			failures = append(failures, w.freezer.frozen.DeleteLazily(volume.VolumeID))
		}

		failures = append(failures, volume.Root.Close())
	}

	if w.frozen > 0 {
		w.freezer.config.Log.Debug("filesystems were frozen", "volumes", w.frozen,
			"first", w.mounted[0].VolumeID, "window", time.Since(w.since))
	}

	return errors.Join(failures...)
}
