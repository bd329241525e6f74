package node

import (
	"context"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

// Check is what the checks of a volume's filesystem on this node have found. A
// record is never changed once it is in the store.
type Check struct {
	VolumeID string `json:"volumeId"`
	Pool     string `json:"pool"`
	FSType   string `json:"fsType"`
	// At, Verdict, Detail, Took and How are the newest check's. One that could not
	// look takes no damage back: then they are those of the one that found it.
	At      time.Time     `json:"at"`
	Verdict string        `json:"verdict"`
	Detail  string        `json:"detail,omitempty"`
	Took    time.Duration `json:"took"`
	How     string        `json:"how"`
	// CleanAt is when a check last found nothing, or repaired all.
	CleanAt time.Time `json:"cleanAt,omitzero"`
	// Errors is how many errors the kernel had counted then: older ones need not
	// be told again.
	Errors uint64 `json:"errors,omitempty"`
	// Since is what the next check is due after: the newest one that was not the
	// staging's, which believes a filesystem that says it is clean, or else the
	// first staging.
	Since time.Time `json:"since"`
}

func (c *Check) RecordID() string { return c.VolumeID }

// The verdicts of checks.
const (
	// VerdictClean means that nothing was found.
	VerdictClean = "clean"
	// VerdictRepaired means that all that was found is repaired.
	VerdictRepaired = "repaired"
	// VerdictDamaged means that something is left for a person to repair.
	VerdictDamaged = "damaged"
	// VerdictFailed means that the check could not look.
	VerdictFailed = "failed"
)

// How a filesystem was checked.
const (
	// HowStage is before the volume was mounted.
	HowStage = "stage"
	// HowOffline is in place, while the volume is not used.
	HowOffline = "offline"
	// HowOnline is on a copy, made while the mounted filesystem was frozen.
	HowOnline = "online"
)

func verdictOf(state filesystem.State) string {
	switch state {
	case filesystem.Clean:
		return VerdictClean
	case filesystem.Repaired:
		return VerdictRepaired
	case filesystem.NeedsReplay, filesystem.Damaged:
	}

	return VerdictDamaged
}

// after returns what is to be kept of c once it has come after older, which may
// be nil.
func (c *Check) after(older *Check) *Check {
	kept := *c

	if c.Verdict == VerdictClean || c.Verdict == VerdictRepaired {
		kept.CleanAt = c.At
	} else if older != nil {
		kept.CleanAt, kept.Errors = older.CleanAt, older.Errors
	}

	if older == nil {
		return &kept
	}

	switch c.How {
	case HowStage:
		kept.Since = older.Since
	case HowOffline:
		// They can be read only where it is mounted.
		kept.Errors = older.Errors
	}

	if c.Verdict == VerdictFailed && older.Verdict == VerdictDamaged {
		since := kept.Since
		kept = *older
		kept.Since = since
	}

	return &kept
}

// supersedes reports whether c began after found. A check in the future is from before
// the clock was set back.
func (c *Check) supersedes(found *Check, now time.Time) bool {
	return c.At.After(found.At) && !c.At.Round(0).After(now.Round(0))
}

// keepCheck records a check, has the volume looked at, and returns what is known
// of it then. Damage that was found outlives a crash; what else is lost with one
// will be found again.
func (s *Service) keepCheck(ctx context.Context, found *Check) *Check {
	if found.Verdict == VerdictDamaged || found.Verdict == VerdictFailed {
		s.config.Log.Error("the check of a filesystem did not find it sound", "volume", found.VolumeID,
			"fs", found.FSType, "how", found.How, "verdict", found.Verdict, "detail", found.Detail)
	}

	s.keeping.Lock()
	defer s.keeping.Unlock()

	older, known := s.checks.Get(found.VolumeID)
	if known && older.supersedes(found, time.Now()) {
		return older
	}

	kept := found.after(older)

	var err error
	if kept.Verdict == VerdictDamaged {
		err = s.checks.Put(ctx, kept)
	} else {
		err = s.checks.PutLazily(kept)
	}

	if err != nil {
		s.config.Log.Error("the verdict of a check was not kept", "volume", found.VolumeID, "verdict", found.Verdict, "error", err)
	}

	s.schedule.changed(found.VolumeID)

	// What a staging has done is looked at when it is over.
	if found.How != HowStage {
		s.ended(found.VolumeID)
	}

	return kept
}

func (s *Service) count(found *Check) {
	s.config.Health.Metrics.Checked(found.How, found.FSType, found.Verdict, found.Took)
}

// forgetCheck drops the record of a volume whose filesystem is none any more.
func (s *Service) forgetCheck(volumeID string) error {
	if _, known := s.checks.Get(volumeID); !known {
		return nil
	}

	err := s.checks.DeleteLazily(volumeID)
	s.schedule.changed(volumeID)
	s.ended(volumeID)

	return err
}

// turns lets the checks of one volume come one after the other.
type turns struct {
	mu    sync.Mutex
	taken map[string]*turn
}

// turn is one of them.
type turn struct {
	over chan struct{}
	end  context.CancelCauseFunc
}

func newTurns() *turns { return &turns{taken: map[string]*turn{}} }

// take waits for the turn, or returns ctx's error. Whoever has it stops when within
// ends, and gives it to the next by leave.
func (t *turns) take(ctx context.Context, id string) (within context.Context, leave func(), err error) {
	within, end := context.WithCancelCause(ctx)
	mine := &turn{over: make(chan struct{}), end: end}

	for {
		before := t.try(id, mine)
		if before == nil {
			return within, func() { t.leave(id) }, nil
		}

		select {
		case <-before.over:
		case <-ctx.Done():
			end(nil)

			return nil, nil, context.Cause(ctx) //nolint:wrapcheck // nothing was begun
		}
	}
}

// try returns who has the turn where it is not free.
func (t *turns) try(id string, mine *turn) (before *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if before, taken := t.taken[id]; taken {
		return before
	}

	t.taken[id] = mine

	return nil
}

func (t *turns) busy(id string) bool { return t.of(id) != nil }

func (t *turns) of(id string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.taken[id]
}

// end stops the check that is under way for that cause, and returns when it has
// stopped, or ctx's error.
func (t *turns) end(ctx context.Context, id string, cause error) error {
	current := t.of(id)
	if current == nil {
		return nil
	}

	current.end(cause)

	select {
	case <-current.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx) //nolint:wrapcheck // the caller names the volume
	}
}

func (t *turns) leave(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	left := t.taken[id]
	delete(t.taken, id)
	left.end(nil)
	close(left.over)
}
