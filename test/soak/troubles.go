package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// condition is the sort of those troubles that are conditions.
const condition = "condition"

// trouble is something that should not have been, once or more often.
type trouble struct {
	sort, text string
	// note is of the first time.
	note        string
	first, last time.Time
	times       int
}

// troubles are in the order in which they came first. They are safe for
// concurrent use.
type troubles struct {
	mu  sync.Mutex
	out io.Writer
	all []*trouble
}

func newTroubles(out io.Writer) *troubles { return &troubles{out: out} }

func (t *troubles) add(sort string, texts ...string) {
	for _, text := range texts {
		t.addNoted(sort, text, "")
	}
}

func (t *troubles) addNoted(sort, text, note string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	now := time.Now()

	at := slices.IndexFunc(t.all, func(each *trouble) bool { return each.sort == sort && each.text == text })
	if at < 0 {
		at = len(t.all)
		t.all = append(t.all, &trouble{sort: sort, text: text, note: note, first: now})
		fmt.Fprintf(t.out, "%s %s: %s [%s]\n", now.Format(time.StampMilli), sort, text, note)
	}

	t.all[at].last = now
	t.all[at].times++
}

// count counts those of a sort; an empty one is all.
func (t *troubles) count(sort string) int {
	t.mu.Lock()
	defer t.mu.Unlock()

	count := 0

	for _, each := range t.all {
		if sort == "" || each.sort == sort {
			count++
		}
	}

	return count
}

func (t *troubles) list() {
	t.mu.Lock()
	defer t.mu.Unlock()

	for _, each := range t.all {
		fmt.Fprintf(t.out, "%s – %s, %d times: %s: %s [%s]\n", each.first.Format(time.StampMilli), each.last.Format(time.StampMilli),
			each.times, each.sort, each.text, each.note)
	}
}

// volumes knows which volumes there are, and what is being done to each. It is
// safe for concurrent use.
type volumes struct {
	mu    sync.Mutex
	doing map[string]string
}

func newVolumes() *volumes { return &volumes{doing: map[string]string{}} }

func (v *volumes) add(id, doing string) {
	v.mu.Lock()
	defer v.mu.Unlock()

	v.doing[id] = doing
}

// set says what is being done to a volume, unless it is none any more.
func (v *volumes) set(id, doing string) {
	v.mu.Lock()
	defer v.mu.Unlock()

	if _, ok := v.doing[id]; ok {
		v.doing[id] = doing
	}
}

func (v *volumes) drop(id string) {
	v.mu.Lock()
	defer v.mu.Unlock()

	delete(v.doing, id)
}

func (v *volumes) what(id string) string {
	v.mu.Lock()
	defer v.mu.Unlock()

	return v.doing[id]
}

func (v *volumes) ids() []string {
	v.mu.Lock()
	defer v.mu.Unlock()

	return slices.Sorted(maps.Keys(v.doing))
}

// longest is the longest of some times. It is safe for concurrent use.
type longest struct{ nanoseconds atomic.Int64 }

func (l *longest) add(took time.Duration) {
	for {
		seen := l.nanoseconds.Load()
		if took.Nanoseconds() <= seen || l.nanoseconds.CompareAndSwap(seen, took.Nanoseconds()) {
			return
		}
	}
}

// take returns and resets it.
func (l *longest) take() time.Duration { return time.Duration(l.nanoseconds.Swap(0)) }
