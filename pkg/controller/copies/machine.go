// Package copies takes snapshots, clones, restores and group snapshots, by one sequence of phases:
//
//	reserve ─┬─► prepare ─► take ─► commit ─► accept
//	         └──────┴─────────┴───────┴────────┴────► undo
//
// What is recorded is "creating" from reserve on, "ready" from accept on, and nothing after undo. A
// snapshot that takes long is "copying" once it is acknowledged (Machine.Await): then undo records "failed"
// instead, unless the driver ends, and a start takes it again (Machine.Resume). What undo cannot remove now
// is "deleting" until it is gone.
//
// It contains no request. The caller holds the operation of the source, or has its snapshot locked.
package copies

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Node is the node service of the same process, as far as copies need it.
type Node interface {
	objects.Node

	// CanFreeze reports whether WithFrozen keeps all writers of this node from the
	// volume.
	CanFreeze(volumeID string) bool
	// WithFrozen calls within while the filesystems of those of the volumes that are
	// mounted on this node are frozen.
	WithFrozen(ctx context.Context, volumeIDs []string, within func(context.Context) error) error
}

// Config is what a machine works with.
type Config struct {
	Catalog    *catalog.Catalog
	Node       Node
	Use        *objects.Use
	Remover    *objects.Remover
	Operations *operation.Group
	// Grace is how long Await waits for a copy.
	Grace time.Duration
	// Progress records the progress of copies; nil is none.
	Progress *progress.Registry
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
	Log   *slog.Logger
}

// Machine takes copies. It is safe for concurrent use.
type Machine struct {
	Config

	// Locks are those of snapshots that are read or deleted.
	Locks *Locks
	// Running are the copies that take long.
	Running *Running
}

// New returns a machine without copies.
func New(config Config) *Machine {
	return &Machine{Config: config, Locks: NewLocks(), Running: NewRunning()}
}

// phases are those of one taking.
type phases interface {
	// reserve records what is about to be made, and admits its capacity.
	reserve(ctx context.Context) error
	// hold calls within while the source is kept as it is, if it needs more for that than the operation that
	// the caller holds.
	hold(ctx context.Context, within func(context.Context) error) error
	// prepare does what takes time and does not need the source to be still.
	prepare(ctx context.Context) error
	// take copies the data.
	take(ctx context.Context) error
	// commit gives the copies their names in the pool.
	commit(ctx context.Context) error
	// accept records that they are ready.
	accept(ctx context.Context) error
	// undo removes what the phases before have recorded and named, and returns why they failed. The copies are
	// aborted before.
	undo(ctx context.Context, cause error) error
	// prepared are the copies that hold resources.
	prepared() []*pendingCopy
}

// run goes through the phases, or leaves nothing behind.
func (m *Machine) run(ctx context.Context, t phases) error {
	// The records come first: after a crash they lead to what commit has made.
	if err := t.reserve(ctx); err != nil {
		return err
	}

	if err := m.fill(ctx, t); err != nil {
		for _, each := range t.prepared() {
			err = errors.Join(err, each.abort(err))
		}

		return t.undo(ctx, err)
	}

	for _, each := range t.prepared() {
		if err := each.abort(nil); err != nil {
			m.Log.Warn("cannot release the resources of a finished copy", "object", each.target, "error", err)
		}
	}

	return nil
}

// fill goes through the phases between reserve and undo. Its tasks can be cancelled until accept.
func (m *Machine) fill(ctx context.Context, t phases) error {
	cancellable, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	err := t.hold(ctx, func(ctx context.Context) error {
		// It may have a context that does not end with the caller's.
		ctx, stop := context.WithCancelCause(ctx)
		context.AfterFunc(cancellable, func() { stop(context.Cause(cancellable)) })

		if err := t.prepare(ctx); err != nil {
			return err
		}

		for _, each := range t.prepared() {
			each.task.OnCancel(cancel)
		}

		return t.take(ctx)
	})
	if err == nil {
		err = t.commit(cancellable)
	}

	if cause := context.Cause(cancellable); errors.Is(cause, progress.ErrCancelled) {
		return cause
	}

	if err != nil {
		return err
	}

	return t.accept(ctx)
}

// taking is what all takings have in common.
type taking struct {
	*Machine

	// pool returns a pool that is available: any of the catalog's, or at the recovery of a pool only that.
	pool   func(name, of string) (*pool.Pool, error)
	copies []*pendingCopy

	// frozen are the volumes that are frozen while the copies are taken.
	frozen []string
	// together is nil unless images that are written to meanwhile are copied as one, which consists of inGroup.
	together *pool.GroupCopy
	inGroup  []*pendingCopy
}

func (t *taking) hold(ctx context.Context, within func(context.Context) error) error {
	return within(ctx)
}

func (t *taking) prepared() []*pendingCopy { return t.copies }

// pendingCopy is one copy that is about to be taken. The operation of its source is
// held meanwhile, so that the source cannot be staged or attached.
type pendingCopy struct {
	// source is nil for the restore of a snapshot. written is how it may be written to while it is copied, empty if
	// nothing can write.
	source  *record.Volume
	written string
	target  pool.Object
	// name is that of what the copy becomes, for people.
	name string
	// pool is that of the target.
	pool *pool.Pool
	copy *pool.Copy
	task *progress.Task
	// at is when the copy was taken.
	at time.Time
}

// addCopyOf prepares a copy of a volume into a pool.
func (t *taking) addCopyOf(
	source *record.Volume, from, into *pool.Pool, target pool.Object, name, kind string, options pool.CopyOptions,
) error {
	// The image of a volume that was never attached may not be durable.
	if source.Pristine {
		if err := objects.AllocateDurably(source, from); err != nil {
			return err
		}
	}

	pending := &pendingCopy{source: source, target: target, name: name, pool: into}

	return t.addCopy(pending, kind, from, source.Object(), source.CapacityBytes, options)
}

// addCopy prepares a copy of so many bytes.
func (t *taking) addCopy(
	pending *pendingCopy, kind string, from *pool.Pool, source pool.Object, bytes int64, options pool.CopyOptions,
) (err error) {
	pending.task = t.Progress.Start(kind, pending.target.ID, pending.name, bytes)
	options.Progress, options.SourceBytes = pending.task.Set, bytes

	if pending.copy, err = pending.pool.NewCopy(from, source, pending.target, options); err != nil {
		pending.task.End(err)

		return err
	}

	t.copies = append(t.copies, pending)

	return nil
}

// instantImage returns the copy as one of a pool.GroupCopy, false if it cannot be, whatever its filesystem.
func (c *pendingCopy) instantImage() (*pool.ImageCopy, bool) {
	image, isImage := c.copy.Image()

	return image, isImage && image.PointInTime()
}

// abort gives back what is not committed.
func (c *pendingCopy) abort(cause error) error {
	c.task.End(cause)

	return c.copy.Abort()
}
