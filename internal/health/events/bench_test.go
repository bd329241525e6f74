package events_test

import (
	"slices"
	"testing"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// between is the time between two faults, so that each is the first of its
// storm: an event within a millisecond after another is reported a millisecond later.
const between = 3 * time.Millisecond

// latencies are from just before what causes an event to its At.
type latencies struct {
	b    *testing.B
	each []time.Duration
}

func newLatencies(b *testing.B) *latencies {
	b.Helper()

	return &latencies{b: b}
}

func (l *latencies) measure(source *running, kind health.Kind, cause func()) {
	l.b.Helper()

	begun := time.Now()

	cause()

	event := source.next(l.b, ofKind(kind))
	l.each = append(l.each, event.At.Sub(begun))

	time.Sleep(between)
	source.drain()
}

// report gives what is asked of a source, in place of the time of a round with
// its pauses.
func (l *latencies) report() {
	slices.Sort(l.each)

	at := func(share float64) float64 {
		return float64(l.each[int(share*float64(len(l.each)-1))].Nanoseconds())
	}

	l.b.ReportMetric(0, "ns/op")
	l.b.ReportMetric(at(0.5), "p50-ns")
	l.b.ReportMetric(at(0.99), "p99-ns")
}
