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

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// ErrChildFailed is returned if the child process returned no report.
var ErrChildFailed = errors.New("the checks could not be run in a child process")

// killTimeout is how long a killed child may take to exit.
const killTimeout = time.Second

// ExamineInChild runs the checks in a child process: this program with the given arguments,
// with which it calls ServeChild. A child that cannot exit, because the kernel waits for
// storage that does not respond, is abandoned. Error: ErrChildFailed, also for the end of ctx.
func ExamineInChild(ctx context.Context, c Config, arguments ...string) (report Report, err error) {
	defer errdefs.Wrapf(&err, "%w", ErrChildFailed)

	given, err := json.Marshal(c)
	if err != nil {
		return report, err
	}

	// Not CommandContext: its Wait would block on a child that cannot exit.
	child := exec.Command("/proc/self/exe", arguments...) //nolint:noctx // see above
	child.Stdin = bytes.NewReader(given)

	said, err := child.StdoutPipe()
	if err != nil {
		return report, err
	}

	if err := child.Start(); err != nil {
		return report, err
	}

	defer killChild(ctx, child, said)

	return operation.Await(ctx, func() (report Report, err error) {
		// One document, without waiting for the end of the pipe.
		err = json.NewDecoder(said).Decode(&report)

		return report, err
	})
}

// killChild kills the child and waits for a limited time. The loop device of a trial has
// autoclear and detaches itself.
func killChild(ctx context.Context, child *exec.Cmd, said io.Closer) {
	_ = child.Process.Kill()
	_ = said.Close()

	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	_ = operation.AwaitEnd(limited, func() { _ = child.Wait() })
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
