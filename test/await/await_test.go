package await_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/touchstone-csi/touchstone/test/await"
)

// recorder keeps a failure, and ends the goroutine as testing.T does.
type recorder struct {
	testing.TB

	failure string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, arguments ...any) {
	r.failure = fmt.Sprintf(format, arguments...)

	panic(r)
}

func TestReceiveReturnsTheValue(t *testing.T) {
	t.Parallel()

	values := make(chan int, 1)
	values <- 7

	if got := await.Receive(t, values, "a value"); got != 7 {
		t.Errorf("Receive returned %d, want 7", got)
	}

	await.Return(t, func() {}, "a function that returns at once")
}

func TestWaitsEnd(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		defer close(stop)

		for name, wait := range map[string]func(r *recorder){
			"Receive": func(r *recorder) { await.Receive(r, stop, "the answer") },
			"Send":    func(r *recorder) { await.Send(r, make(chan int), 7, "the answer") },
			"Return":  func(r *recorder) { await.Return(r, func() { <-stop }, "the answer") },
		} {
			r := &recorder{TB: t}

			func() {
				defer func() { _ = recover() }()
				wait(r)
			}()

			if !strings.Contains(r.failure, "1m0s for the answer") {
				t.Errorf("%s: the failure is %q, want what it waited for and how long", name, r.failure)
			}
		}
	})
}
