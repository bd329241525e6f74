package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

const (
	// retryAfterChange is when a volume is probed again that changed during the probe.
	retryAfterChange = 100 * time.Millisecond
	// retryWhileBusy is when a volume is probed again on which an operation is running that
	// did not change what was observed.
	retryWhileBusy = time.Second
)

// probeState is the state of one probe of one volume. The probe reads no data and writes
// nothing, so that a frozen filesystem does not block it.
type probeState struct {
	// observation is what this probe has read so far, and findings what it has found.
	observation
	findings

	prober *Prober
	view   volumeView
	volume *staged.Volume
	pool   *pool.Pool
	last   lastObservation
	// registered is the controller's record when it was last read, zero where there is none:
	// an image never has fewer bytes.
	registered volume.Registered

	// device is the volume's, nil where none was found.
	device *loop.Status
	// root is the open root of the volume's filesystem, nil where it cannot be opened, and
	// point its mount.
	root  *os.File
	point mount.Point
	// busy is about what a call could not release of the volume.
	busy *busyProbe
	// leaveGate opens the volume's gate for operations that unmount.
	leaveGate func()
}

// probe probes one volume now. It implements health.Config.Probe.
func (p *Prober) probe(ctx context.Context, id string) (health.Observation, error) {
	busy := p.isBusy(id)

	view, ok := p.view(id)
	if !ok {
		p.forgetUnneeded(id)

		return health.Observation{}, health.ErrGone
	}

	s := p.newState(view)

	if view.volume == nil {
		// It may end the reason for the probe, such as a staging that has failed.
		defer p.forgetUnneeded(id)

		return p.probeNotInUse(ctx, s)
	}

	err := s.run(ctx)
	now, ok := p.view(id)
	busy = busy || p.isBusy(id)

	switch {
	case !ok:
		p.observations.Forget(id)

		return health.Observation{}, health.ErrGone
	case now.record != view.record, busy && (s.unsettled || err != nil), errors.Is(err, health.ErrKeep):
		return health.Observation{Again: retryAfterChange}, health.ErrKeep
	case err != nil:
		return health.Observation{}, fmt.Errorf("probe volume %s: %w", id, err)
	case busy:
		s.probeAgainAfter(retryWhileBusy)
	}

	p.observations.set(id, s.observation)

	if _, _, inUse := p.config.Volumes.Get(id); !inUse {
		p.observations.Forget(id)
	}

	return s.result(), nil
}

// forgetUnneeded drops the last observation of a volume that the records give no reason to probe: no relist
// lists it. An operation that is running still needs it, and calls ProbeAfterOperation at its end.
func (p *Prober) forgetUnneeded(id string) {
	if p.isBusy(id) {
		return
	}

	if _, ok := p.view(id); !ok {
		p.observations.Forget(id)
	}
}

func (p *Prober) newState(view volumeView) *probeState {
	s := &probeState{
		observation: observation{at: time.Now(), mounts: map[string]observedMount{}},
		prober:      p, view: view, volume: view.volume, last: p.observations.last(view.id), registered: p.config.registered(view.id),
	}
	s.busy = &busyProbe{
		volumes: p.busy, loops: p.config.Loops, id: view.id, inUse: view.volume != nil, held: p.busy.get(view.id), found: &s.findings,
	}

	return s
}

// registered returns the controller's record of the volume, zero where there is none.
func (c *Config) registered(id string) (found volume.Registered) {
	if c.Registered != nil {
		found, _ = c.Registered(id)
	}

	return found
}

// probeNotInUse probes a volume that is not in use here. Another process may delete it.
func (p *Prober) probeNotInUse(ctx context.Context, s *probeState) (health.Observation, error) {
	exists, err := s.probeStored(ctx)

	switch {
	case err != nil:
		return health.Observation{}, fmt.Errorf("find volume %s in a pool: %w", s.view.id, err)
	case !exists:
		p.busy.forget(s.view.id)
		p.failures.forget(s.view.id, s.at)

		return health.Observation{}, health.ErrGone
	}

	if err := s.busy.report(ctx, s.mounts); err != nil {
		return health.Observation{}, fmt.Errorf("find what uses volume %s: %w", s.view.id, err)
	}

	return s.result(), nil
}

// run probes a volume in use: first what cannot hang, then the pool, and last the volume's
// own filesystem.
func (s *probeState) run(ctx context.Context) error {
	if err := s.prober.config.Stored.CheckReachable(s.volume.Parameters.Pool); err != nil {
		return err
	}

	var err error
	if s.pool, err = s.prober.config.Stored.Of(s.volume); err != nil {
		return err
	}

	defer s.close()

	if !s.volume.Parameters.Backing.HasFilesystem() {
		// Its mounts, its files and its usage are all in the pool's filesystem.
		release, err := s.prober.pools.Acquire(ctx, s.volume.Parameters.Pool)
		if err != nil {
			return err
		}
		defer release()
	}

	steps := []func(context.Context) error{s.probeMounts, s.probeBacking, s.probeFilesystem}

	switch {
	case s.volume.IsOnlyPersistent():
		steps = steps[:2]
	case s.volume.ExposesRawDevice():
		revoke := func(ctx context.Context) error { return s.prober.config.revokeLostDevices(ctx, s.volume) }
		steps = []func(context.Context) error{s.probeRawDevices, revoke, s.probeMounts, s.probeBacking, s.probeGuest}
	}

	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}

	s.explainWrites()
	s.addRememberedFindings()

	return s.busy.report(ctx, s.mounts)
}

func (s *probeState) close() {
	if s.root != nil {
		_ = s.root.Close() // nothing was written
	}

	if s.leaveGate != nil {
		s.leaveGate()
	}
}
