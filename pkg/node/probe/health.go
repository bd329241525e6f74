package probe

import (
	"context"
	"errors"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// ResponseTimeout bounds how long a call waits for a probe, a pool or a filesystem that may
// hang.
const ResponseTimeout = time.Second

// Health returns the volume's condition, nil where it is healthy. It answers from the
// monitor's cache, and waits only for the probe of a volume that is not in it. Error: NOT_FOUND
// for a volume that does not exist; UNAVAILABLE where that is unknown.
func (p *Prober) Health(ctx context.Context, id string) (*health.Record, error) {
	if record, ok := p.monitor.Answer(id); ok {
		return record, nil
	}

	if _, ok := p.view(id); !ok {
		return p.healthNotInUse(ctx, id)
	}

	if p.isBusy(id) {
		if _, failed := p.failures.get(id); failed {
			return p.healthNotInUse(ctx, id)
		}

		// A volume that is being staged or published is not unhealthy.
		return nil, nil //nolint:nilnil // documented: it is healthy
	}

	record, err := p.ProbeNow(ctx, id)
	if errors.Is(err, health.ErrGone) {
		return p.healthNotInUse(ctx, id)
	}

	return record, err
}

// ProbeNow returns the result of a probe that starts now. Where that does not return within
// ResponseTimeout, it returns the last known condition, or else that the probe timed out.
func (p *Prober) ProbeNow(ctx context.Context, id string) (*health.Record, error) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, ResponseTimeout)

	defer cancel()

	p.monitor.Suspect(id)

	record, err := p.monitor.Await(bounded, id, began)
	if err == nil || errors.Is(err, health.ErrGone) || ctx.Err() != nil {
		return record, err
	}

	if record, ok := p.monitor.Get(id); ok {
		return record, nil
	}

	return NewRecord(id, TimedOut()), nil
}

// TimedOut returns the finding for a volume that could not be probed in time.
func TimedOut() health.Entry {
	return health.NewEntry(health.ProbeTimedOut, "it could not be probed in time; see the health of the node's storage")
}

// NewRecord returns a condition that is not the monitor's.
func NewRecord(id string, entries ...health.Entry) *health.Record {
	return &health.Record{ID: id, Entries: entries}
}

// IsHanging reports whether the last probe of the volume has not returned in time.
func (p *Prober) IsHanging(id string) bool {
	record, _ := p.monitor.Get(id)

	return record.Has(health.ProbeTimedOut)
}
