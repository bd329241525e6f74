package health

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidwall/btree"
)

// cache has the records. Writers also hold prober.mu, so that its own lock is held
// briefly, and readers never wait for a probe.
type cache struct {
	view string
	// onChange receives changes in order, while the lock is held.
	onChange func([]Change)

	mu      sync.RWMutex
	records map[string]*Record
	// abnormal has the unhealthy records.
	abnormal btree.Map[string, *Record]
	// relistedAt is when the newest completed relist started.
	relistedAt time.Time
	// forgotten has the subjects that were forgotten after relistedAt, with the time.
	// Earlier ones need no entry: an observation from before relistedAt of a subject
	// without a record is outdated.
	forgotten map[string]time.Time
	// waiting are closed when the record of their subject changes.
	waiting map[string]chan struct{}
}

func newCache(view string, note func([]Change)) *cache {
	return &cache{
		view: view, onChange: note,
		records: map[string]*Record{}, forgotten: map[string]time.Time{}, waiting: map[string]chan struct{}{},
	}
}

func (c *cache) get(id string) (*Record, bool) {
	c.mu.RLock()
	record, ok := c.records[id]
	c.mu.RUnlock()

	return record, ok
}

// set stores an observation that started at a time if it is newer than the record,
// and reports whether it did.
func (c *cache) set(id string, observed Observation, at time.Time) ([]Change, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	old := c.records[id]
	if !c.isNewer(old, id, at) {
		return nil, false
	}

	record := &Record{
		ID: id, Entries: normalize(observed.Entries), Usage: observed.Usage, ObservedAt: at, noEarlyProbe: observed.NoEarlyProbe,
	}

	if old != nil {
		if record.Usage == nil {
			record.Usage = old.Usage
		}

		// A probe that started later hangs or has failed: this one does not clear that.
		if old.failed != nil && old.failed.at.After(at) {
			record.fail(old.failed.failure, old.failed.at)
		}
	}

	return c.put(old, record), true
}

// fail stores the failure of a probe that started at a time, beside the previous
// entries.
func (c *cache) fail(id string, failure Entry, at time.Time) ([]Change, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	old := c.records[id]
	if !c.isNewer(old, id, at) || old != nil && old.failed != nil && old.failed.at.After(at) {
		return nil, false
	}

	record := &Record{ID: id}
	if old != nil {
		record.Entries, record.Usage, record.ObservedAt, record.noEarlyProbe = old.observed(), old.Usage, old.ObservedAt, old.noEarlyProbe
	}

	record.fail(failure, at)

	return c.put(old, record), true
}

func (c *cache) isNewer(old *Record, id string, at time.Time) bool {
	if forgottenAt, forgotten := c.forgotten[id]; forgotten && !at.After(forgottenAt) {
		return false
	}

	if old == nil {
		return !at.Before(c.relistedAt)
	}

	return at.After(old.ObservedAt)
}

// fail adds the failure of a probe at a time to the entries.
func (r *Record) fail(failure Entry, at time.Time) {
	r.failed = &failedProbe{at: at, failure: failure, observed: r.Entries}
	r.Entries = normalize(append(slices.Clone(r.Entries), failure))
}

// observed returns the entries of the probe at ObservedAt.
func (r *Record) observed() []Entry {
	if r.failed != nil {
		return r.failed.observed
	}

	return r.Entries
}

func (c *cache) put(old, record *Record) []Change {
	var changes []Change

	switch {
	case old != nil && slices.Equal(old.Entries, record.Entries):
		record.Entries, record.Since, record.condition = old.Entries, old.Since, old.condition
	case record.Healthy():
		changes = c.compare(old, record)
	default:
		record.condition = string(encodeCondition(record.Entries))
		record.Since = since(old, record)
		changes = c.compare(old, record)
	}

	c.records[record.ID] = record

	if !record.Healthy() {
		c.abnormal.Set(record.ID, record)
	} else if old != nil && !old.Healthy() {
		c.abnormal.Delete(record.ID)
	}

	c.onChange(changes)
	c.wake(record.ID)

	return changes
}

// since returns the start of each reason: the previous one where it existed before.
func since(old, record *Record) map[Reason]time.Time {
	times := make(map[Reason]time.Time, len(record.Entries))

	for _, entry := range record.Entries {
		times[entry.Reason] = record.lastProbeAt()

		if old != nil {
			if before, ok := old.Since[entry.Reason]; ok {
				times[entry.Reason] = before
			}
		}
	}

	return times
}

// compare returns the cleared entries, then the new ones. Either record may be nil.
func (c *cache) compare(old, record *Record) []Change {
	var changes []Change

	if old != nil {
		at := time.Now()
		if record != nil {
			at = record.lastProbeAt()
		}

		changes = c.addMissing(changes, old, record, Change{At: at, Cleared: true})
	}

	if record != nil {
		changes = c.addMissing(changes, record, old, Change{At: record.lastProbeAt()})
	}

	return changes
}

// addMissing appends a change for each entry of one that the other lacks.
func (c *cache) addMissing(changes []Change, one, other *Record, change Change) []Change {
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

// forget drops the record, and rejects observations from before at, unless the
// record is newer.
func (c *cache) forget(id string, at time.Time) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()

	old := c.records[id]
	if old != nil && old.lastProbeAt().After(at) {
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
	c.onChange(changes)

	return changes
}

// relisted records that a relist which started at a time has probed all ids, and
// drops the records of other subjects.
func (c *cache) relisted(ids []string, began time.Time) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()

	var (
		changes []Change
		listed  map[string]struct{}
	)

	for id, record := range c.records {
		if record.lastProbeAt().After(began) {
			continue
		}

		// Few records are older than the relist, so the set is rarely needed.
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

// await waits for an observation of the subject from newerThan or later.
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

// newer returns the result of await, or a channel to wait for.
func (c *cache) newer(id string, newerThan time.Time) (*Record, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	record := c.records[id]
	if record != nil && !record.lastProbeAt().Before(newerThan) {
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

// nextUnhealthy returns up to limit unhealthy records ordered by id, beginning behind
// last and continuing with the first one.
func (c *cache) nextUnhealthy(last string, limit int) []*Record {
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

	// The first one is last itself if it is still unhealthy.
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
