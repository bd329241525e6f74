package health

import (
	"context"
	"time"
)

// Most conditions clear without a kernel event: files are deleted, a mount is
// restored. Unhealthy subjects are therefore probed repeatedly, in bounded batches
// ordered by id: with up to two batches each is probed within 2 s, and more subjects
// cost no more.
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

// probeBatch probes the next batch of unhealthy subjects, beginning behind last and
// continuing with the first one. It returns the last of the batch.
func (m *Monitor) probeBatch(last string) string {
	batch := m.cache.nextUnhealthy(last, unhealthyBatch)

	var ids []string

	for _, record := range batch {
		last = record.ID

		if !record.noEarlyProbe {
			ids = append(ids, record.ID)
		}
	}

	if !m.prober.probeIdle(ids...) {
		return ""
	}

	return last
}
