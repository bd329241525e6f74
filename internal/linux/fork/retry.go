package fork

import (
	"syscall"
	"time"
)

// limit is for a fork that does not end, as of a tool on a disk that hangs.
const limit = 2 * time.Second

// Retry counts attempts at what may be busy because of a child alone.
type Retry struct {
	attempts int
	began    time.Time
	forking  bool
}

// NewRetry is for that many attempts, one at least. It begins when what may be
// busy has been let go of, before the first.
func NewRetry(attempts int) *Retry {
	return &Retry{attempts: attempts, began: time.Now(), forking: forkInProgress()}
}

// Again says, after an attempt that failed, whether to make another one. Those
// during which a child was being forked do not count, for two seconds at most.
func (p *Retry) Again() bool {
	// The attempt may have failed because of a child that is through by now.
	before := p.forking
	p.forking = forkInProgress()

	if (before || p.forking) && time.Since(p.began) < limit {
		return true
	}

	p.attempts--

	return p.attempts > 0
}

// forkInProgress asks for the lock that Go holds from each fork to the exec, which it
// awaits (CLONE_VFORK). Tried only: whoever waits for it holds up further forks.
func forkInProgress() bool {
	if !syscall.ForkLock.TryRLock() {
		return true
	}

	syscall.ForkLock.RUnlock()

	return false
}
