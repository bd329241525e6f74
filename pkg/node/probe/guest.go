package probe

import (
	"context"
	"errors"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
)

// guestRetryPeriod is when a guest that did not answer is asked again.
const guestRetryPeriod = time.Minute

// probeGuest asks the guest of a direct volume for its usage, which only the guest knows.
func (s *probeState) probeGuest(ctx context.Context) error {
	if !s.volume.IsDirect() || len(s.volume.Publications) == 0 || s.device == nil {
		return nil
	}

	usage, err := s.prober.config.Assignments.GuestUsage(ctx, s.volume, s.device.SizeBytes)
	if err != nil {
		s.entries = append(s.entries, GuestFinding(err))

		// A volume that no sandbox has taken is probed again like every unhealthy one. A guest
		// that does not answer may block each probe, so it is probed less often.
		if s.noEarlyProbe = !errors.Is(err, kata.ErrNoSandbox); s.noEarlyProbe {
			s.probeAgainAfter(guestRetryPeriod)
		}

		return nil
	}

	s.usage = UsageFrom(usage)
	s.addExhausted(usage, s.volume.Parameters.Backing.HasFilesystem())

	return nil
}

// GuestFinding returns the finding for a guest that gave no statistics. It does not include
// the guest's message, which the guest's user controls.
func GuestFinding(failure error) health.Entry {
	message := "its virtual machine does not report its usage; see the log of the runtime"
	if errors.Is(failure, kata.ErrNoSandbox) {
		message = "no sandbox reports that it uses the volume; if that lasts, see the pod's runtimeClassName (not every runtime reports it)"
	}

	return health.NewEntry(health.GuestStatsUnavailable, message)
}
