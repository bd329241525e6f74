package fsck

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Config has what a Checker depends on.
type Config struct {
	Results *Results
	Volumes Volumes
	Pools   *pool.Set
	Loops   *loop.Loops
	// Period is the time between two checks of a volume that has no period of its own; 0
	// is never.
	Period time.Duration
	// Run starts the tools of the filesystems; nil starts the real ones.
	Run filesystem.Runner
	// Do runs do as an operation on the volume, which excludes other operations on it.
	Do func(ctx context.Context, id, method string, do func(context.Context) error) error
	// Known is what else is known of volumes.
	Known Known
}

// Volumes is how volumes are used on this node (package access).
type Volumes interface {
	// Staged returns the volume's record, false where it has none on this node.
	Staged(id string) (*staged.Volume, bool)
	// InUse returns where the volume is published or staged. An error means that this is
	// unknown.
	InUse(id string) (path string, used bool, err error)
	// ErrorCount returns how many errors the kernel has counted in the volume's mounted
	// filesystem.
	ErrorCount(id string) (uint64, error)
	// WithFrozen runs do while the filesystems of the volumes are frozen, as far as they are mounted
	// for writing, which IsFrozen reports.
	WithFrozen(ctx context.Context, ids []string, do func(context.Context) error) error
	IsFrozen(id string) bool
}

// Known is what else is known of volumes and pools.
type Known struct {
	// Registered reports whether the controller of this process has the volume, false without
	// such a controller.
	Registered func(id string) bool
	// Ephemeral reports whether the volume is an inline ephemeral one.
	Ephemeral func(id string) bool
	// CheckNoGuest returns an error where a guest may have the volume mounted.
	CheckNoGuest func(v *staged.Volume) error
	// CheckReachable returns an error for a pool that is known to be unreachable.
	CheckReachable func(poolName string) error
	// LastPeriod returns the time between two checks that the last probe of the volume has
	// read, 0 where there is none.
	LastPeriod func(id string) time.Duration
	// IsHanging reports whether the last probe of the volume has not returned in time: then the volume is not
	// checked while it is in use.
	IsHanging func(id string) bool
}

// Checker checks volumes. It is safe for concurrent use.
type Checker struct {
	*Results

	config Config
}

// New returns a Checker. Run makes its scheduled checks.
func New(config Config) *Checker {
	return &Checker{Results: config.Results, config: config}
}

// Check checks the volume's filesystem now and records the verdict: in place where the
// volume is not in use, else on a copy that is made while the filesystem is frozen.
// HowOffline refuses a volume that is in use. Nothing is repaired and nothing is written
// to the volume; operations on it wait at most while the copy is made. When ctx ends, so
// does the check, without a verdict.
//
// Errors: NOT_FOUND; FAILED_PRECONDITION for a volume without a filesystem that can be
// checked, or not now; ABORTED where the volume came into use meanwhile; UNAVAILABLE for a
// pool that does not respond. A check that could not be made is no error but has the
// verdict VerdictFailed.
func (c *Checker) Check(ctx context.Context, volumeID, how string) (health.CheckReport, error) {
	if volumeID == "" {
		return health.CheckReport{}, errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_id is missing")
	}

	if err := volume.CheckID(volumeID); err != nil {
		return health.CheckReport{}, errdefs.Errorf(errdefs.ErrInvalidArgument, "volume_id: %w", err)
	}

	if how != HowOnline && how != HowOffline {
		return health.CheckReport{}, errdefs.Errorf(errdefs.ErrInvalidArgument,
			"how is %q; it is %s or %s", how, HowOffline, HowOnline)
	}

	// Concurrent checks of one volume would find the same.
	ctx, end, err := c.running.start(ctx, volumeID)
	if err != nil {
		return health.CheckReport{}, err
	}
	defer end()

	found, err := c.check(ctx, volumeID, how)
	if err != nil {
		return health.CheckReport{}, fmt.Errorf("check volume %s: %w", volumeID, err)
	}

	c.count(found)

	found.CleanAt = c.store(ctx, found).CleanAt

	return *c.Report(found), nil
}

func (c *Checker) check(ctx context.Context, volumeID, how string) (*Result, error) {
	run, err := c.newRun(volumeID, how)
	if err != nil {
		return nil, err
	}

	examine := run.online
	if run.staged == nil {
		examine = run.offline
	}

	verdict, err := examine(ctx)
	if err != nil && !isCheckFailure(ctx, err) {
		return nil, err
	}

	return run.record(verdict, err), nil
}

// Report returns what is reported of a record, nil for nil.
func (c *Checker) Report(record *Result) *health.CheckReport {
	if record == nil {
		return nil
	}

	// The period that the last probe has read: the pool, which stores it, may hang.
	period := cmp.Or(c.config.Known.LastPeriod(record.VolumeID), c.config.Period)

	return &health.CheckReport{
		At: record.At, Verdict: record.Verdict, Detail: strings.TrimSpace(record.Detail), Took: record.Took,
		How: record.How, CleanAt: record.CleanAt, Period: period,
	}
}
