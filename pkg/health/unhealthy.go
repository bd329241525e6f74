package health

import (
	"context"
	"time"
)

// Most conditions end without an event of the kernel: files are deleted, a mount is
// put back. Unhealthy subjects are therefore probed again and again, while they are
// unhealthy, in batches of a bounded size and in the order of their ids: with up to
// two batches of them each is probed within 2 s, and more of them cost no more.
const (
	unhealthyPeriod = time.Second
	unhealthyBatch  = 256
)

// probeUnhealthy has one batch probed each period, until ctx ends.
func (m *Monitor) probeUnhealthy(ctx context.Context) {
	ticker := time.NewTicker(unhealthyPeriod)
	defer ticker.Stop()

	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			last = m.probeBatch(last)
		}
	}
}

// probeBatch has the unhealthy subjects behind last probed, and from the first one
// again behind the last one of all. It returns the last of the batch.
func (m *Monitor) probeBatch(last string) string {
	batch := m.cache.batch(last, unhealthyBatch)

	m.mu.Lock()
	defer m.unlock()

	if m.phase != running {
		return ""
	}

	for _, record := range batch {
		last = record.ID

		if s := m.looks.subjects[record.ID]; record.patient || s != nil && s.state != resting {
			continue
		}

		m.enqueue(m.subject(record.ID))
	}

	return last
}
