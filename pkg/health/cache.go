package health

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"
)

// cache is what is known. All that change it hold Monitor.mu as well, so that its
// own lock is held for moments only, and readers never wait for more.
type cache struct {
	view string
	// note is told of changes while the lock is held, so in their order.
	note func([]Change)
	// healthy is the encoded condition that nearly all records share.
	healthy []byte

	mu      sync.RWMutex
	records map[string]*Record
	// abnormal holds those of records that are not healthy.
	abnormal btree.Map[string, *Record]
	// relistedAt is when the newest relist began that has answered for all.
	relistedAt time.Time
	// forgotten says when something was forgotten after relistedAt. What was
	// forgotten earlier needs no entry: what was observed before relistedAt and is
	// not among the records is not there any more.
	forgotten map[string]time.Time
	// waiting are closed when something becomes known of their subject.
	waiting map[string]chan struct{}
}

func newCache(view string, note func([]Change)) *cache {
	return &cache{
		view: view, note: note, healthy: encodeCondition(nil),
		records: map[string]*Record{}, forgotten: map[string]time.Time{}, waiting: map[string]chan struct{}{},
	}
}

func (c *cache) get(id string) (*Record, bool) {
	c.mu.RLock()
	record, ok := c.records[id]
	c.mu.RUnlock()

	return record, ok
}

// set keeps what was observed, beginning at a time, and says whether it did:
// only what is newer is kept.
func (c *cache) set(id string, observed Observation, at time.Time) ([]Change, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	old := c.records[id]
	if !c.isNews(old, id, at) {
		return nil, false
	}

	record := &Record{
		ID: id, known: normalize(observed.Entries), Usage: observed.Usage, ObservedAt: at, patient: observed.Patient,
	}

	if old != nil {
		if record.Usage == nil {
			record.Usage = old.Usage
		}

		// A look that began later hangs or has failed, and that is still so.
		if old.failedAt.After(at) {
			record.failure, record.failedAt = old.failure, old.failedAt
		}
	}

	return c.put(old, record), true
}

// fail keeps that the look which began at a time has not succeeded, beside what
// is known.
func (c *cache) fail(id string, failure Entry, at time.Time) ([]Change, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	old := c.records[id]
	if !c.isNews(old, id, at) || old != nil && old.failedAt.After(at) {
		return nil, false
	}

	record := &Record{ID: id, failure: &failure, failedAt: at}
	if old != nil {
		record.known, record.Usage, record.ObservedAt, record.patient = old.known, old.Usage, old.ObservedAt, old.patient
	}

	return c.put(old, record), true
}

func (c *cache) isNews(old *Record, id string, at time.Time) bool {
	if forgottenAt, forgotten := c.forgotten[id]; forgotten && !at.After(forgottenAt) {
		return false
	}

	if old == nil {
		return !at.Before(c.relistedAt)
	}

	return at.After(old.ObservedAt)
}

func (c *cache) put(old, record *Record) []Change {
	record.Entries = record.known
	if record.failure != nil {
		record.Entries = normalize(append(slices.Clone(record.known), *record.failure))
	}

	var changes []Change

	switch {
	case old != nil && slices.Equal(old.Entries, record.Entries):
		record.Entries, record.Since, record.condition = old.Entries, old.Since, old.condition
	case record.Healthy():
		record.condition = c.healthy
		changes = c.compare(old, record)
	default:
		record.condition = encodeCondition(record.Entries)
		record.Since = since(old, record)
		changes = c.compare(old, record)
	}

	c.records[record.ID] = record

	if !record.Healthy() {
		c.abnormal.Set(record.ID, record)
	} else if old != nil && !old.Healthy() {
		c.abnormal.Delete(record.ID)
	}

	c.note(changes)
	c.wake(record.ID)

	return changes
}

// since keeps the times of the reasons that were there before.
func since(old, record *Record) map[Reason]time.Time {
	times := make(map[Reason]time.Time, len(record.Entries))

	for _, entry := range record.Entries {
		times[entry.Reason] = record.answeredAt()

		if old != nil {
			if before, ok := old.Since[entry.Reason]; ok {
				times[entry.Reason] = before
			}
		}
	}

	return times
}

// compare returns what has gone, then what has appeared. Either may be nil.
func (c *cache) compare(old, record *Record) []Change {
	var changes []Change

	if old != nil {
		at := time.Now()
		if record != nil {
			at = record.answeredAt()
		}

		changes = c.missing(changes, old, record, Change{At: at, Cleared: true})
	}

	if record != nil {
		changes = c.missing(changes, record, old, Change{At: record.answeredAt()})
	}

	return changes
}

// missing adds a change for each entry of one that the other has not.
func (c *cache) missing(changes []Change, one, other *Record, change Change) []Change {
	for _, entry := range one.Entries {
		same := func(e Entry) bool { return e.Reason == entry.Reason && e.Status == entry.Status }
		if other != nil && slices.ContainsFunc(other.Entries, same) {
			continue
		}

		change.View, change.Subject = c.view, one.ID
		change.Status, change.Reason, change.Message = entry.Status, entry.Reason, entry.Message
		changes = append(changes, change)
	}

	return changes
}

// forget drops what is known, and what will be said that was observed until at;
// unless something newer is known.
func (c *cache) forget(id string, at time.Time) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()

	old := c.records[id]
	if old != nil && old.answeredAt().After(at) {
		return nil
	}

	if at.After(c.forgotten[id]) {
		c.forgotten[id] = at
	}

	defer c.wake(id)

	return c.drop(old)
}

func (c *cache) drop(old *Record) []Change {
	if old == nil {
		return nil
	}

	delete(c.records, old.ID)
	c.abnormal.Delete(old.ID)

	changes := c.compare(old, nil)
	c.note(changes)

	return changes
}

// forgottenSince says whether what was observed at a time is of something that
// has been forgotten since.
func (c *cache) forgottenSince(id string, at time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()

	old := c.records[id]

	return old == nil && !c.isNews(old, id, at)
}

// relisted keeps that a relist which began at a time has answered for all of
// ids, and forgets what was not among them.
func (c *cache) relisted(ids []string, began time.Time) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()

	var (
		changes []Change
		listed  map[string]struct{}
	)

	for id, record := range c.records {
		if record.answeredAt().After(began) {
			continue
		}

		// Few were not looked at, so mostly there is no need for the set.
		if listed == nil {
			listed = make(map[string]struct{}, len(ids))
			for _, each := range ids {
				listed[each] = struct{}{}
			}
		}

		if _, ok := listed[id]; !ok {
			changes = append(changes, c.drop(record)...)
		}
	}

	if began.After(c.relistedAt) {
		c.relistedAt = began
	}

	maps.DeleteFunc(c.forgotten, func(_ string, at time.Time) bool { return !at.After(c.relistedAt) })

	for id := range c.waiting {
		c.wake(id)
	}

	return changes
}

func (c *cache) wake(id string) {
	if waiting, ok := c.waiting[id]; ok {
		close(waiting)
		delete(c.waiting, id)
	}
}

// await waits until it is known how the subject was at newerThan, or later.
func (c *cache) await(ctx context.Context, id string, newerThan time.Time) (*Record, error) {
	for {
		record, waiting, err := c.newer(id, newerThan)
		if waiting == nil {
			return record, err
		}

		select {
		case <-waiting:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// newer returns the answer to await, or what to wait for before the next try.
func (c *cache) newer(id string, newerThan time.Time) (*Record, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	record := c.records[id]
	if record != nil && !record.answeredAt().Before(newerThan) {
		return record, nil, nil
	}

	forgottenAt, forgotten := c.forgotten[id]
	relisted := !c.relistedAt.IsZero() && !c.relistedAt.Before(newerThan)

	switch {
	case record == nil && (relisted || forgotten && !forgottenAt.Before(newerThan)):
		return nil, nil, ErrGone
	case relisted:
		return record, nil, nil
	}

	if c.waiting[id] == nil {
		c.waiting[id] = make(chan struct{})
	}

	return nil, c.waiting[id], nil
}

func (c *cache) after(id string) []*Record {
	c.mu.RLock()
	defer c.mu.RUnlock()

	var records []*Record

	c.abnormal.Ascend(id, func(each string, record *Record) bool {
		if each > id {
			records = append(records, record)
		}

		return true
	})

	return records
}

// batch returns up to limit unhealthy records, in the order of their ids, those
// behind last first and then from the first one on.
func (c *cache) batch(last string, limit int) []*Record {
	c.mu.RLock()
	defer c.mu.RUnlock()

	limit = min(limit, c.abnormal.Len())
	records := make([]*Record, 0, limit)
	add := func(_ string, record *Record) bool {
		if len(records) < limit {
			records = append(records, record)
		}

		return len(records) < limit
	}

	// The first is last itself, where it is unhealthy still.
	c.abnormal.Ascend(last, func(id string, record *Record) bool { return id == last || add(id, record) })

	if len(records) < limit {
		c.abnormal.Scan(add)
	}

	return records
}

func (c *cache) all() []*Record {
	c.mu.RLock()
	defer c.mu.RUnlock()

	return slices.AppendSeq(make([]*Record, 0, len(c.records)), maps.Values(c.records))
}
