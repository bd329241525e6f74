package filesystem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Runner starts the filesystems' tools.
type Runner interface {
	// Run runs a tool to its end. An exit code other than 0 is a result; an
	// error means that the tool did not run or did not end by itself.
	Run(ctx context.Context, command Command) (Result, error)
}

// Command is a tool and its arguments; no shell is involved.
type Command struct {
	// Tool is the program's name, and Package the Debian package that has it.
	Tool, Package string
	Args          []string
	// InheritedFile is inherited by the tool, so that a lock on it outlives the driver
	// as long as the tool does.
	InheritedFile *os.File
	// Uninterruptible is for a tool that leaves a half-done filesystem when it
	// is killed: neither the context nor the driver's death ends it.
	Uninterruptible bool
	// Idle runs the tool with the lowest CPU and I/O priorities, for work that no caller waits for.
	Idle bool
}

// Result is how a tool ended.
type Result struct {
	ExitCode int
	// Output is what it wrote, the middle left out when it was long.
	Output string
}

// ToolMissingError says which package to install; it is ErrToolMissing.
type ToolMissingError struct {
	Tool, Package string
}

func (e *ToolMissingError) Error() string {
	return fmt.Sprintf("%s is not installed: install the package %s", e.Tool, e.Package)
}

// Is makes it an ErrToolMissing.
func (e *ToolMissingError) Is(target error) bool { return target == ErrToolMissing }

// ToolError says that a tool failed, and its last words.
type ToolError struct {
	Tool     string
	ExitCode int
	Detail   string
}

func (e *ToolError) Error() string {
	return fmt.Sprintf("%s ended with exit code %d: %s", e.Tool, e.ExitCode, e.Detail)
}

func toolError(command Command, result Result) error {
	return &ToolError{Tool: command.Tool, ExitCode: result.ExitCode, Detail: lastLines(result.Output)}
}

// NewRunner returns the Runner that starts real processes.
func NewRunner() Runner { return processes{} }

type processes struct{}

const (
	// outputBytes bounds either end of the output that is kept.
	outputBytes = 16 << 10
	// terminationGrace is how long a tool may take to end in good order once it was
	// asked to; some buffers are written then.
	terminationGrace = 5 * time.Second
)

func (processes) Run(ctx context.Context, command Command) (Result, error) {
	path, err := Tool{command.Tool, command.Package}.Find()
	if err != nil {
		return Result{}, err
	}

	if command.Uninterruptible {
		ctx = context.WithoutCancel(ctx)
	}

	var output boundedOutput

	process := exec.CommandContext(ctx, path, command.Args...)
	process.Env = []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}
	process.Stdout = &output
	process.Stderr = &output
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	process.WaitDelay = terminationGrace
	// An own group keeps a Ctrl-C at the driver's terminal from the tool: the
	// driver decides.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	if command.InheritedFile != nil {
		process.ExtraFiles = []*os.File{command.InheritedFile}
	}

	if !command.Uninterruptible {
		// A tool must not go on writing when a killed driver's successor starts
		// the next one. The kernel sends this signal at the death of the thread
		// that forked, so that thread has to stay.
		process.SysProcAttr.Pdeathsig = syscall.SIGKILL

		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}

	if err = process.Start(); err == nil {
		if command.Idle {
			setIdlePriority(process.Process.Pid)
		}

		if !command.Uninterruptible {
			setOutOfMemoryVictim(process.Process.Pid)
		}

		err = process.Wait()
	}

	var exit *exec.ExitError

	switch {
	case ctx.Err() != nil:
		return Result{}, fmt.Errorf("%s was stopped: %w", command.Tool, context.Cause(ctx))
	case err == nil:
		return Result{Output: output.String()}, nil
	case errors.As(err, &exit) && exit.Exited():
		return Result{ExitCode: exit.ExitCode(), Output: output.String()}, nil
	default:
		return Result{}, fmt.Errorf("%s: %w: %s", command.Tool, err, lastLines(output.String()))
	}
}

// setIdlePriority gives a process the lowest priorities. It has its parent's until its exec: a child
// that the scheduler starves before that would hold up all other forks of the driver, and keep in
// use what the driver has open. Where that is not permitted, the tool's work is to be done still.
func setIdlePriority(pid int) {
	const (
		leastNice        = 19
		ioprioWhoProcess = 1
		ioprioIdle       = 3 << 13
	)

	_ = unix.Setpriority(unix.PRIO_PROCESS, pid, leastNice)
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(pid), ioprioIdle) //nolint:dogsled // it gives nothing
}

// setOutOfMemoryVictim has the kernel end the process first when memory runs out, and not the driver
// or a program that uses a volume: the memory of a check grows with the filesystem. Run then returns
// an error. A limit of the process (RLIMIT_DATA) would be no help: with little memory xfs_repair
// waits for ever, or reports damage that there is not.
func setOutOfMemoryVictim(pid int) {
	const first = "1000"

	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(first), 0) // the process may have ended
}

// boundedOutput keeps the beginning and the end of what is written to it. The
// beginning says what a tool set out to do, the end how it fared; between them
// a damaged filesystem can have megabytes of complaints.
type boundedOutput struct {
	head, tail []byte
	left       bool
}

func (b *boundedOutput) Write(p []byte) (int, error) {
	n := len(p)

	kept := min(outputBytes-len(b.head), n)
	b.head = append(b.head, p[:kept]...)
	p = p[kept:]

	b.tail = append(b.tail, p...)
	if len(b.tail) > 2*outputBytes {
		b.left = true
		b.tail = append(b.tail[:0], b.tail[len(b.tail)-outputBytes:]...)
	}

	return n, nil
}

func (b *boundedOutput) String() string {
	if !b.left {
		return string(b.head) + string(b.tail)
	}

	return string(b.head) + "\n[…]\n" + string(bytes.TrimSpace(b.tail))
}

const (
	detailLines = 12
	detailBytes = 2 << 10
)

// lastLines is what of a tool's output goes into messages. The steps that a check
// announces would push out what it has found, and a synopsis of its options why a tool refuses one.
func lastLines(output string) string {
	var lines []string

	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line == "" || isProgressLine(line) {
			continue
		}

		if len(lines) > 0 && strings.HasPrefix(strings.ToLower(line), "usage:") {
			break
		}

		lines = append(lines, line)
	}

	detail := strings.Join(lines[max(0, len(lines)-detailLines):], "; ")
	if len(detail) > detailBytes {
		detail = "…" + detail[len(detail)-detailBytes:]
	}

	return strings.ToValidUTF8(detail, "?")
}

// isProgressLine reports whether xfs_repair announces a step with the line.
func isProgressLine(line string) bool {
	return strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "Phase ") || strings.HasPrefix(line, "No modify flag set")
}
