// Package await bounds the waits of tests: each has a limit and says what it waited
// for, so that a defect does not end as a timeout of the whole package.
package await

import (
	"testing"
	"time"
)

// Limit is far more than anything takes on a busy machine. It is no verdict on
// speed.
const Limit = time.Minute

// Receive returns the next value of a channel, or the zero value if it is closed.
func Receive[T any](tb testing.TB, from <-chan T, what string) T {
	tb.Helper()

	limit := time.NewTimer(Limit)
	defer limit.Stop()

	select {
	case got := <-from:
		return got
	case <-limit.C:
		tb.Fatalf("waited %s for %s", Limit, what)

		panic("unreachable")
	}
}

// Send sends a value to what has to receive it.
func Send[T any](tb testing.TB, to chan<- T, value T, what string) {
	tb.Helper()

	limit := time.NewTimer(Limit)
	defer limit.Stop()

	select {
	case to <- value:
	case <-limit.C:
		tb.Fatalf("waited %s for %s", Limit, what)
	}
}

// Return waits until a function returns, for example sync.WaitGroup's Wait. Where it
// does not, its goroutine stays.
func Return(tb testing.TB, wait func(), what string) {
	tb.Helper()

	returned := make(chan struct{})

	go func() {
		defer close(returned)
		wait()
	}()

	Receive(tb, returned, what)
}
