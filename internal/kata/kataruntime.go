package kata

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outputWaitDelay is how long what the program started may keep its output after its end.
const outputWaitDelay = 250 * time.Millisecond

// kataRuntime has Kata's own program ask the guest.
type kataRuntime struct {
	path string
}

func (k *kataRuntime) stats(ctx context.Context, e Entry) ([]byte, error) {
	return k.run(ctx, func(string) error { return ErrNoAnswer }, "stats", "--volume-path", filepath.Clean(e.TargetPath))
}

func (k *kataRuntime) resize(ctx context.Context, e Entry, size int64) ([]byte, error) {
	blame := func(said string) error {
		// The second is what it says of a shim that doesn't know the call.
		if saysUnimplemented(said) || strings.Contains(said, "status code: 404") {
			return ErrUnimplemented
		}

		return ErrNoAnswer
	}

	return k.run(ctx, blame, "resize", "--volume-path", filepath.Clean(e.TargetPath), "--size", strconv.FormatInt(size, 10))
}

// run returns what the program wrote to its output. Where it fails, what it said
// decides whom to blame.
func (k *kataRuntime) run(ctx context.Context, classify func(said string) error, arguments ...string) ([]byte, error) {
	var output, complaint boundedBuffer

	process := exec.CommandContext(ctx, k.path, append([]string{"direct-volume"}, arguments...)...)
	process.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	process.Dir = "/"
	process.Stdout, process.Stderr = &output, &complaint
	// Whatever it started is in its group, and goes with it.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return unix.Kill(-process.Process.Pid, unix.SIGKILL) }
	process.WaitDelay = outputWaitDelay

	err := process.Run()
	said := slices.Concat(complaint.kept, output.kept)

	switch {
	case err != nil && !errors.Is(err, exec.ErrWaitDelay): // what it left behind may hold its output
		return nil, fmt.Errorf("%w: %s direct-volume %s: %s; it said %s; try it by hand, or ask the shim (no --kata-runtime)",
			classify(string(said)), k.path, arguments[0], err.Error(), excerpt(said))
	case output.tooLong:
		return nil, fmt.Errorf("%w: %s direct-volume %s: it says more than %d bytes", ErrNoAnswer, k.path, arguments[0], maxAnswerBytes)
	default:
		return output.kept, nil
	}
}

// boundedBuffer keeps the beginning of what is written to it.
type boundedBuffer struct {
	kept    []byte
	tooLong bool
}

func (l *boundedBuffer) Write(p []byte) (int, error) {
	fits := min(maxAnswerBytes-len(l.kept), len(p))
	l.kept = append(l.kept, p[:fits]...)
	l.tooLong = l.tooLong || fits < len(p)

	return len(p), nil
}
