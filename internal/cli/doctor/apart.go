package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// ErrChildFailed is returned if the child process returned no report.
var ErrChildFailed = errors.New("the checks could not be run in a child process")

// farewell is how long a killed child may take to exit.
const killTimeout = time.Second

// ExamineInChild runs the checks in a child process: this program with the given arguments,
// with which it calls ServeChild. A child that cannot exit, because the kernel waits for
// storage that does not respond, is abandoned. Errors: ErrChildFailed, or ctx's.
func ExamineInChild(ctx context.Context, c Config, arguments ...string) (Report, error) {
	given, err := json.Marshal(c)
	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrChildFailed, err)
	}

	// Not CommandContext: its Wait would block on a child that cannot exit.
	child := exec.Command("/proc/self/exe", arguments...) //nolint:noctx // see above
	child.Stdin = bytes.NewReader(given)

	said, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}

	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrChildFailed, err)
	}

	defer killChild(child, said)

	done := make(chan outcome, 1)

	go func() {
		var got outcome

		// One document, without waiting for the end of the pipe.
		got.err = json.NewDecoder(said).Decode(&got.report)
		done <- got
	}()

	select {
	case got := <-done:
		if got.err != nil {
			got.err = fmt.Errorf("%w: %w", ErrChildFailed, got.err)
		}

		return got.report, got.err
	case <-ctx.Done():
		return Report{}, fmt.Errorf("examine: %w", context.Cause(ctx))
	}
}

type outcome struct {
	report Report
	err    error
}

// killChild kills the child and waits for a limited time. The loop device of a trial has
// autoclear and detaches itself.
func killChild(child *exec.Cmd, said io.Closer) {
	gone := make(chan struct{})

	_ = child.Process.Kill()
	_ = said.Close()

	go func() {
		_ = child.Wait()

		close(gone)
	}()

	limit := time.NewTimer(killTimeout)
	defer limit.Stop()

	select {
	case <-gone:
	case <-limit.C:
	}
}

// ServeChild runs in the child process: it reads a Config from in, runs the checks, and
// writes the Report to out, both as JSON.
func ServeChild(ctx context.Context, in io.Reader, out io.Writer) error {
	var c Config
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("read the configuration of the checks: %w", err)
	}

	if err := json.NewEncoder(out).Encode(Examine(ctx, c)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}

	return nil
}
