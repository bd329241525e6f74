package audit

import (
	"errors"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Errors of this package.
var (
	// ErrNotComparable is returned for a state that does not contain what a pool
	// should hold: that of a driver that only serves a node.
	ErrNotComparable = errors.New("no controller has kept its records there")
	// ErrNoPool is returned for a directory that no driver has made a pool of.
	ErrNoPool = errors.New("it is no pool")
)

// Kind is what a finding is about.
type Kind string

// The kinds of findings.
const (
	// Orphan is a volume or snapshot without a record.
	Orphan Kind = "orphan"
	// Scratch was being made when a driver ended.
	Scratch Kind = "scratch"
	// Mismatch is a pool that is not the one that the state knows.
	Mismatch Kind = "mismatch"
	// Lost is a record of a volume or snapshot whose bytes are not there.
	Lost Kind = "lost"
)

// Finding is one thing that Verify found in a pool.
type Finding struct {
	Kind Kind   `json:"kind"`
	Pool string `json:"pool"`
	Path string `json:"path"`
	// ID is that of the volume or snapshot.
	ID string `json:"id"`
	// Bytes is what it takes of the pool.
	Bytes  int64  `json:"bytes"`
	Reason string `json:"reason"`
	// Fix says what Repair does about it; it is empty where that needs a person,
	// to whom Advice is given.
	Fix    string `json:"fix,omitempty"`
	Advice string `json:"advice,omitempty"`

	object object
}

// Note is what a person may want to know, and is no finding.
type Note struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Report is what Verify found, in the state and in the pools.
type Report struct {
	state.Report

	// Pools is nil where none was asked about, or where the state is damaged, so
	// that nothing can be compared with it.
	Pools *Pools `json:"pools,omitempty"`
}

// Clean says whether nothing was found.
func (r Report) Clean() bool {
	return r.Report.Clean() && (r.Pools == nil || len(r.Pools.Findings) == 0)
}

// Pools is what was found in pools.
type Pools struct {
	// Compared maps the names of the pools to their directories.
	Compared map[string]string `json:"compared"`
	Findings []Finding         `json:"findings"`
	Notes    []Note            `json:"notes"`
}
