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

// ErrChildFailed is returned where the child that was to examine has said nothing.
var ErrChildFailed = errors.New("the examination did not come about")

// farewell is how long a child may take to be gone.
const killTimeout = time.Second

// ExamineInChild has a child make the examination, a process of this very program that runs
// ServeChild when it gets these arguments, and returns what that says. A child that can't
// end, because the kernel waits for what hangs, is left behind, and ends when that
// does. Errors: ErrChildFailed, or ctx's.
func ExamineInChild(ctx context.Context, c Config, arguments ...string) (Report, error) {
	given, err := json.Marshal(c)
	if err != nil {
		return Report{}, fmt.Errorf("%w: %w", ErrChildFailed, err)
	}

	// Not of this context, whose end would be waited for.
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

// leave ends the child, if that is possible. A loop device that it has just tried
// detaches itself.
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

// ServeChild is the child's part: it reads a Config from in, examines, and writes the
// Report to out, both as JSON.
func ServeChild(ctx context.Context, in io.Reader, out io.Writer) error {
	var c Config
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("read what to examine: %w", err)
	}

	if err := json.NewEncoder(out).Encode(Examine(ctx, c)); err != nil {
		return fmt.Errorf("say what was found: %w", err)
	}

	return nil
}
