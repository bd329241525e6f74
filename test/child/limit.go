package child

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

const (
	// Limit is far more than a tool takes on a busy machine. It is no verdict on
	// speed.
	Limit = 80 * time.Second
	// BuildLimit is for a build whose cache is empty.
	BuildLimit = 10 * time.Minute
	// killedLimit is how long a killed child may hold its output open.
	killedLimit = 10 * time.Second
)

// Command is exec.CommandContext for a child that ends by itself: at the limit it is
// killed, and the test fails with its command line. It may also be called while the
// test cleans up.
func Command(tb testing.TB, name string, args ...string) *exec.Cmd {
	tb.Helper()

	return CommandWithin(tb, Limit, name, args...)
}

// CommandWithin is Command with another limit.
func CommandWithin(tb testing.TB, limit time.Duration, name string, args ...string) *exec.Cmd {
	tb.Helper()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), limit)
	tb.Cleanup(cancel)

	command := exec.CommandContext(ctx, name, args...)
	command.WaitDelay = killedLimit
	command.Cancel = func() error {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			tb.Errorf("waited %s for the end of %s: killed it", limit, command)
		}

		return command.Process.Kill()
	}

	return command
}

// Wait is command.Wait of a child that was terminated, or is about to end: at the limit
// it is killed, and the test fails with its command line.
func Wait(tb testing.TB, command *exec.Cmd) error {
	tb.Helper()

	return waitWithin(tb, Limit, command)
}

func waitWithin(tb testing.TB, limit time.Duration, command *exec.Cmd) error {
	tb.Helper()

	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()

	late := time.NewTimer(limit)
	defer late.Stop()

	select {
	case err := <-ended:
		return err
	case <-late.C:
	}

	tb.Errorf("waited %s for the end of %s: killed it", limit, command)

	_ = command.Process.Kill() // it may have ended at last

	late.Reset(killedLimit)

	select {
	case err := <-ended:
		return err
	case <-late.C:
		return fmt.Errorf("killed, and not ended %s later: %s", killedLimit, command)
	}
}
