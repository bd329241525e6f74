package tuning

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

const (
	// pollPeriod is the longest delay until a modification made on another machine
	// takes effect: inotify reports changes to a shared filesystem only on the machine that
	// makes them.
	pollPeriod = 30 * time.Second
	// maxApplied bounds the volumes to which they are applied at the same time: some may hang.
	maxApplied = 16
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
	// Apply applies the parameters of a volume. It must not join one that is running, which may have
	// read older parameters.
	Apply func(ctx context.Context, volumeID string) error
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Run watches the pools until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	// all is signalled when any volume may have been modified: before its pool was watched.
	all, events := make(chan struct{}, 1), make(chan inotify.Event)

	var running sync.WaitGroup

	running.Go(func() { w.watch(ctx, all, events) })
	defer running.Wait()

	queue := workqueue.NewTyped[string]()
	defer queue.ShutDown()

	for range maxApplied {
		running.Go(func() { w.applyQueued(ctx, queue) })
	}

	poll := w.Clock.NewTicker(pollPeriod)
	defer poll.Stop()

	// At first none: they are applied to all once the pools are watched, or cannot be.
	var ids []string

	for {
		for _, id := range ids {
			queue.Add(id)
		}

		select {
		case <-ctx.Done():
			return
		case <-all:
		case <-poll.C():
		case event := <-events:
			ids = w.modified(event)

			continue
		}

		ids = w.InUse()
	}
}

// watch watches the pools that are served until ctx ends. One that cannot be watched is polled, and tried
// again whenever the pools change; where none can be, all are tried again periodically.
func (w *Watcher) watch(ctx context.Context, all chan<- struct{}, events chan<- inotify.Event) {
	failed := func(err error) {
		w.Log.Error("mutable parameters are polled, as they cannot be watched", "period", pollPeriod, "error", err)
		signal(all)
	}

	for {
		changed := w.Pools.Changed()

		err := inotify.Watch(ctx, inotify.Directories{List: w.directories, Changed: w.Pools.Changed, Failed: failed},
			func() { signal(all) }, func(event inotify.Event) {
				select {
				case <-ctx.Done():
				case events <- event:
				}
			})
		if ctx.Err() != nil {
			return
		}

		failed(err)

		again := w.Clock.NewTimer(pollPeriod)

		select {
		case <-ctx.Done():
		case <-changed:
		case <-again.C():
		}

		again.Stop()
	}
}

func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// directories are those of the mutable parameters in the pools that are served. A pool that has failed and
// recovered may have another one of that name.
func (w *Watcher) directories() []string {
	var paths []string

	for _, served := range w.Pools.Served() {
		paths = append(paths, served.MutablePath())
	}

	return paths
}

// modified returns the volume in use whose mutable parameters an event is about, and reports it to
// Modified; all in use after a loss of events. A modification renames a complete file into place: an
// event of another kind is about a file that is being written.
func (w *Watcher) modified(event inotify.Event) []string {
	if event.Kind == inotify.Lost {
		return w.InUse()
	}

	id, isMutable := strings.CutSuffix(filepath.Base(event.Path), layout.MutableSuffix)
	if !isMutable || event.Kind != inotify.Appeared {
		return nil
	}

	w.Modified(id)

	if !w.IsInUse(id) {
		return nil
	}

	return []string{id}
}

// applyQueued applies the parameters of queued volumes until the queue is shut down or ctx ends. The queue
// does not return a volume that is being applied, but returns it again afterwards if it was added meanwhile.
func (w *Watcher) applyQueued(ctx context.Context, queue workqueue.TypedInterface[string]) {
	for {
		id, ended := queue.Get()
		if ended || ctx.Err() != nil {
			return
		}

		if err := w.Apply(ctx, id); err != nil && ctx.Err() == nil {
			w.Log.Error("cannot apply the mutable parameters of a volume", "volume", id, "error", err)
		}

		queue.Done(id)
	}
}
