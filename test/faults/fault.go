package faults

import (
	"math"
	"sync"
	"syscall"
	"time"
)

// Ops are kinds of requests.
type Ops uint8

// The kinds.
const (
	// Reads read a file's bytes.
	Reads Ops = 1 << iota
	// Writes change a file's bytes, its allocation or its size.
	Writes
	// Syncs are fsync, fdatasync and the fsync of a directory.
	Syncs
	// Names are all others: what there is, how large, and how much space is left.
	Names
	// Locks are flock, in a directory that ServeLocking serves.
	Locks
)

// Longest is how long a request is delayed at most, also by Hang: then it fails
// with EIO. A test that forgets to release its faults ends nevertheless.
const Longest = time.Minute

// Fault says what happens to which requests.
type Fault struct {
	// Name is a file's or a directory's path beneath the served directory at the
	// time of the request; empty is everything there.
	Name string
	// Ops are the kinds of requests; none means all.
	Ops Ops
	// Offset and Length, in bytes, narrow Reads and Writes; Length 0 is up to the
	// end.
	Offset, Length int64
	// Process narrows Syncs to the requests of one process, by its id; 0 is all.
	Process int
	// Errno is the answer; 0 lets the request pass, after Delay.
	Errno syscall.Errno
	Delay time.Duration
	// Hang gives no answer before the fault is released.
	Hang bool
}

// request is one of the kernel's. length is 0 for what has no range.
type request struct {
	name           string
	op             Ops
	offset, length int64
	// process is 0 where it was not asked for.
	process int
}

func (f *Fault) meets(r request) bool {
	if f.Name != "" && f.Name != r.name || f.Ops != 0 && f.Ops&r.op == 0 {
		return false
	}

	if f.Process != 0 && f.Process != r.process {
		return false
	}

	end := f.Offset + f.Length
	if f.Length == 0 {
		end = math.MaxInt64
	}

	return r.length == 0 || r.offset < end && r.offset+r.length > f.Offset
}

// faultSet is what fails now.
type faultSet struct {
	mu     sync.Mutex
	faults []Fault
	met    int
	// changed is closed when the faults are replaced.
	changed chan struct{}
}

func newFaultSet() *faultSet { return &faultSet{changed: make(chan struct{})} }

// replace resets the counts.
func (s *faultSet) replace(faults []Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.faults, s.met = faults, 0
	close(s.changed)
	s.changed = make(chan struct{})
}

// count returns how many requests have met a fault.
func (s *faultSet) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.met
}

func (s *faultSet) find(r request) (*Fault, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for i := range s.faults {
		if s.faults[i].meets(r) {
			s.met++

			return &s.faults[i], s.changed
		}
	}

	return nil, s.changed
}

// answer returns, when it is time to, the error that the request gets; 0 is none.
// A signal to the caller does not make it return, as it wouldn't with a server
// that is gone.
func (s *faultSet) answer(r request) syscall.Errno {
	limit := time.NewTimer(Longest)
	defer limit.Stop()

	for {
		fault, changed := s.find(r)

		switch {
		case fault == nil:
			return 0
		case !fault.Hang && fault.Delay == 0:
			return fault.Errno
		case !fault.Hang:
			limit.Reset(min(fault.Delay, Longest))
		}

		select {
		case <-changed:
		case <-limit.C:
			if fault.Hang {
				return syscall.EIO
			}

			return fault.Errno
		}
	}
}
