package node

import (
	"context"
	"errors"
	"hash/fnv"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

const (
	// maxWait is how long the checks of other volumes wait for one that has not
	// come to its end: what is sick may hang where nothing can end it.
	maxWait = 10 * time.Minute
)

// maxCheckPeriod is what counts as never: beyond it times can't be added.
const maxCheckPeriod = 100 * 365 * 24 * time.Hour

// Checks checks filesystems whenever they are due, until ctx ends: one at a time,
// and after each it rests for as long as that took. Volumes have their places in
// the period by their ids, so that they are spread over it, whatever they were
// staged together with; what was missed comes at once, one after the other.
func (s *Service) Checks(ctx context.Context) {
	for ctx.Err() == nil {
		for _, id := range s.schedule.takeChanged() {
			s.plan(id, time.Time{})
		}

		id, due := s.schedule.first()

		switch left := time.Until(due); {
		case id == "":
			pause(ctx, s.schedule.wake, maxCheckPeriod)
		case left > 0:
			pause(ctx, s.schedule.wake, left)
		default:
			pause(ctx, nil, s.checkDue(ctx, id))
		}
	}
}

// relisted are the subjects of a relist. It also finds volumes that are gone of which
// no event has told: not every pool tells, and none before its source listens.
func (s *Service) relisted() []string {
	s.reconsiderAll()

	return s.subjects()
}

func (s *Service) reconsiderAll() {
	for _, record := range s.checks.All() {
		s.schedule.changed(record.VolumeID)
	}
}

// imageChanged has the volume reconsidered whose image is, or was, at the path.
func (s *Service) imageChanged(path string) {
	id := strings.TrimSuffix(filepath.Base(path), layout.ImageSuffix)
	if _, known := s.checks.Get(id); known {
		s.schedule.changed(id)
	}
}

// pause waits for that time, or until it is woken or ctx ends.
func pause(ctx context.Context, wake <-chan struct{}, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// plan decides when the volume's next check is due. It was tried at that time,
// which may be zero. Nothing is kept of a volume that is gone.
func (s *Service) plan(id string, tried time.Time) {
	record, known := s.checks.Get(id)
	if known && s.gone(record) {
		if err := s.forgetCheck(id); err != nil {
			s.config.Log.Error("the record of a volume that is gone is left", "volume", id, "error", err)
		}

		known = false
	}

	if !known {
		s.schedule.remove(id)

		return
	}

	period := s.checkPeriod(record)
	if period <= 0 || period > maxCheckPeriod {
		s.schedule.remove(id)

		return
	}

	s.correctCleanAt(id, time.Now(), period)
	s.schedule.put(id, nextCheck(id, checkedSince(s.schedule.tried(id, tried), record.Since, time.Now(), period), period))
}

// correctCleanAt replaces the time of the last clean check in the volume's record if
// it is in the future, from before the clock was set back: as for checkedSince it
// counts as a period ago, so that CheckOverdue follows if no check succeeds.
func (s *Service) correctCleanAt(id string, now time.Time, period time.Duration) {
	s.keeping.Lock()
	defer s.keeping.Unlock()

	record, known := s.checks.Get(id)
	if !known || !record.CleanAt.After(now.Round(0)) {
		return
	}

	corrected := *record
	corrected.CleanAt = now.Round(0).Add(-period)

	if err := s.checks.PutLazily(&corrected); err != nil {
		s.config.Log.Error("the time of a check in the future is not corrected", "volume", id, "error", err)
	}
}

// checkedSince returns the later of both times. A time in the future, from before the
// clock was set back, counts as a period ago, so that the check is due at once.
func checkedSince(tried, recorded, now time.Time, period time.Duration) time.Time {
	// Without the monotonic clock, which does not show that the clock was set.
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

// nextCheck is the volume's place in the first period in which it comes after
// since.
func nextCheck(id string, since time.Time, period time.Duration) time.Time {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(id))

	place, from := int64(hash.Sum64()%uint64(period)), since.UnixNano()
	if from < place {
		return time.Unix(0, place)
	}

	return time.Unix(0, place+((from-place)/int64(period)+1)*int64(period))
}

// checkDue checks a volume, unless it turns out that it is not due yet, and says
// how long that took.
func (s *Service) checkDue(ctx context.Context, id string) time.Duration {
	began := time.Now()

	// Its period may have been changed on another machine.
	s.plan(id, time.Time{})

	if due, planned := s.schedule.of(id); !planned || due.After(began) {
		return 0
	}

	if s.turns.busy(id) {
		// By one that hangs, or that somebody has asked for.
		s.plan(id, began)

		return 0
	}

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		s.checkLogged(ctx, id)
	}()

	// Also at the driver's end: what it began is thawed, and taken apart.
	pause(context.WithoutCancel(ctx), ended, maxWait)

	s.plan(id, began)

	return time.Since(began)
}

func (s *Service) checkLogged(ctx context.Context, id string) {
	defer func() {
		if value := recover(); value != nil {
			s.config.Log.Error("a check panicked", "volume", id, "panic", value, "stack", string(debug.Stack()))
		}
	}()

	if _, err := s.Check(ctx, id, HowOnline); err != nil && ctx.Err() == nil {
		s.config.Log.Info("a volume was passed over, as its filesystem can't be checked now", "volume", id, "reason", err)
	}
}

// gone says whether nobody uses the volume here and its pool has not got it.
func (s *Service) gone(record *Check) bool {
	if _, used := s.stagedVolumes.Get(record.VolumeID); used || s.reachable(record.Pool) != nil {
		return false
	}

	place, err := s.pools.Get(record.Pool)
	if err != nil {
		return errors.Is(err, pool.ErrUnknown)
	}

	_, err = place.Size(pool.Object{ID: record.VolumeID, Backing: volume.BackingImage})

	return errors.Is(err, pool.ErrMissing)
}

// checkPeriod is the time between two checks of the volume, 0 for never. A pool
// that can't say leaves it at the driver's.
func (s *Service) checkPeriod(check *Check) time.Duration {
	place, err := s.pools.Get(check.Pool)
	if err != nil || s.reachable(check.Pool) != nil {
		return s.config.CheckPeriod
	}

	attributes, err := place.Attributes(check.VolumeID)
	if err != nil || attributes.CheckPeriod == nil {
		return s.config.CheckPeriod
	}

	return *attributes.CheckPeriod
}

// schedule is when which volume is due.
type schedule struct {
	// wake has one when something has changed.
	wake chan struct{}

	mu      sync.Mutex
	dirty   map[string]struct{}
	planned map[string]*plan
}

type plan struct {
	due time.Time
	// triedAt is when the volume was last due, whatever came of it.
	triedAt time.Time
}

func newSchedule() *schedule {
	return &schedule{wake: make(chan struct{}, 1), dirty: map[string]struct{}{}, planned: map[string]*plan{}}
}

// changed says that a volume's record, or its period, may be another one by now.
// It costs next to nothing.
func (s *schedule) changed(id string) {
	s.mu.Lock()
	s.dirty[id] = struct{}{}
	s.mu.Unlock()

	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *schedule) takeChanged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	ids := make([]string, 0, len(s.dirty))
	for id := range s.dirty {
		ids = append(ids, id)
	}

	clear(s.dirty)

	return ids
}

// tried remembers that the volume was tried at that time, unless it is zero, and
// returns when it last was.
func (s *schedule) tried(id string, at time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	known, ok := s.planned[id]
	if !ok {
		return at
	}

	if at.After(known.triedAt) {
		known.triedAt = at
	}

	return known.triedAt
}

func (s *schedule) put(id string, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	known, ok := s.planned[id]
	if !ok {
		known = &plan{}
		s.planned[id] = known
	}

	known.due = due
}

func (s *schedule) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	delete(s.planned, id)
}

func (s *schedule) of(id string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	known, ok := s.planned[id]
	if !ok {
		return time.Time{}, false
	}

	return known.due, true
}

// first is the volume that is due next, "" for none.
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
