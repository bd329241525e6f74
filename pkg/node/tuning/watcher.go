package tuning

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

const (
	// attributePollPeriod is the longest delay until a modification made on another machine
	// takes effect: inotify reports changes to a shared filesystem only on the machine that
	// makes them.
	attributePollPeriod = 30 * time.Second
	// maxRefreshes bounds the volumes that are refreshed at the same time: some may hang.
	maxRefreshes = 16
)

// Watcher applies the modifications that a controller in another process makes to the
// mutable parameters of volumes in use here (split mode).
type Watcher struct {
	Pools *pool.Set
	// InUse returns the volumes in use here that are stored in images.
	InUse func() []string
	// IsInUse reports whether the volume is in use here.
	IsInUse func(volumeID string) bool
	// Modified is called for each volume whose parameters have changed, in use or not.
	Modified func(volumeID string)
	// Refresh applies the parameters of a volume. A refresh of another round must not join
	// one that is running, which may have read older parameters.
	Refresh func(ctx context.Context, volumeID string, round int) error
	Log     *slog.Logger
}

// Run watches the pools until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	watcher, err := w.newWatcher()
	w.logUnwatched(err)

	changed := w.Pools.Changed()

	// A nil channel never receives.
	var (
		events   <-chan fsnotify.Event
		failures <-chan error
	)

	if watcher != nil {
		defer watcher.Close()

		events, failures = watcher.Events, watcher.Errors
	}

	poll := time.NewTicker(attributePollPeriod)
	defer poll.Stop()

	refreshes := &errgroup.Group{}
	refreshes.SetLimit(maxRefreshes)

	defer func() { _ = refreshes.Wait() }() // they log their errors

	// At first for what was modified before the watch began.
	ids := w.InUse()

	for round := 0; ; round++ {
		for _, id := range ids {
			refreshes.Go(func() error {
				w.refresh(ctx, id, round)

				return nil
			})
		}

		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = w.Pools.Changed()
			if watcher != nil {
				err = w.watchServed(watcher)
			}

			w.logUnwatched(err)
		case <-poll.C:
		case reason := <-failures:
			w.Log.Warn("watching mutable parameters failed; reading those of all volumes", "reason", reason)
		case event := <-events:
			ids = w.modified(event)

			continue
		}

		ids = w.InUse()
	}
}

func (w *Watcher) logUnwatched(err error) {
	if err != nil {
		w.Log.Error("mutable parameters are polled, as they cannot be watched", "period", attributePollPeriod, "error", err)
	}
}

// newWatcher returns a watcher, nil where there is none. With an error it watches only some
// of the pools.
func (w *Watcher) newWatcher() (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the attributes of volumes: %w", err)
	}

	return watcher, w.watchServed(watcher)
}

// watchServed watches the pools that are served, also those that it watches already: the
// directory of a pool that has failed and recovered may be another one.
func (w *Watcher) watchServed(watcher *fsnotify.Watcher) error {
	for _, served := range w.Pools.Served() {
		if err := watcher.Add(served.AttributesPath()); err != nil {
			return fmt.Errorf("watch the attributes of volumes in pool %q: %w", served.Name(), err)
		}
	}

	return nil
}

// modified returns the volume in use whose attributes an event is about, and reports it to
// Modified. A modification renames a complete file into place: an event of another kind is
// about a file that is being written.
func (w *Watcher) modified(event fsnotify.Event) []string {
	id, isAttributes := strings.CutSuffix(filepath.Base(event.Name), layout.AttributesSuffix)
	if !isAttributes || !event.Has(fsnotify.Create) {
		return nil
	}

	w.Modified(id)

	if !w.IsInUse(id) {
		return nil
	}

	return []string{id}
}

func (w *Watcher) refresh(ctx context.Context, volumeID string, round int) {
	if err := w.Refresh(ctx, volumeID, round); err != nil && ctx.Err() == nil {
		w.Log.Error("cannot apply the mutable parameters of a volume", "volume", volumeID, "error", err)
	}
}
