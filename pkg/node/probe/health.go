package probe

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// ResponseTimeout bounds how long a call waits for a probe, a pool or a filesystem that may
// hang.
const ResponseTimeout = time.Second

// Health returns the volume's condition, nil where it is healthy. It answers from the
// monitor's cache, and probes only a volume that is not in it. Error: NOT_FOUND for a volume
// that is neither in use here nor in a pool; UNAVAILABLE where that is unknown.
func (p *Prober) Health(ctx context.Context, id string) (*health.Record, error) {
	if record, ok := p.monitor.Get(id); ok {
		return record, nil
	}

	if _, ok := p.view(id); !ok {
		return p.healthNotInUse(ctx, id)
	}

	// A volume that is being staged or published is not unhealthy.
	if p.isBusy(id) {
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

// healthNotInUse returns the condition of a volume that is not in use here.
func (p *Prober) healthNotInUse(ctx context.Context, id string) (*health.Record, error) {
	view, _ := p.view(id)
	s := &probeState{prober: p, view: view}
	found, err := s.findInPools(ctx)

	s.addRememberedFindings()

	if inject := p.config.Health.Inject; inject != nil {
		s.entries = append(s.entries, inject(monitorName, id)...)
	}

	switch {
	case found:
		return NewRecord(id, s.entries...), nil
	case err == nil:
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not in a pool of this node", id)
	case view.check != nil:
		return NewRecord(id, append(s.entries, TimedOut())...), nil
	default:
		return nil, rpc.Errorf(codes.Unavailable, "volume %s is not in use here and may be in a pool that does not answer: %w", id, err)
	}
}

// IsStored reports whether a pool has the volume. An error means that this is unknown.
func (p *Prober) IsStored(ctx context.Context, id string) (bool, error) {
	view, _ := p.view(id)

	return (&probeState{prober: p, view: view}).findInPools(ctx)
}

// findInPools reports whether a pool has the volume, and reads the time between its checks.
// An error means that this is unknown.
func (s *probeState) findInPools(ctx context.Context) (bool, error) {
	if !volume.IsID(s.view.id) {
		return false, nil
	}

	ctx, cancel := context.WithTimeout(ctx, ResponseTimeout)
	defer cancel()

	var failures []error

	for _, name := range s.prober.config.Pools.Names() {
		stored, err := s.prober.findInPool(ctx, name, s.view)
		if stored.found {
			s.checkPeriod = stored.checkPeriod

			return true, nil
		}

		failures = append(failures, err)
	}

	return false, errors.Join(failures...)
}

// storedVolume is what a pool has of a volume.
type storedVolume struct {
	found       bool
	checkPeriod time.Duration
}

func (p *Prober) findInPool(ctx context.Context, name string, view volumeView) (storedVolume, error) {
	if err := p.CheckReachable(name); err != nil {
		return storedVolume{}, err
	}

	stored, err := p.config.Pools.Get(name)
	if err != nil {
		return storedVolume{}, err
	}

	release, err := p.pools.Acquire(ctx, name)
	if err != nil {
		return storedVolume{}, err
	}

	return operation.Await(ctx, func() (storedVolume, error) {
		defer release()

		_, err := stored.Stat(view.id, volume.BackingImage)
		if errors.Is(err, pool.ErrMissing) {
			_, err = stored.Stat(view.id, volume.BackingDirectory)
		}

		switch {
		case errors.Is(err, pool.ErrMissing):
			return storedVolume{}, nil
		case err == nil && view.check != nil:
			return storedVolume{found: true, checkPeriod: p.config.Checker.PeriodOf(view.check)}, nil
		default:
			return storedVolume{found: err == nil}, err
		}
	})
}
