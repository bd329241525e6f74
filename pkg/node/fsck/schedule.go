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
	// wake receives a value when changed is not empty.
	wake chan struct{}

	mu      sync.Mutex
	changed map[string]struct{}
	planned map[string]*plannedCheck
}

type plannedCheck struct {
	due time.Time
	// triedAt is when the volume was last due, whether or not the check succeeded.
	triedAt time.Time
}

func newSchedule() *schedule {
	return &schedule{wake: make(chan struct{}, 1), changed: map[string]struct{}{}, planned: map[string]*plannedCheck{}}
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

// lastTried records that the volume's check was tried at that time, unless it is zero, and
// returns when it was last tried.
func (s *schedule) lastTried(id string, at time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	found, ok := s.planned[id]
	if !ok {
		return at
	}

	if at.After(found.triedAt) {
		found.triedAt = at
	}

	return found.triedAt
}

func (s *schedule) set(id string, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	found, ok := s.planned[id]
	if !ok {
		found = &plannedCheck{}
		s.planned[id] = found
	}

	found.due = due
}

func (s *schedule) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.planned, id)
}

// due returns when the volume's check is due, false where none is planned.
func (s *schedule) due(id string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	found, ok := s.planned[id]
	if !ok {
		return time.Time{}, false
	}

	return found.due, true
}

// first returns the volume whose check is due first, "" where none is planned.
func (s *schedule) first() (id string, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

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

	if recorded.After(tried) {
		return recorded
	}

	return tried
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
