package fsck

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// run is one check of one volume.
type run struct {
	checker  *Checker
	volumeID string
	// staged is nil where the volume is not in use here: then the check is offline.
	staged   *staged.Volume
	poolName string
	pool     *pool.Pool
	fs       filesystem.Filesystem
	how      string
	// began is a time before the state of the filesystem that is checked.
	began time.Time
	// errors is the kernel's error count at that time.
	errors uint64
}

// newRun determines how the volume is checked, and finds its pool and filesystem.
func (c *Checker) newRun(volumeID, how string) (*run, error) {
	r := &run{checker: c, volumeID: volumeID, how: HowOffline, began: time.Now()}

	if c.config.Known.Ephemeral(volumeID) {
		return nil, errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"it is an inline ephemeral volume, which is deleted with its pod and never repaired")
	}

	record, known := c.config.Volumes.Staged(volumeID)

	path, used, err := c.config.Volumes.InUse(volumeID)
	if err != nil {
		return nil, err
	}

	if known && used {
		if err := checkableOnline(record, path, how, c.config.Known.IsHanging(volumeID)); err != nil {
			return nil, err
		}

		r.staged, r.how = record, HowOnline
	} else if err := c.config.Known.CheckNoGuest(&staged.Volume{VolumeID: volumeID}); err != nil {
		// The volume's records may have been lost.
		return nil, err
	}

	if err := r.findPool(); err != nil {
		return nil, err
	}

	fsType, err := r.fsType()
	if err != nil {
		return nil, err
	}

	r.fs, err = filesystem.ByName(fsType, c.config.Run)

	return r, err
}

// checkableOnline returns nil for a volume in use at the path that can be checked online,
// apart from its filesystem.
func checkableOnline(record *staged.Volume, path, how string, hanging bool) error {
	switch {
	case !record.Parameters.Backing.HasFilesystem():
		return errDirectory()
	case record.IsDirect():
		return errdefs.Errorf(errdefs.ErrFailedPrecondition,
			"a virtual machine may have it mounted, and only that can check its filesystem; unstage it from %s first", record.StagingPath)
	case how == HowOffline:
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "it is in use at %s; check it online, or stop using it", path)
	case hanging:
		return errdefs.Errorf(errdefs.ErrUnavailable, "it does not answer: a probe of it has not returned")
	default:
		return nil
	}
}

// findPool finds the pool that has the volume: that of its record, or else any.
func (r *run) findPool() error {
	names := r.checker.config.Pools.Names()

	if record, ok := r.checker.records.Get(r.volumeID); ok {
		names = []string{record.Pool}
	}

	if r.staged != nil {
		names = []string{r.staged.Parameters.Pool}
	}

	for _, name := range names {
		candidate, err := r.checker.config.Pools.Get(name)
		if errors.Is(err, pool.ErrUnknown) {
			continue
		}

		if err != nil {
			return err
		}

		if err := r.checker.config.Known.CheckReachable(name); err != nil {
			return errdefs.Errorf(errdefs.ErrUnavailable, "%w", err)
		}

		if err := r.checkIsIn(candidate); !errors.Is(err, pool.ErrMissing) {
			r.poolName, r.pool = name, candidate

			return err
		}
	}

	return errdefs.Errorf(errdefs.ErrNotFound, "it is not in a pool of this node")
}

// checkIsIn returns pool.ErrMissing where the pool does not have the volume.
func (r *run) checkIsIn(candidate *pool.Pool) error {
	found, _, err := candidate.Find(r.volumeID)
	if err == nil {
		_, err = candidate.Size(found) // ErrMissing where a file of another type has its name
	}

	if err == nil && !found.Backing.HasFilesystem() {
		err = errDirectory()
	}

	return err
}

func errDirectory() error {
	return errdefs.Errorf(errdefs.ErrFailedPrecondition, "it is a directory, without a filesystem of its own")
}

// fsType returns the filesystem that the volume has to have.
func (r *run) fsType() (string, error) {
	switch {
	case r.staged == nil:
		return r.fsTypeOffline()
	case r.staged.Capability.Block:
		return "", errdefs.Errorf(errdefs.ErrFailedPrecondition, "it is in use as raw block: only its user can check what is on it")
	case r.staged.SharedByReaders():
		return "", errdefs.Errorf(errdefs.ErrFailedPrecondition, "several nodes read it and none writes it: check it when it is not in use")
	default:
		return r.staged.FSType(), nil
	}
}

// isCheckFailure reports whether an error is recorded as VerdictFailed: the check could
// not find out whether the filesystem is clean. Other errors, such as those that were made
// for the caller (errdefs.Errorf), are returned to it.
func isCheckFailure(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.As(err, new(*errdefs.Error)) || errors.As(err, new(*operation.PanicError)) {
		return false
	}

	others := []error{pool.ErrMissing, filesystem.ErrFrozen, filesystem.ErrNotFrozen, operation.ErrDraining}

	return !slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) })
}

// record returns the check's record.
func (r *run) record(verdict filesystem.Verdict, failure error) *Result {
	made := &Result{
		VolumeID: r.volumeID, Pool: r.poolName, FSType: r.fs.Name(), At: r.began, Since: r.began,
		Verdict: verdictOf(verdict.State), Detail: verdict.Detail, Took: time.Since(r.began), How: r.how, Errors: r.errors,
	}

	if failure != nil {
		made.Verdict, made.Detail = VerdictFailed, failure.Error()
	}

	return made
}
