package progress

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// steps is how often the log hears of one task between its begin and its end.
const steps = 10

// Entry is one task at one moment.
type Entry struct {
	// Kind is what is being done, such as "snapshot", and Object is to what: the id, and Name the name,
	// of what is made.
	Kind   string `json:"kind"`
	Object string `json:"object"`
	Name   string `json:"name,omitempty"`
	// Done and Total are bytes. Total is 0 while it is not known.
	Done    int64     `json:"done"`
	Total   int64     `json:"total"`
	Started time.Time `json:"started"`
}

// Registry knows the tasks that are running. It is safe for concurrent use; a
// nil one knows nothing and takes everything.
type Registry struct {
	log *slog.Logger

	mu    sync.Mutex
	tasks map[*Task]struct{}
}

// NewRegistry returns a registry that logs each task.
func NewRegistry(log *slog.Logger) *Registry {
	return &Registry{log: log, tasks: map[*Task]struct{}{}}
}

// Task is one piece of work. It is safe for concurrent use; nil is none.
type Task struct {
	registry    *Registry
	entry       Entry
	loggedSteps int64
	// cancel is nil for a task that cannot be cancelled. ended is closed at its end.
	cancel context.CancelCauseFunc
	ended  chan struct{}
}

// ErrCancelled is why a task ended that was cancelled.
var ErrCancelled = errdefs.New(errdefs.ErrAborted, "the copy was cancelled")

// Start begins a task of total bytes, 0 if that is not known.
func (r *Registry) Start(kind, object, name string, total int64) *Task {
	if r == nil {
		return nil
	}

	task := &Task{
		registry: r, ended: make(chan struct{}),
		entry: Entry{Kind: kind, Object: object, Name: name, Total: total, Started: time.Now()},
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.tasks[task] = struct{}{}

	return task
}

// OnCancel makes the task one that Cancel ends, by a call of cancel with ErrCancelled.
func (t *Task) OnCancel(cancel context.CancelCauseFunc) {
	if t == nil {
		return
	}

	t.registry.mu.Lock()
	defer t.registry.mu.Unlock()

	t.cancel = cancel
}

// Cancel cancels the tasks of the object, by its id or name, and returns what they were, once they have
// ended. Errors: ctx's.
func (r *Registry) Cancel(ctx context.Context, object string) (cancelled []Entry, err error) {
	var ending []*Task

	r.mu.Lock()

	for task := range r.tasks {
		if task.cancel != nil && (task.entry.Object == object || task.entry.Name == object) {
			task.cancel(ErrCancelled)

			ending = append(ending, task)
		}
	}

	r.mu.Unlock()

	for _, task := range ending {
		select {
		case <-task.ended:
			cancelled = append(cancelled, task.entry)
		case <-ctx.Done():
			return nil, fmt.Errorf("wait until the copy has ended: %w", context.Cause(ctx))
		}
	}

	return cancelled, nil
}

// Set says how many bytes are done, and of how many.
func (t *Task) Set(done, total int64) {
	if t == nil {
		return
	}

	step := int64(0)
	if total > 0 {
		// Divided first: a volume's bytes times ten may be too many.
		step = done / max(total/steps, 1)
	}

	t.registry.mu.Lock()
	t.entry.Done, t.entry.Total = done, total
	due := step > t.loggedSteps && done < total
	t.loggedSteps = step
	t.registry.mu.Unlock()

	if due { // kind and object never change
		t.registry.log.Info("copying", "kind", t.entry.Kind, "object", t.entry.Object, "done", done, "total", total)
	}
}

// End ends the task; failure is why it came to nothing, or nil.
func (t *Task) End(failure error) {
	if t == nil {
		return
	}

	t.registry.mu.Lock()
	delete(t.registry.tasks, t)
	close(t.ended)
	entry, long := t.entry, t.loggedSteps > 0
	t.registry.mu.Unlock()

	log := t.registry.log.With("kind", entry.Kind, "object", entry.Object, "bytes", entry.Done, "took", time.Since(entry.Started))

	switch {
	case failure != nil:
		log.Info("copy failed", "error", failure)
	case long:
		log.Info("copy ended")
	default:
		log.Debug("copy ended")
	}
}

// List returns the running tasks, the oldest first.
func (r *Registry) List() []Entry {
	if r == nil {
		return nil
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	entries := make([]Entry, 0, len(r.tasks))
	for task := range r.tasks {
		entries = append(entries, task.entry)
	}

	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Object, b.Object))
	})

	return entries
}
