package fsck

import (
	"context"
	"log/slog"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Results are the results of the checks of volumes on this node, those at staging included. They are safe
// for concurrent use.
type Results struct {
	metrics *health.Metrics
	log     *slog.Logger
	records *staged.Records[*Result]
	// running are the checks that run, and schedule has those that are due.
	running  *runningChecks
	schedule *schedule
	// replacing is held while a newer record replaces an older one.
	replacing sync.Mutex
	// onChange is called with the volume of a result that has changed.
	onChange func(id string)
}

// NewResults returns Results that are kept in records, and counted in metrics, which may be nil.
func NewResults(records *staged.Records[*Result], metrics *health.Metrics, log *slog.Logger) *Results {
	return &Results{
		metrics: metrics, log: log, records: records, running: newRunningChecks(), schedule: newSchedule(), onChange: func(string) {},
	}
}

// OnChange has changed called with the volume of each result that a check has changed or Forget removed, but
// for checks at staging. It must be called before the first check.
func (r *Results) OnChange(changed func(id string)) { r.onChange = changed }

// Cancel cancels a check of the volume that is running, because the volume is given to a
// guest, and returns when it has stopped, or ctx's error.
func (r *Results) Cancel(ctx context.Context, volumeID string) error {
	return r.running.cancel(ctx, volumeID,
		errdefs.Errorf(errdefs.ErrAborted, "it is given to a virtual machine; check it when it is not in use"))
}

// Get returns the volume's record, nil where it was never checked here.
func (r *Results) Get(volumeID string) *Result {
	record, _ := r.records.Get(volumeID)

	return record
}

// All returns all records.
func (r *Results) All() []*Result { return r.records.All() }

// Load reads the records. It must be called once, after the store is opened.
func (r *Results) Load() { r.records.Load() }

// Changed requests that the volume's check is planned again, because its record or its
// period may have changed. It does no I/O.
func (r *Results) Changed(volumeID string) { r.schedule.markChanged(volumeID) }

// ChangedImage is Changed for a volume whose image an event names. It ignores others.
func (r *Results) ChangedImage(volumeID string) {
	if _, known := r.records.Get(volumeID); known {
		r.schedule.markChanged(volumeID)
	}
}

// ChangedPool is Changed for all volumes of the pool, with "" for all volumes. A relist
// calls it for all: no event reports a volume that is deleted before the events' source
// starts, or in a pool without events.
func (r *Results) ChangedPool(poolName string) {
	for _, record := range r.records.All() {
		if poolName == "" || record.Pool == poolName {
			r.schedule.markChanged(record.VolumeID)
		}
	}
}
