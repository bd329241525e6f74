package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

const (
	// maxStall is how long a check may keep writers waiting where the pool can't
	// copy an image in an instant. Longer than that a check is not worth.
	maxStall = 5 * time.Second
	// maxRehearsal bounds what will be done again in a hurry, and with all that it
	// reads in the page cache.
	maxRehearsal = 10 * maxStall
)

var (
	errStall = errors.New("it takes too long to stop all writers for: check it while it is not in use, or have it in a pool that can reflink")
	// errDirtyLog is of a filesystem that only a mount of a copy could tell of.
	errDirtyLog = errors.New("it can't be told without a copy of its metadata, and there is none")
)

// online checks a copy of what is mounted.
func (c *checking) online(ctx context.Context) (verdict filesystem.Verdict, err error) {
	if c.errors, err = c.service.countedErrors(c.use); err != nil {
		return filesystem.Verdict{}, err
	}

	copied, err := c.newCopy()
	if err != nil {
		return filesystem.Verdict{}, err
	}

	defer func() { err = errors.Join(err, copied.Abort()) }()

	if !copied.PointInTime() {
		return c.withoutClone(ctx, copied)
	}

	if err := c.whileFrozen(ctx, copied.CopyData); err != nil {
		return filesystem.Verdict{}, err
	}

	return c.judge(ctx, copied)
}

// countedErrors is how many errors the kernel has counted in the filesystem.
func (s *Service) countedErrors(use *staged.Volume) (uint64, error) {
	root, point, err := s.openRoot(use)
	if err != nil || root == nil {
		return 0, err
	}
	defer root.Close()

	number, isLoop := loopNumber(point)
	if !isLoop {
		return 0, nil
	}

	counted, err := filesystem.ReadErrors(use.FSType(), number, root)

	return counted.Count, err
}

// whileFrozen calls within while the filesystem is at rest, as an operation on
// the volume. When it returns, within is not running and will not begin.
func (c *checking) whileFrozen(ctx context.Context, within func(context.Context) error) error {
	return c.service.onVolume(ctx, c.volumeID, "check", func(ctx context.Context) error {
		use, known := c.service.stagedVolumes.Get(c.volumeID)

		_, used, err := c.service.InUse(c.volumeID)
		if err != nil {
			return err
		}

		if !known || !used || use.StagingPath != c.use.StagingPath {
			return rpc.Errorf(codes.Aborted, "it went out of use meanwhile; check it again")
		}

		return c.service.WithFrozen(ctx, []string{c.volumeID}, func(ctx context.Context) error {
			// What is not mounted where it should be is not frozen either. What is only
			// read is at rest.
			if !c.service.freezer.IsFrozen(c.volumeID) && !isMountedReadOnly(use) {
				return rpc.Errorf(codes.FailedPrecondition, "it is in use, but not mounted for writing any more; unstage it and stage it anew")
			}

			return within(ctx)
		})
	})
}

// isMountedReadOnly reports whether the filesystem is mounted so that nothing can be written.
func isMountedReadOnly(u *staged.Volume) bool {
	asked, err := readOnlyFlag(u.Capability)

	return u.IsReadOnly() || err == nil && asked
}

// withoutClone is for a pool that can't copy an image in an instant. What has to
// be done while the filesystem is frozen is done once before, when nobody waits:
// then it is quick, and what would never end is known.
func (c *checking) withoutClone(ctx context.Context, to scratch) (filesystem.Verdict, error) {
	err := c.frozenMetadata(ctx, to)
	if err == nil {
		return c.judge(ctx, to)
	}

	unusable := errors.Is(err, errors.ErrUnsupported) || errors.Is(err, errStall) || errors.As(err, new(*filesystem.ToolError))
	if !unusable || ctx.Err() != nil {
		return filesystem.Verdict{}, err
	}

	verdict, direct := c.frozenItself(ctx)
	if direct != nil {
		err = errors.Join(direct, err)
	} else {
		err = nil
	}

	return verdict, err
}

// frozenMetadata makes a copy of the metadata. Error: errStall.
func (c *checking) frozenMetadata(ctx context.Context, to scratch) error {
	take := func(ctx context.Context, urgent bool) (*filesystem.MetadataCopy, error) {
		return c.fs.CopyMetadata(ctx, c.path(), to.File().Name(), filesystem.ExamineOptions{Frozen: true, Urgent: urgent})
	}

	err := within(ctx, maxRehearsal, func(ctx context.Context) error {
		taken, err := take(ctx, false)
		if errors.As(err, new(*filesystem.ToolError)) {
			// It may have stumbled over what was changing.
			return nil
		}

		if err != nil {
			return err
		}

		return taken.Close()
	})
	if err != nil {
		return err
	}

	var taken *filesystem.MetadataCopy

	err = c.whileFrozen(ctx, func(ctx context.Context) error {
		return within(ctx, maxStall, func(ctx context.Context) (err error) {
			taken, err = take(ctx, true)

			return err
		})
	})

	if taken == nil {
		return err
	}

	if err == nil {
		err = taken.Complete(ctx)
	}

	return errors.Join(err, taken.Close())
}

// frozenItself looks at the image for which there is no copy.
func (c *checking) frozenItself(ctx context.Context) (verdict filesystem.Verdict, err error) {
	look := func(urgent bool) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			verdict, err = c.fs.Examine(ctx, c.path(), filesystem.ExamineOptions{Frozen: true, Urgent: urgent})

			return err
		}
	}

	if err := within(ctx, maxRehearsal, look(false)); err != nil {
		return filesystem.Verdict{}, err
	}

	if verdict.State == filesystem.Clean && c.fs.CleanWhileWritten() {
		return verdict, nil
	}

	err = c.whileFrozen(ctx, func(ctx context.Context) error { return within(ctx, maxStall, look(true)) })
	if err == nil && verdict.State == filesystem.NeedsReplay {
		err = fmt.Errorf("%w: %s", errDirtyLog, verdict.Detail)
	}

	return verdict, err
}

// within bounds do. Error: errStall.
func within(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: more than %s", errStall, limit))
	defer cancel()

	return do(bounded)
}
