package fsck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// fsTypeOffline returns the filesystem of the volume's record, so that a missing
// superblock is damage, or else the one that the image has.
func (r *run) fsTypeOffline() (string, error) {
	if record, ok := r.checker.records.Get(r.volumeID); ok {
		return record.FSType, nil
	}

	image, err := r.pool.Images.Open(r.volumeID, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer image.Close()

	found, err := filesystem.Detect(image)
	if err != nil || found != "" {
		return found, err
	}

	return "", errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"it holds no filesystem that is known here: it was never used as one, or is raw block")
}

// offline checks the image in place. It blocks neither operations on the volume nor the
// image's lock: instead it compares the image before and after, and discards the verdict
// if the image has changed or came into use, also on another node, which locks what it
// attaches.
func (r *run) offline(ctx context.Context) (filesystem.Verdict, error) {
	before, err := r.imageVersion(ctx)
	if err != nil {
		return filesystem.Verdict{}, err
	}

	if err := r.checkUUIDComplete(); err != nil {
		return filesystem.Verdict{}, err
	}

	verdict, err := r.fs.CheckReadOnly(ctx, r.imagePath(), filesystem.ReadOnlyCheckOptions{})
	if err == nil && verdict.State == filesystem.NeedsReplay {
		verdict, err = r.examineReplayed(ctx)
	}

	if ctx.Err() != nil {
		return filesystem.Verdict{}, context.Cause(ctx)
	}

	after, failure := r.imageVersion(ctx)

	switch {
	case errors.Is(failure, loop.ErrImageLocked), failure == nil && after != before:
		return filesystem.Verdict{}, errdefs.Errorf(errdefs.ErrAborted, "it came into use meanwhile, or was changed; check it again")
	case failure != nil:
		return filesystem.Verdict{}, failure
	default:
		return verdict, err
	}
}

// checkUUIDComplete refuses a copy whose change of the filesystem's UUID a crash has
// interrupted: no check can judge it before staging has completed the change.
func (r *run) checkUUIDComplete() error {
	image, err := r.pool.Images.Open(r.volumeID, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	found, err := filesystem.UUID(image)
	if err != nil {
		return nil // without a superblock it is damaged, which the check finds
	}

	if complete, err := r.fs.HasUUID(image, found); err == nil && !complete {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "the change of its UUID was interrupted; stage it to complete that")
	}

	return nil
}

// imageVersion detects whether an image changed during a check.
type imageVersion struct {
	identity loop.Identity
	bytes    int64
	written  time.Time
}

// lockAttempts take a quarter of a second.
const lockAttempts = 13

// imageVersion returns loop.ErrImageLocked for an image that is attached for writing,
// here or on another node.
func (r *run) imageVersion(ctx context.Context) (imageVersion, error) {
	image, err := r.pool.Images.Open(r.volumeID, os.O_RDONLY)
	if err != nil {
		return imageVersion{}, err
	}
	defer image.Close()

	// Closing the file releases the lock. The kernel releases that of an attachment a moment after the
	// device is detached, as does a child that is just being forked.
	err = fork.RetryWhile(ctx, unix.EWOULDBLOCK, lockAttempts, func() error { return flock.TryLock(image, unix.LOCK_SH) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return imageVersion{}, errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"%w: it is in use on another node, or another program has locked it", loop.ErrImageLocked)
	}

	if err != nil {
		return imageVersion{}, fmt.Errorf("lock the image: %w", err)
	}

	info, err := image.Stat()
	if err != nil {
		return imageVersion{}, fmt.Errorf("stat the image: %w", err)
	}

	identity, err := loop.IdentityOf(image)

	return imageVersion{identity, info.Size(), info.ModTime()}, err
}

// examineReplayed checks a copy of an image that was not unmounted cleanly.
func (r *run) examineReplayed(ctx context.Context) (verdict filesystem.Verdict, err error) {
	copied, err := r.newCopy()
	if err != nil {
		return filesystem.Verdict{}, err
	}

	defer func() { err = errors.Join(err, copied.Abort()) }()

	if copied.PointInTime() {
		err = copied.CopyData(ctx)
	} else {
		err = r.copyMetadata(ctx, copied)
	}

	if err != nil {
		return filesystem.Verdict{}, err
	}

	return r.examineCopy(ctx, copied)
}

// copyMetadata copies the metadata of an image that is not in use and thus not frozen.
func (r *run) copyMetadata(ctx context.Context, to *pool.ImageCopy) error {
	taken, err := r.fs.CopyMetadata(ctx, r.imagePath(), to.File().Name(), filesystem.ReadOnlyCheckOptions{})
	if err != nil {
		return err
	}

	return errors.Join(taken.Complete(ctx), taken.Close())
}
