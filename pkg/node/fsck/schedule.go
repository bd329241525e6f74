package fsck

import (
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxPeriod is the longest period between two checks; a longer one means never, because
// times that far in the future overflow.
const maxPeriod = 100 * 365 * 24 * time.Hour

// schedule knows which volume's check is due when.
type schedule struct {
	// planned are the checks that are due. Only Checker.Run uses them.
	planned map[string]plannedCheck
	// wake receives a value when changed is not empty.
	wake chan struct{}

	mu      sync.Mutex
	changed map[string]struct{}
}

type plannedCheck struct {
	due time.Time
	// triedAt is when the volume was last due, whether or not the check succeeded.
	triedAt time.Time
}

func newSchedule() *schedule {
	return &schedule{planned: map[string]plannedCheck{}, wake: make(chan struct{}, 1), changed: map[string]struct{}{}}
}

// lastTried returns when the volume was last due, if tried, which may be zero, is the newest time.
func (s *schedule) lastTried(id string, tried time.Time) time.Time {
	return later(s.planned[id].triedAt, tried)
}

// markChanged requests that the volume's check is planned again, because its record or its
// period may have changed. It does no I/O.
func (s *schedule) markChanged(id string) {
	s.mu.Lock()
	s.changed[id] = struct{}{}
	s.mu.Unlock()

	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// takeChanged returns the volumes marked since the last call.
func (s *schedule) takeChanged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	ids := slices.Collect(maps.Keys(s.changed))
	clear(s.changed)

	return ids
}

// first returns the volume whose check is due first, "" where none is planned.
func (s *schedule) first() (id string, due time.Time) {
	for each, planned := range s.planned {
		if id == "" || planned.due.Before(due) {
			id, due = each, planned.due
		}
	}

	return id, due
}

// checkedSince returns the later of both times. A time in the future, from before the
// clock was set back, counts as a period ago, so that the check is due at once.
func checkedSince(tried, recorded, now time.Time, period time.Duration) time.Time {
	// The monotonic clock does not show that the wall clock was set: Round(0) drops it.
	now = now.Round(0)
	if tried.Round(0).After(now) {
		tried = now.Add(-period)
	}

	if recorded.Round(0).After(now) {
		recorded = now.Add(-period)
	}

	return later(tried, recorded)
}

func later(one, other time.Time) time.Time {
	if other.After(one) {
		return other
	}

	return one
}

// nextCheck returns when the volume's check is due after since. Its offset within the
// period is a hash of its id, which spreads the checks of volumes that were staged
// together.
func nextCheck(id string, since time.Time, period time.Duration) time.Time {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(id))

	offset, from := int64(hash.Sum64()%uint64(period)), since.UnixNano()
	if from < offset {
		return time.Unix(0, offset)
	}

	return time.Unix(0, offset+((from-offset)/int64(period)+1)*int64(period))
}
