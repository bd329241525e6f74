package loop

import (
	"maps"
	"slices"
	"sync"
)

// numbers remembers which loop numbers are not worth an attempt. It is advice
// only, LOOP_CONFIGURE decides; so it needs neither to be complete nor to
// survive a restart.
type numbers struct {
	mu    sync.Mutex
	first int
	last  int
	// next is a lower bound: every number in [first, next) is known.
	next  int
	taken map[int]struct{}
	// unusable holds the numbers found busy, and when, counted in refusals.
	unusable map[int]uint64
	refusals uint64
}

func newNumbers(first, last int) *numbers {
	return &numbers{first: first, last: last, next: first, taken: make(map[int]struct{}), unusable: make(map[int]uint64)}
}

// releaseDetached makes those numbers usable again that are no longer attached. held is not called
// under the lock.
func (n *numbers) releaseDetached(held func(number int) bool) {
	n.mu.Lock()
	suspects := slices.Collect(maps.Keys(n.unusable))
	n.mu.Unlock()

	for _, number := range suspects {
		if !held(number) {
			n.free(number)
		}
	}
}

// claim takes a number that is not among the tried: the preferred one unless it
// was refused before, else the lowest free, else the one whose last refusal is
// longest ago.
func (n *numbers) claim(preferred int, tried map[int]struct{}) (int, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if preferred >= 0 && preferred <= MaxNumber && !n.recorded(preferred) && n.available(preferred, tried) {
		return n.take(preferred), true
	}

	for n.next <= n.last && n.recorded(n.next) {
		n.next++
	}

	for number := n.next; number <= n.last; number++ {
		if !n.recorded(number) && n.available(number, tried) {
			return n.take(number), true
		}
	}

	oldest, found := 0, false

	for number, when := range n.unusable {
		if n.available(number, tried) && (!found || when < n.unusable[oldest]) {
			oldest, found = number, true
		}
	}

	if !found {
		return 0, false
	}

	return n.take(oldest), true
}

// free gives a number back.
func (n *numbers) free(number int) {
	n.mu.Lock()
	defer n.mu.Unlock()

	delete(n.taken, number)
	delete(n.unusable, number)

	if number >= n.first && number < n.next {
		n.next = number
	}
}

// markOwned records that the driver owns a number that was found busy.
func (n *numbers) markOwned(number int) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.take(number)
}

// markUnusable records that a claimed number proved unusable.
func (n *numbers) markUnusable(number int) {
	n.mu.Lock()
	defer n.mu.Unlock()

	delete(n.taken, number)
	n.refusals++
	n.unusable[number] = n.refusals
}

func (n *numbers) take(number int) int {
	delete(n.unusable, number)
	n.taken[number] = struct{}{}

	return number
}

func (n *numbers) available(number int, tried map[int]struct{}) bool {
	_, taken := n.taken[number]
	_, already := tried[number]

	return !taken && !already
}

func (n *numbers) recorded(number int) bool {
	_, taken := n.taken[number]
	_, unusable := n.unusable[number]

	return taken || unusable
}
