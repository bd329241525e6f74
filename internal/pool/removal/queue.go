package removal

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/operation"
)

const (
	// firstPause is between the first two attempts of a task; it doubles with each
	// failure up to maxPause.
	firstPause = time.Second
	maxPause   = 30 * time.Second
	// stopLimit is how long Run waits for running tasks when it is cancelled: one
	// that hangs in the kernel does not end.
	stopLimit = 5 * time.Second
)

// Task removes one object. Two tasks with the same pool and object are the same.
type Task struct {
	Pool, Object string
	// Remove is idempotent. It is never called concurrently for one object.
	Remove func(ctx context.Context) error
}

// Failure is an object that could not be removed at the last attempt.
type Failure struct {
	Pool, Object string
	Cause        error
}

// Queue runs tasks. It is safe for concurrent use.
type Queue struct {
	log *slog.Logger
	// wake has the dispatcher check for tasks that are due.
	wake chan struct{}

	mu      sync.Mutex
	entries map[key]*entry
	// busy holds the pools whose worker runs.
	busy map[string]bool
	// running is Run's context, nil before Run.
	running context.Context //nolint:containedctx // tasks that Start begins end with Run
	started sync.WaitGroup
	changed func(pool string)
}

type key struct{ pool, object string }

type entry struct {
	task Task
	// turn is held by the running attempt.
	turn chan struct{}
	// failure and pause are those of the last attempt; due is the time of the next one.
	failure error
	pause   time.Duration
	due     time.Time
}

// New returns an empty queue. Nothing runs in the background before Run.
func New(log *slog.Logger) *Queue {
	return &Queue{
		log: log, wake: make(chan struct{}, 1), entries: map[key]*entry{}, busy: map[string]bool{}, changed: func(string) {},
	}
}

// OnChange sets the function that is called, without a lock, whenever a failure of the pool
// appears, changes or clears. Call it before the first task.
func (q *Queue) OnChange(changed func(pool string)) { q.changed = changed }

// Add schedules a task for the background.
func (q *Queue) Add(task Task) {
	q.mu.Lock()
	q.enter(task)
	q.mu.Unlock()

	q.notify()
}

// Do runs a task now and returns its error. A task that fails stays scheduled. A
// running attempt at the same object is awaited first. Errors: the task's, ctx's.
func (q *Queue) Do(ctx context.Context, task Task) error {
	q.mu.Lock()
	wanted := q.enter(task)
	q.mu.Unlock()

	return q.attempt(ctx, wanted)
}

// Start runs a task now, concurrently with all others, and closes done after its
// first attempt. Before Run it only schedules the task, and done is nil.
func (q *Queue) Start(task Task) (done <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()

	wanted := q.enter(task)

	if q.running == nil || q.running.Err() != nil {
		return nil
	}

	ctx, ended := q.running, make(chan struct{})

	q.started.Go(func() {
		defer close(ended)

		_ = q.attempt(ctx, wanted) // it is logged, reported and retried
	})

	return ended
}

// Failures returns the objects of a pool whose removal fails, ordered by object.
func (q *Queue) Failures(pool string) []Failure {
	q.mu.Lock()
	defer q.mu.Unlock()

	var found []Failure

	for _, each := range q.entries {
		if each.task.Pool == pool && each.failure != nil {
			found = append(found, Failure{Pool: pool, Object: each.task.Object, Cause: each.failure})
		}
	}

	slices.SortFunc(found, func(a, b Failure) int { return cmp.Compare(a.Object, b.Object) })

	return found
}

// Len is the number of tasks that have not succeeded yet.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()

	return len(q.entries)
}

// Run runs tasks in the background until ctx ends.
func (q *Queue) Run(ctx context.Context) {
	q.mu.Lock()
	q.running = ctx
	q.mu.Unlock()

	var workers sync.WaitGroup

	for ctx.Err() == nil {
		batches, next := q.due(time.Now())

		for pool, batch := range batches {
			workers.Go(func() { q.work(ctx, pool, batch) })
		}

		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-time.After(next):
		}
	}

	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()

	if operation.AwaitEnd(bounded, func() { workers.Wait(); q.started.Wait() }) != nil {
		q.log.Warn("a removal that hangs is not awaited; the next start continues it")
	}
}

// enter returns the entry of a task, a new one if there is none. A newer task replaces the one of
// the entry, whose pool may have been closed since.
func (q *Queue) enter(task Task) *entry {
	at := key{task.Pool, task.Object}
	if q.entries[at] == nil {
		q.entries[at] = &entry{turn: make(chan struct{}, 1)}
	}

	q.entries[at].task = task

	return q.entries[at]
}

// due returns the tasks to run now, of each pool without a worker, and how long
// to wait for the next one.
func (q *Queue) due(now time.Time) (batches map[string][]*entry, next time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()

	batches, next = map[string][]*entry{}, maxPause

	for _, each := range q.entries {
		switch pause := each.due.Sub(now); {
		case q.busy[each.task.Pool]:
		case pause <= 0:
			batches[each.task.Pool] = append(batches[each.task.Pool], each)
		default:
			next = min(next, pause)
		}
	}

	for pool := range maps.Keys(batches) {
		q.busy[pool] = true
	}

	return batches, next
}

func (q *Queue) work(ctx context.Context, pool string, batch []*entry) {
	for _, each := range batch {
		if ctx.Err() != nil {
			break
		}

		_ = q.attempt(ctx, each) // it is logged, reported and retried
	}

	q.mu.Lock()
	delete(q.busy, pool)
	q.mu.Unlock()

	q.notify()
}

func (q *Queue) attempt(ctx context.Context, wanted *entry) error {
	select {
	case wanted.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	q.mu.Lock()
	task := wanted.task
	q.mu.Unlock()

	err := task.Remove(ctx)
	interrupted := err != nil && ctx.Err() != nil

	changed := q.conclude(wanted, err, interrupted)

	<-wanted.turn

	if changed {
		q.report(task, err)
	}

	if err != nil {
		q.notify()
	}

	return err
}

// conclude records the outcome of an attempt and reports whether the failure has changed.
func (q *Queue) conclude(done *entry, err error, interrupted bool) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	at, before := key{done.task.Pool, done.task.Object}, done.failure

	if err == nil {
		if q.entries[at] == done {
			delete(q.entries, at)
		}

		done.failure = nil

		return before != nil
	}

	q.entries[at] = done
	done.pause = min(max(2*done.pause, firstPause), maxPause)
	done.due = time.Now().Add(done.pause)

	if interrupted {
		return false
	}

	done.failure = err

	return before == nil || before.Error() != err.Error()
}

func (q *Queue) report(task Task, err error) {
	if err != nil {
		q.log.Error("cannot remove; it is retried", "object", task.Object, "pool", task.Pool, "error", err)
	} else {
		q.log.Info("removed after failures", "object", task.Object, "pool", task.Pool)
	}

	q.changed(task.Pool)
}

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
