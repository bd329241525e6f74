package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// fsTypeAtRest asks the image, unless it is known what has been there: then a
// superblock that is gone is damage.
func (c *checking) fsTypeAtRest() (string, error) {
	if record, ok := c.service.checks.Get(c.volumeID); ok {
		return record.FSType, nil
	}

	image, err := c.pool.OpenImage(c.volumeID, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer image.Close()

	found, err := filesystem.Detect(image)
	if err == nil && found == "" {
		err = rpc.Errorf(codes.FailedPrecondition, "it holds no filesystem that is known here: it was never used as one, or is raw block")
	}

	return found, err
}

// offline checks the image in place. Whoever wants to use the volume meanwhile
// does not wait, neither for an operation nor for the image's lock: a verdict on
// what has changed under the tool is thrown away. That nobody uses it is asked
// for before and after, also of other nodes: they lock what they attach.
func (c *checking) offline(ctx context.Context) (filesystem.Verdict, error) {
	before, err := c.atRest()
	if err != nil {
		return filesystem.Verdict{}, err
	}

	if err := c.settledUUID(); err != nil {
		return filesystem.Verdict{}, err
	}

	verdict, err := c.fs.Examine(ctx, c.path(), filesystem.ExamineOptions{})
	if err == nil && verdict.State == filesystem.NeedsReplay {
		verdict, err = c.replayed(ctx)
	}

	if ctx.Err() != nil {
		return filesystem.Verdict{}, context.Cause(ctx) //nolint:wrapcheck // the caller names the volume
	}

	now, changed := c.atRest()
	if changed == nil && now != before {
		changed = errMeanwhile
	}

	switch {
	case errors.Is(changed, errMeanwhile), errors.Is(changed, loop.ErrImageLocked):
		return filesystem.Verdict{}, rpc.Errorf(codes.Aborted, "it came into use meanwhile, or was changed; check it again")
	case changed != nil:
		return filesystem.Verdict{}, changed
	default:
		return verdict, err
	}
}

// settledUUID refuses a copy that a crash has left between two UUIDs, before which
// no check can judge it.
func (c *checking) settledUUID() error {
	image, err := c.pool.OpenImage(c.volumeID, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	found, err := filesystem.UUID(image)
	if err != nil {
		return nil // without a superblock it is damaged, which the check tells
	}

	settled, err := c.fs.HasUUID(image, found)
	if err == nil && !settled {
		return rpc.Errorf(codes.FailedPrecondition, "the change of its UUID was cut short; staging it finishes that")
	}

	return nil
}

var errMeanwhile = errors.New("changed meanwhile")

// rest is by what an image is known to be the same still.
type rest struct {
	identity loop.Identity
	bytes    int64
	written  time.Time
}

// atRest returns loop.ErrImageLocked for an image that somebody has attached
// for writing, here or on another node.
func (c *checking) atRest() (rest, error) {
	image, err := c.pool.OpenImage(c.volumeID, os.O_RDONLY)
	if err != nil {
		return rest{}, err
	}
	defer image.Close()

	// The lock is let go of with the file.
	err = flock.TryLock(image, unix.LOCK_SH)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return rest{}, rpc.Errorf(codes.FailedPrecondition, "%w: it is in use on another node, or something works on it", loop.ErrImageLocked)
	}

	if err != nil {
		return rest{}, fmt.Errorf("lock the image: %w", err)
	}

	info, err := image.Stat()
	if err != nil {
		return rest{}, fmt.Errorf("look at the image: %w", err)
	}

	identity, err := loop.IdentityOf(image)

	return rest{identity, info.Size(), info.ModTime()}, err
}

// replayed looks at a copy of what was not unmounted in order.
func (c *checking) replayed(ctx context.Context) (verdict filesystem.Verdict, err error) {
	copied, err := c.newCopy()
	if err != nil {
		return filesystem.Verdict{}, err
	}

	defer func() { err = errors.Join(err, copied.Abort()) }()

	if copied.PointInTime() {
		err = copied.CopyData(ctx)
	} else {
		err = c.copyMetadata(ctx, copied)
	}

	if err != nil {
		return filesystem.Verdict{}, err
	}

	return c.judge(ctx, copied)
}

// copyMetadata is of an image that is at rest without being frozen.
func (c *checking) copyMetadata(ctx context.Context, to scratch) error {
	taken, err := c.fs.CopyMetadata(ctx, c.path(), to.File().Name(), filesystem.ExamineOptions{})
	if err != nil {
		return err
	}

	return errors.Join(taken.Complete(ctx), taken.Close())
}
