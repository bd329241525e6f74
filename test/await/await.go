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

	return receiveWithin(tb, Limit, from, what)
}

func receiveWithin[T any](tb testing.TB, limit time.Duration, from <-chan T, what string) T {
	tb.Helper()

	late := time.NewTimer(limit)
	defer late.Stop()

	select {
	case got := <-from:
		return got
	case <-late.C:
		tb.Fatalf("waited %s for %s", limit, what)

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
	ReturnWithin(tb, Limit, wait, what)
}

// ReturnWithin is Return with another limit.
func ReturnWithin(tb testing.TB, limit time.Duration, wait func(), what string) {
	tb.Helper()

	returned := make(chan struct{})

	go func() {
		defer close(returned)
		wait()
	}()

	receiveWithin(tb, limit, returned, what)
}
