package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Check checks the volume's filesystem now, and keeps the verdict: in place where
// nobody uses the volume, else on a copy that is made while the filesystem is
// frozen. HowOffline leaves alone what is in use. Nothing is repaired, not a byte
// of the volume is written, and no operation on it has to wait for more than the
// copy to be made. When ctx ends, so does the check, without a verdict.
//
// Errors: NOT_FOUND; FAILED_PRECONDITION for what has no filesystem that can be
// checked, or not now; ABORTED where the volume came into use meanwhile;
// UNAVAILABLE for a pool that does not answer. A check that could not look is no
// error: VerdictFailed.
func (s *Service) Check(ctx context.Context, volumeID, how string) (health.CheckReport, error) {
	if err := rpc.CheckVolumeID(volumeID); err != nil {
		return health.CheckReport{}, rpc.Status(err)
	}

	if how != HowOnline && how != HowOffline {
		return health.CheckReport{}, rpc.Status(rpc.Invalid("how is %q; it is %s or %s", how, HowOffline, HowOnline))
	}

	// Two of them would find the same.
	ctx, leave, err := s.turns.take(ctx, volumeID)
	if err != nil {
		return health.CheckReport{}, rpc.Status(err)
	}
	defer leave()

	c, err := s.newChecking(volumeID, how)
	if err != nil {
		return health.CheckReport{}, rpc.Status(fmt.Errorf("check volume %s: %w", volumeID, err))
	}

	verdict, err := c.look(ctx)

	if err != nil && !c.isFailure(ctx, err) {
		return health.CheckReport{}, rpc.Status(fmt.Errorf("check volume %s: %w", volumeID, err))
	}

	found := c.check(verdict, err)
	s.count(found)

	found.CleanAt = s.keepCheck(ctx, found).CleanAt

	return *s.CheckReport(found), nil
}

// checking is one check of one volume.
type checking struct {
	service  *Service
	volumeID string
	// use is nil where the volume is not in use here.
	use      *staged.Volume
	poolName string
	pool     *pool.Pool
	fs       filesystem.Filesystem
	how      string
	// began is before the state of the filesystem that is looked at.
	began time.Time
	// errors is what the kernel had counted then.
	errors uint64
}

// newChecking finds what is to be checked, and how.
func (s *Service) newChecking(volumeID, how string) (*checking, error) {
	c := &checking{service: s, volumeID: volumeID, how: HowOffline, began: time.Now()}

	if _, inline := s.inline.Get(volumeID); inline {
		return nil, rpc.Errorf(codes.FailedPrecondition, "it is an inline ephemeral volume, which nobody repairs: its end is that of its pod")
	}

	use, known := s.stagedVolumes.Get(volumeID)

	at, used, err := s.InUse(volumeID)
	if err != nil {
		return nil, err
	}

	if known && used {
		if !use.IsImage() {
			return nil, errDirectory()
		}

		if use.IsDirect() {
			return nil, rpc.Errorf(codes.FailedPrecondition,
				"a virtual machine may have it mounted, and what is on it is that one's to check; unstage it from %s first", use.StagingPath)
		}

		if how == HowOffline {
			return nil, rpc.Errorf(codes.FailedPrecondition, "it is in use at %s; check it online, or stop using it", at)
		}

		if record, _ := s.monitor.Get(volumeID); record.Has(health.ProbeTimedOut) {
			return nil, rpc.Errorf(codes.Unavailable, "it does not answer: a look at it does not come to its end")
		}

		c.use, c.how = use, HowOnline
	}

	if c.use == nil {
		// Of a volume whose records were lost.
		if err := s.checkNoGuest(&staged.Volume{VolumeID: volumeID}); err != nil {
			return nil, err
		}
	}

	if err := c.place(); err != nil {
		return nil, err
	}

	fsType, err := c.fsType()
	if err == nil {
		c.fs, err = filesystem.ByName(fsType, s.config.Run)
	}

	return c, err
}

// place finds the pool. Of what is not in use here the records may know it; else
// it is the one that has the volume's bytes.
func (c *checking) place() error {
	names := c.service.pools.Names()

	if record, ok := c.service.checks.Get(c.volumeID); ok {
		names = []string{record.Pool}
	}

	if c.use != nil {
		names = []string{c.use.Parameters.Pool}
	}

	for _, name := range names {
		place, err := c.service.pools.Get(name)
		if errors.Is(err, pool.ErrUnknown) {
			continue
		}

		if err != nil {
			return err
		}

		if err := c.service.reachable(name); err != nil {
			return rpc.Errorf(codes.Unavailable, "%w", err)
		}

		err = c.isIn(place)
		if err == nil {
			c.poolName, c.pool = name, place
		}

		if !errors.Is(err, pool.ErrMissing) {
			return err
		}
	}

	return rpc.Errorf(codes.NotFound, "it is not in a pool of this node")
}

// isIn returns pool.ErrMissing where the pool has not got the volume.
func (c *checking) isIn(place *pool.Pool) error {
	_, err := place.Size(pool.Object{ID: c.volumeID, Backing: volume.BackingImage})
	if !errors.Is(err, pool.ErrMissing) {
		return err
	}

	_, err = place.Size(pool.Object{ID: c.volumeID, Backing: volume.BackingDirectory})
	if err == nil {
		err = errDirectory()
	}

	return err
}

func errDirectory() error {
	return rpc.Errorf(codes.FailedPrecondition, "it is a directory, without a filesystem of its own")
}

// FSType is the filesystem that is to be found sound.
func (c *checking) fsType() (string, error) {
	switch {
	case c.use == nil:
		return c.fsTypeAtRest()
	case c.use.Capability.Block:
		return "", rpc.Errorf(codes.FailedPrecondition, "it is in use as raw block: what is on it is its user's to check")
	case c.use.SharedByReaders():
		return "", rpc.Errorf(codes.FailedPrecondition, "several nodes read it and nobody writes it: check it when it is not in use")
	default:
		return c.use.FSType(), nil
	}
}

// look has the verdict.
func (c *checking) look(ctx context.Context) (filesystem.Verdict, error) {
	if c.use == nil {
		return c.offline(ctx)
	}

	return c.online(ctx)
}

// isFailure says whether an error is something to be kept: that it could not be
// found out how the filesystem is.
func (c *checking) isFailure(ctx context.Context, err error) bool {
	if ctx.Err() != nil || errors.As(err, new(*rpc.Error)) || errors.As(err, new(*operation.PanicError)) {
		return false
	}

	others := []error{pool.ErrMissing, filesystem.ErrFrozen, filesystem.ErrNotFrozen, operation.ErrDraining}

	return !slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) })
}

// check is what is to be kept.
func (c *checking) check(verdict filesystem.Verdict, failure error) *Check {
	made := &Check{
		VolumeID: c.volumeID, Pool: c.poolName, FSType: c.fs.Name(), At: c.began, Since: c.began,
		Verdict: verdictOf(verdict.State), Detail: verdict.Detail, Took: time.Since(c.began), How: c.how, Errors: c.errors,
	}

	if failure != nil {
		made.Verdict, made.Detail = VerdictFailed, failure.Error()
	}

	return made
}
