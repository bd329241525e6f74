// Command touchstone is the CSI driver and its tools: see `touchstone --help`.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
)

// Exit codes of every command.
const (
	exitGood = 0
	// exitNotWell: a volume or check is unhealthy, or the command failed.
	exitNotWell = 1
	// exitCannot: wrong usage, or the command cannot run at all.
	exitCannot = 2
)

var errUsage = errors.New("usage")

// init keeps the main goroutine on the main thread, and all others from it: the kernel gives the signals
// of a process to its main thread, and would not deliver them while that waits for a disk that hangs.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // later it may run on another thread

func main() {
	code := make(chan int)

	go func() { code <- run(context.Background(), arguments(os.Args), os.Stdout, os.Stderr) }()

	os.Exit(<-code)
}

// run is main with injected arguments and outputs, for tests.
func run(ctx context.Context, args []string, out, problems io.Writer) int {
	root := newRootCommand() //nolint:contextcheck // cobra passes the context to commands
	printed := &output{Writer: out}

	root.SetOut(printed)
	root.SetErr(problems)

	err := ctl.Execute(ctx, root, withDefaultCommand(args))
	if err == nil && printed.err != nil {
		err = exitWith(exitCannot, fmt.Errorf("print: %w", printed.err))
	}

	if err != nil && err.Error() != "" {
		_, _ = fmt.Fprintln(problems, "touchstone:", printable(err))
	}

	return ctl.ExitCode(err)
}

// output keeps the first error of writing, so that no command succeeds whose answer is not there.
type output struct {
	io.Writer

	err error
}

// Write implements io.Writer.
func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	o.err = cmp.Or(o.err, err)

	return n, err
}

// Fd returns the descriptor of a file, and none of another writer.
func (o *output) Fd() uintptr {
	if file, ok := o.Writer.(*os.File); ok {
		return file.Fd()
	}

	return ^uintptr(0)
}

// exitWith returns nil for nil. Of what an ordinary user may not do it says how that user can.
func exitWith(code int, err error) error {
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		err = fmt.Errorf("%w; run it as root (sudo), or with directories of your own: --state-dir and --pool, "+
			"of serve also --endpoint, with --simulate-node if it is to mount nothing", err)
	}

	return ctl.WithCode(code, err)
}

// withDefaultCommand inserts `serve` before arguments that begin with a flag, so that
// manifests may omit it.
func withDefaultCommand(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"serve"}
	case args[0] == "-h" || args[0] == "--help" || args[0] == "--version" || !strings.HasPrefix(args[0], "-"):
		return args
	default:
		return append([]string{"serve"}, args...)
	}
}

// usageError marks an error of the command line.
func usageError(command *cobra.Command, err error) error {
	return exitWith(exitCannot, fmt.Errorf("%w (see %s --help)", err, command.CommandPath()))
}

// noArgs is cobra.NoArgs with the exit code of wrong usage.
func noArgs(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(command, fmt.Errorf("%w: %q is one argument too many", errUsage, args[0]))
	}

	return nil
}

// printable is the message of err, in which a driver may have put anything.
func printable(err error) string {
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = ctl.Printable(lines[i])
	}

	return strings.Join(lines, "\n")
}
