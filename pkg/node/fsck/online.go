package fsck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

const (
	// maxFrozen bounds how long a check freezes a filesystem where the pool cannot reflink.
	// A check is not worth a longer stall of all writers.
	maxFrozen = 5 * time.Second
	// maxRehearsal bounds the same work on the filesystem that is not frozen. Done again
	// while frozen it is faster, because all that it reads is in the page cache.
	maxRehearsal = 10 * maxFrozen
)

var (
	errTooSlow = errors.New("the freeze would take too long: check it while it is not in use, or store it in a pool that can reflink")
	// errDirtyLog is returned for a filesystem that must be mounted to be checked, where its
	// metadata cannot be copied.
	errDirtyLog = errors.New("its log has to be replayed on a copy of its metadata, and there is none")
)

// online checks a copy of what is mounted.
func (r *run) online(ctx context.Context) (verdict filesystem.Verdict, err error) {
	if r.errors, err = r.checker.config.Volumes.ErrorCount(r.volumeID); err != nil {
		return filesystem.Verdict{}, err
	}

	copied, err := r.newCopy()
	if err != nil {
		return filesystem.Verdict{}, err
	}

	defer func() { err = errors.Join(err, copied.Abort()) }()

	if !copied.PointInTime() {
		return r.withoutReflink(ctx, copied)
	}

	if err := r.whileFrozen(ctx, copied.CopyData); err != nil {
		return filesystem.Verdict{}, err
	}

	return r.examineCopy(ctx, copied)
}

// whileFrozen calls do while the filesystem is frozen, as an operation on the volume. When
// it returns, do is not running and will not start.
func (r *run) whileFrozen(ctx context.Context, do func(context.Context) error) error {
	config := &r.checker.config

	return config.Do(ctx, r.volumeID, "check", func(ctx context.Context) error {
		record, known := config.Volumes.Staged(r.volumeID)

		_, used, err := config.Volumes.InUse(r.volumeID)
		if err != nil {
			return err
		}

		if !known || !used || record.StagingPath != r.staged.StagingPath {
			return errdefs.Errorf(errdefs.ErrAborted, "it was unstaged meanwhile; check it again")
		}

		return config.Volumes.WithFrozen(ctx, []string{r.volumeID}, func(ctx context.Context) error {
			// A volume that is not mounted where it should be is not frozen either. One that is
			// only read need not be.
			if !config.Volumes.IsFrozen(r.volumeID) && !record.MountOptions().ReadOnly() {
				return errdefs.Errorf(errdefs.ErrFailedPrecondition,
					"it is in use, but not mounted for writing any more; unstage it and stage it again")
			}

			return do(ctx)
		})
	})
}

// withoutReflink checks a volume whose pool cannot copy an image instantly: on a copy of
// the metadata, or else the frozen image itself. What has to be done while the filesystem
// is frozen is rehearsed before: that fills the page cache, and shows whether it takes too
// long.
func (r *run) withoutReflink(ctx context.Context, to *pool.ImageCopy) (filesystem.Verdict, error) {
	err := r.copyFrozenMetadata(ctx, to)
	if err == nil {
		return r.examineCopy(ctx, to)
	}

	unusable := errors.Is(err, errors.ErrUnsupported) || errors.Is(err, errTooSlow) || errors.As(err, new(*filesystem.ToolError))
	if !unusable || ctx.Err() != nil {
		return filesystem.Verdict{}, err
	}

	verdict, failure := r.examineFrozen(ctx)
	if failure != nil {
		return verdict, errors.Join(failure, err)
	}

	return verdict, nil
}

// copyFrozenMetadata makes a copy of the metadata. Error: errTooSlow.
func (r *run) copyFrozenMetadata(ctx context.Context, to *pool.ImageCopy) error {
	take := func(ctx context.Context, urgent bool) (*filesystem.MetadataCopy, error) {
		return r.fs.CopyMetadata(ctx, r.imagePath(), to.File().Name(), filesystem.ReadOnlyCheckOptions{Frozen: true, Urgent: urgent})
	}

	err := withLimit(ctx, maxRehearsal, func(ctx context.Context) error {
		taken, err := take(ctx, false)
		if errors.As(err, new(*filesystem.ToolError)) {
			// The tool may fail because the filesystem changes meanwhile.
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

	err = r.whileFrozen(ctx, func(ctx context.Context) error {
		return withLimit(ctx, maxFrozen, func(ctx context.Context) (err error) {
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

// examineFrozen checks the image itself.
func (r *run) examineFrozen(ctx context.Context) (verdict filesystem.Verdict, err error) {
	examine := func(urgent bool) func(context.Context) error {
		return func(ctx context.Context) (err error) {
			verdict, err = r.fs.CheckReadOnly(ctx, r.imagePath(), filesystem.ReadOnlyCheckOptions{Frozen: true, Urgent: urgent})

			return err
		}
	}

	if err := withLimit(ctx, maxRehearsal, examine(false)); err != nil {
		return filesystem.Verdict{}, err
	}

	if verdict.State == filesystem.Clean && r.fs.ConsistentWhileWritten() {
		return verdict, nil
	}

	err = r.whileFrozen(ctx, func(ctx context.Context) error { return withLimit(ctx, maxFrozen, examine(true)) })
	if err != nil || verdict.State != filesystem.NeedsReplay {
		return verdict, err
	}

	return verdict, fmt.Errorf("%w: %s", errDirtyLog, verdict.Detail)
}

// withLimit cancels do after the limit. Error: errTooSlow.
func withLimit(ctx context.Context, limit time.Duration, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: more than %s", errTooSlow, limit))
	defer cancel()

	return do(bounded)
}
