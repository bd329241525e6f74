package fsck

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Volumes is the node, as far as checks depend on it.
type Volumes interface {
	// Staged returns the volume's record, false where it has none on this node.
	Staged(id string) (*staged.Volume, bool)
	// IsRegistered reports whether the controller of this process has the volume, false without
	// such a controller.
	IsRegistered(id string) bool
	// IsEphemeral reports whether the volume is an inline ephemeral one.
	IsEphemeral(id string) bool
	// InUse returns where the volume is published or staged. An error means that this is
	// unknown.
	InUse(id string) (path string, used bool, err error)
	// CheckNoGuest returns an error where a guest may have the volume mounted.
	CheckNoGuest(id string) error
	// ErrorCount returns how many errors the kernel has counted in the volume's mounted
	// filesystem.
	ErrorCount(id string) (uint64, error)

	// Do runs do as an operation on the volume, which excludes other operations on it.
	Do(ctx context.Context, id, method string, do func(context.Context) error) error
	// WithFrozen runs do while the volume's filesystem is frozen, if it is mounted for
	// writing, which IsFrozen reports.
	WithFrozen(ctx context.Context, id string, do func(context.Context) error) error
	IsFrozen(id string) bool

	// CheckReachable returns an error for a pool that is known to be unreachable.
	CheckReachable(poolName string) error
	// IsHanging reports whether the last probe of the volume has not returned in time.
	IsHanging(id string) bool
	// ProbeAfterOperation probes the volume again.
	ProbeAfterOperation(id string)
	// LastPeriod returns the time between two checks that the last probe of the volume has
	// read, 0 where there is none.
	LastPeriod(id string) time.Duration
}

// Config has what a Checker depends on.
type Config struct {
	Volumes Volumes
	Records *staged.Records[*Result]
	Pools   *pool.Set
	Loops   *loop.Loops
	// Period is the time between two checks of a volume that has no period of its own; 0
	// is never.
	Period time.Duration
	// Run starts the tools of the filesystems; nil starts the real ones.
	Run     filesystem.Runner
	Metrics *health.Metrics
	Log     *slog.Logger
}

// Checker checks volumes. It is safe for concurrent use.
type Checker struct {
	config   Config
	running  *runningChecks
	schedule *schedule
	// replacing is held while a newer record replaces an older one.
	replacing sync.Mutex
}

// New returns a Checker. Run makes its scheduled checks.
func New(config Config) *Checker {
	return &Checker{config: config, running: newRunningChecks(), schedule: newSchedule()}
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
	if err := rpc.CheckVolumeID(volumeID); err != nil {
		return health.CheckReport{}, err
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

	verdict, err := run.examine(ctx)
	if err != nil && !isCheckFailure(ctx, err) {
		return nil, err
	}

	return run.record(verdict, err), nil
}

// Cancel cancels a check of the volume that is running, because the volume is given to a
// guest, and returns when it has stopped, or ctx's error.
func (c *Checker) Cancel(ctx context.Context, volumeID string) error {
	return c.running.cancel(ctx, volumeID,
		errdefs.Errorf(errdefs.ErrAborted, "it is given to a virtual machine; check it when it is not in use"))
}

// Get returns the volume's record, nil where it was never checked here.
func (c *Checker) Get(volumeID string) *Result {
	record, _ := c.config.Records.Get(volumeID)

	return record
}

// All returns all records.
func (c *Checker) All() []*Result { return c.config.Records.All() }

// Report returns what is reported of a record, nil for nil.
func (c *Checker) Report(record *Result) *health.CheckReport {
	if record == nil {
		return nil
	}

	// The period that the last probe has read: the pool, which stores it, may hang.
	period := c.config.Volumes.LastPeriod(record.VolumeID)
	if period == 0 {
		period = c.config.Period
	}

	return &health.CheckReport{
		At: record.At, Verdict: record.Verdict, Detail: strings.TrimSpace(record.Detail), Took: record.Took,
		How: record.How, CleanAt: record.CleanAt, Period: period,
	}
}

// Load reads the records. It must be called once, after the store is opened.
func (c *Checker) Load() { c.config.Records.Load() }
