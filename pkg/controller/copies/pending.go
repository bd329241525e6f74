package copies

import (
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// pendingCopy is one copy that is about to be taken. The operation of its source is
// held meanwhile, so that the source cannot be staged or attached.
type pendingCopy struct {
	// source is nil for the restore of a snapshot.
	source *record.Volume
	target pool.Object
	// pool is that of the target.
	pool *pool.Pool
	copy *pool.Copy
	task *progress.Task
	// at is when the copy was taken.
	at time.Time
}

// addCopyOf prepares a copy of a volume into a pool.
func (t *taking) addCopyOf(
	source *record.Volume, from, into *pool.Pool, target pool.Object, kind string, options pool.CopyOptions,
) error {
	// The image of a volume that was never attached may not be durable.
	if source.Pristine {
		if err := objects.AllocateDurably(source, from); err != nil {
			return err
		}
	}

	return t.addCopy(&pendingCopy{source: source, target: target, pool: into}, kind, from, source.Object(), source.CapacityBytes, options)
}

// addCopy prepares a copy of so many bytes.
func (t *taking) addCopy(
	pending *pendingCopy, kind string, from *pool.Pool, source pool.Object, bytes int64, options pool.CopyOptions,
) (err error) {
	pending.task = t.Progress.Start(kind, pending.target.ID, bytes)
	options.Progress, options.SourceBytes = pending.task.Set, bytes

	if pending.copy, err = pending.pool.NewCopy(from, source, pending.target, options); err != nil {
		pending.task.End(err)

		return err
	}

	t.copies = append(t.copies, pending)

	return nil
}

// isInstantImage reports whether the copy can be one of a pool.GroupCopy, if its filesystem takes any.
func (c *pendingCopy) isInstantImage() bool {
	return c.target.Backing == volume.BackingImage && c.copy.PointInTime()
}

// abort gives back what is not committed.
func (c *pendingCopy) abort(cause error) error {
	c.task.End(cause)

	return c.copy.Abort()
}
