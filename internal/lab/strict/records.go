package strict

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	Object string `json:"object"`
	// Name is the name with which a volume was created, if the monitor has seen that.
	Name  string    `json:"name,omitempty"`
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Method, Call and Detail are those of the last call. Call is its number in the driver's log
	// and in the call log.
	Method string `json:"method"`
	Call   uint64 `json:"call"`
	Detail string `json:"detail"`
	// Refused: the last call was refused (--strict=refuse).
	Refused bool `json:"refused,omitempty"`
}

type recordKey struct{ id, object string }

// violations are those of a CO. It is safe for concurrent use.
type violations struct {
	refuse bool
	log    *slog.Logger
	now    func() time.Time
	metric *prometheus.CounterVec

	mu    sync.Mutex
	byKey map[recordKey]*Violation
}

// report counts violations, and logs the first one of a kind and object.
func (v *violations) report(ctx context.Context, c *call, found []finding) {
	for _, f := range found {
		record, first := v.record(c, f)
		v.metric.WithLabelValues(f.id).Inc()

		if first {
			// With the context of the call, so that the line has its number and method.
			v.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "the CO violates the CSI spec",
				slog.String("violation", record.ID), slog.String("object", record.Object), slog.String("name", record.Name),
				slog.String("detail", record.Detail), slog.String("spec", strings.Join(record.Rows, " ")), slog.String("remedy", record.Remedy))
		}
	}
}

func (v *violations) record(c *call, f finding) (record Violation, first bool) {
	object := shorten.End(cmp.Or(f.object, c.rpc()), maxObject)

	v.mu.Lock()
	defer v.mu.Unlock()

	key := recordKey{f.id, object}
	now := v.now()
	known := v.byKey[key]

	if first = known == nil; first {
		if len(v.byKey) >= maxRecords {
			v.forgetOldest()
		}

		known = &Violation{Kind: kindOf(f.id), Object: object, First: now}
		v.byKey[key] = known
	}

	known.Count++
	known.Last, known.Method, known.Call, known.Detail = now, c.method, c.number, f.detail
	known.Name = cmp.Or(c.name, known.Name)
	known.Refused = v.refuse

	return *known, first
}

func (v *violations) forgetOldest() {
	var oldest *recordKey

	for key, record := range v.byKey {
		if oldest == nil || record.Last.Before(v.byKey[*oldest].Last) {
			oldest = &key
		}
	}

	delete(v.byKey, *oldest)
}

// List returns the violations since the start or the last Clear, ordered by their first occurrence.
func (m *Monitor) List() []Violation {
	m.violations.mu.Lock()
	defer m.violations.mu.Unlock()

	list := make([]Violation, 0, len(m.violations.byKey))
	for _, record := range m.violations.byKey {
		list = append(list, *record)
	}

	slices.SortFunc(list, func(a, b Violation) int {
		return cmp.Or(a.First.Compare(b.First), strings.Compare(a.ID, b.ID), strings.Compare(a.Object, b.Object))
	})

	return list
}

// Clear forgets the violations. What is known of volumes, and the metric, stay.
func (m *Monitor) Clear() {
	m.violations.mu.Lock()
	defer m.violations.mu.Unlock()

	clear(m.violations.byKey)
}
