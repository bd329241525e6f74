package health

import "time"

// Change is a reason that has appeared at a subject, or gone from it.
type Change struct {
	At      time.Time `json:"at"`
	View    string    `json:"view"`
	Subject string    `json:"subject"`
	Status  Status    `json:"status"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Cleared bool      `json:"cleared,omitempty"`
}

// History holds the newest changes.
type History struct{}

// NewHistory returns a history of at most size changes.
func NewHistory(size int) *History { return &History{} }

// Changes returns them, the newest first.
func (h *History) Changes() []Change { return nil }
