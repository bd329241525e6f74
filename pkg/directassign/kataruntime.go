package directassign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// letGo is how long what the program started may keep its output after its end.
const letGo = 250 * time.Millisecond

// kataRuntime has Kata's own program ask the guest.
type kataRuntime struct {
	path string
}

func (k *kataRuntime) stats(ctx context.Context, e Entry) ([]byte, error) {
	answer, said, err := k.run(ctx, "stats", "--volume-path", filepath.Clean(e.TargetPath))
	if err != nil {
		return nil, fmt.Errorf("%w: %v; it said %s", ErrNoAnswer, err, excerpt(said)) //nolint:errorlint // its timeout isn't the caller's
	}

	return answer, nil
}

func (k *kataRuntime) resize(ctx context.Context, e Entry, size int64) ([]byte, error) {
	answer, said, err := k.run(ctx, "resize", "--volume-path", filepath.Clean(e.TargetPath), "--size", strconv.FormatInt(size, 10))
	if err == nil {
		return answer, nil
	}

	kind := ErrNoAnswer
	if text := string(said); saysUnimplemented(text) || strings.Contains(text, "status code: 404") {
		kind = ErrUnimplemented
	}

	return nil, fmt.Errorf("%w: %v; it said %s", kind, err, excerpt(said)) //nolint:errorlint // see above
}

// run returns what the program wrote to its output, and with an error all that it
// wrote.
func (k *kataRuntime) run(ctx context.Context, verb string, arguments ...string) (answer, said []byte, err error) {
	var output, complaint limited

	process := exec.CommandContext(ctx, k.path, append([]string{"direct-volume", verb}, arguments...)...)
	process.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	process.Dir = "/"
	process.Stdout, process.Stderr = &output, &complaint
	// Whatever it started is in its group, and goes with it.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	process.Cancel = func() error { return unix.Kill(-process.Process.Pid, unix.SIGKILL) }
	process.WaitDelay = letGo

	err = process.Run()

	// That something it left behind holds its output is no failure of its own.
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}

	switch {
	case err != nil:
		return nil, append(complaint.kept, output.kept...), fmt.Errorf("%s direct-volume %s: %w", k.path, verb, err)
	case output.tooLong:
		return nil, output.kept, fmt.Errorf("%s direct-volume %s: it wrote more than %d bytes", k.path, verb, maxAnswerBytes)
	default:
		return output.kept, nil, nil
	}
}

// limited keeps the beginning of what is written to it.
type limited struct {
	kept    []byte
	tooLong bool
}

func (l *limited) Write(p []byte) (int, error) {
	room := min(maxAnswerBytes-len(l.kept), len(p))
	l.kept = append(l.kept, p[:room]...)
	l.tooLong = l.tooLong || room < len(p)

	return len(p), nil
}
