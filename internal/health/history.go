package health

import (
	"sync"
	"time"
)

// Change is a reason that has appeared or cleared.
type Change struct {
	// At is when the probe that found it started.
	At   time.Time `json:"at"`
	View string    `json:"view"`
	// Subject is the volume's id, and Name its name while the driver knows the volume. Other subjects have no name.
	Subject string `json:"subject"`
	Name    string `json:"name,omitempty"`
	Status  Status `json:"status"`
	Reason  Reason `json:"reason"`
	Message string `json:"message,omitempty"`
	Cleared bool   `json:"cleared,omitempty"`
}

// History holds the newest changes, of any number of monitors. It is safe for
// concurrent use.
type History struct {
	mu   sync.Mutex
	ring []Change
	// count is the number of all changes so far.
	count int
}

// NewHistory returns a history of at most size changes.
func NewHistory(size int) *History { return &History{ring: make([]Change, max(size, 0))} }

// Changes returns them, the newest first.
func (h *History) Changes() []Change {
	h.mu.Lock()
	defer h.mu.Unlock()

	size := len(h.ring)
	changes := make([]Change, 0, min(h.count, size))

	for back := 1; back <= min(h.count, size); back++ {
		changes = append(changes, h.ring[(h.count-back)%size])
	}

	return changes
}

func (h *History) add(changes []Change) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for _, change := range changes {
		if len(h.ring) > 0 {
			h.ring[h.count%len(h.ring)] = change
			h.count++
		}
	}
}
