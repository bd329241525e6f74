package strict

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/shorten"
)

// maxRecords bounds the list. Violations of further objects replace the oldest.
const maxRecords = 1000

// maxObject is how many bytes of an object's id or name a record has.
const maxObject = 256

// Violation is what a CO did wrong: its kind, the object that it is about, and how often it occurred.
type Violation struct {
	Kind

	// Object is the id or name of the volume, snapshot or group, or else the RPC.
	Object string    `json:"object"`
	Count  uint64    `json:"count"`
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
	// Method, Call and Detail are those of the last call. Call is its number in the driver's log
	// and in the call log.
	Method string `json:"method"`
	Call   uint64 `json:"call"`
	Detail string `json:"detail"`
	// Refused: the last call was refused (--strict=refuse).
	Refused bool `json:"refused,omitempty"`
}

type recordKey struct{ id, object string }

// report counts violations, and logs the first one of a kind and object.
func (m *Monitor) report(ctx context.Context, c *call, found []finding) {
	for _, f := range found {
		record, first := m.record(c, f)
		m.metric.WithLabelValues(f.id).Inc()

		if first {
			// With the context of the call, so that the line has its number and method.
			m.config.Log.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "the CO violates the CSI spec",
				slog.String("violation", record.ID), slog.String("object", record.Object), slog.String("detail", record.Detail),
				slog.String("spec", strings.Join(record.Rows, " ")), slog.String("remedy", record.Remedy))
		}
	}
}

func (m *Monitor) record(c *call, f finding) (record Violation, first bool) {
	object := shorten.End(cmp.Or(f.object, c.rpc()), maxObject)

	m.mu.Lock()
	defer m.mu.Unlock()

	key := recordKey{f.id, object}
	now := m.config.Now()
	known := m.records[key]

	if first = known == nil; first {
		if len(m.records) >= maxRecords {
			m.forgetOldest()
		}

		known = &Violation{Kind: kindOf(f.id), Object: object, First: now}
		m.records[key] = known
	}

	known.Count++
	known.Last, known.Method, known.Call, known.Detail = now, c.method, c.number, f.detail
	known.Refused = m.config.Mode == Refuse

	return *known, first
}

func (m *Monitor) forgetOldest() {
	var oldest *recordKey

	for key, record := range m.records {
		if oldest == nil || record.Last.Before(m.records[*oldest].Last) {
			oldest = &key
		}
	}

	if oldest != nil {
		delete(m.records, *oldest)
	}
}

// List returns the violations since the start or the last Clear, ordered by their first occurrence.
func (m *Monitor) List() []Violation {
	m.mu.Lock()
	defer m.mu.Unlock()

	list := make([]Violation, 0, len(m.records))
	for _, record := range m.records {
		list = append(list, *record)
	}

	slices.SortFunc(list, func(a, b Violation) int {
		return cmp.Or(a.First.Compare(b.First), strings.Compare(a.ID, b.ID), strings.Compare(a.Object, b.Object))
	})

	return list
}

// Clear forgets the violations. What is known of volumes, and the metric, stay.
func (m *Monitor) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()

	clear(m.records)
}
