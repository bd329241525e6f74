package loop

import "sync"

// numbers remembers which loop numbers are not worth an attempt. It is advice
// only, LOOP_CONFIGURE decides; so it needs neither to be complete nor to
// survive a restart.
type numbers struct {
	mu    sync.Mutex
	first int
	last  int
	// next is a lower bound: every number in [first, next) is known.
	next int
	// known are the numbers in use: true for one that was found busy, as with an image of another
	// program.
	known map[int]bool
}

func newNumbers(first, last int) *numbers {
	return &numbers{first: first, last: last, next: first, known: make(map[int]bool)}
}

// releaseDetached frees the numbers found busy that are no longer attached. attached is not called
// under the lock.
func (n *numbers) releaseDetached(attached func(number int) bool) {
	var busy []int

	n.mu.Lock()

	for number, foundBusy := range n.known {
		if foundBusy {
			busy = append(busy, number)
		}
	}
	n.mu.Unlock()

	for _, number := range busy {
		if !attached(number) {
			n.free(number)
		}
	}
}

// claim takes a number that is not known: the preferred one, or else the lowest.
func (n *numbers) claim(preferred int) (int, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	if preferred >= 0 && preferred <= MaxNumber && !n.isKnown(preferred) {
		n.known[preferred] = false

		return preferred, true
	}

	for n.isKnown(n.next) {
		n.next++
	}

	if n.next > n.last {
		return 0, false
	}

	n.known[n.next] = false

	return n.next, true
}

// free gives a number back.
func (n *numbers) free(number int) {
	n.mu.Lock()
	defer n.mu.Unlock()

	delete(n.known, number)

	if number >= n.first && number < n.next {
		n.next = number
	}
}

// mark records a number as owned by the driver, or as busy.
func (n *numbers) mark(number int, busy bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.known[number] = busy
}

func (n *numbers) isKnown(number int) bool {
	_, known := n.known[number]

	return known
}
