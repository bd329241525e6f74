package state_test

import (
	"testing"
	"time"
)

// awaitLimit is far more than anything here takes on a busy machine.
const awaitLimit = 30 * time.Second

// await receives from a channel. When nothing comes, the test fails and says what
// it has waited for.
func await[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()

	limit := time.NewTimer(awaitLimit)
	defer limit.Stop()

	select {
	case got := <-from:
		return got
	case <-limit.C:
		t.Fatalf("waited %s for %s", awaitLimit, what)

		panic("unreachable")
	}
}
