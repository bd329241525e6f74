package fork

import (
	"context"
	"errors"
	"syscall"
	"time"
)

const (
	firstPause   = time.Millisecond
	longestPause = 32 * time.Millisecond
)

// RetryWhile calls attempt again while its error is temporary, after 1 ms first and then after up to
// 32 ms, within that many attempts as Retry counts them. Error: that of the last attempt, or ctx's.
func RetryWhile(ctx context.Context, temporary error, attempts int, attempt func() error) error {
	retries, pause := NewRetry(attempts), firstPause

	for {
		err := attempt()
		if !errors.Is(err, temporary) || !retries.Again() {
			return err
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}

		pause = min(2*pause, longestPause)
	}
}

// limit bounds the wait for a fork that does not end, as of a tool on a disk that hangs.
const limit = 2 * time.Second

// Retry limits the attempts at an operation that may fail because of a forked child alone.
type Retry struct {
	attempts int
	began    time.Time
	forking  bool
}

// NewRetry returns a limit of that many attempts, at least one. Call it after the resource was
// released and before the first attempt, so that a child forked in between counts.
func NewRetry(attempts int) *Retry {
	return &Retry{attempts: attempts, began: time.Now(), forking: forkInProgress()}
}

// Again reports, after a failed attempt, whether to make another one. Attempts during which a child
// was being forked do not count, for at most two seconds.
func (p *Retry) Again() bool {
	// The attempt may have failed because of a child that has reached its exec by now.
	before := p.forking
	p.forking = forkInProgress()

	if (before || p.forking) && time.Since(p.began) < limit {
		return true
	}

	p.attempts--

	return p.attempts > 0
}

// forkInProgress asks for the lock that Go holds from each fork to the exec, which it
// awaits (CLONE_VFORK). It only tries the lock, since waiting for it would block further forks.
func forkInProgress() bool {
	if !syscall.ForkLock.TryRLock() {
		return true
	}

	syscall.ForkLock.RUnlock()

	return false
}
