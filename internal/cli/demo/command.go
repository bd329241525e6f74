package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// socketLimit is what fits into sockaddr_un, less the final NUL.
const socketLimit = 107

// CannotRunError says that nothing was tried, because this machine, user or
// command line does not allow it.
type CannotRunError struct{ reason string }

func (e *CannotRunError) Error() string { return e.reason }

// ExitCode is 2: usage, or cannot run.
func (*CannotRunError) ExitCode() int { return 2 }

var errInterrupted = errors.New("interrupted")

// NewCommand returns `demo`.
func NewCommand() *cobra.Command {
	var (
		parent string
		keep   bool
	)

	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a volume's whole life on this machine, with real volumes",
		Long: `Start the driver on a temporary state and pool and lead volumes through their whole
life, as an orchestrator would: created, attached, formatted, mounted, written to,
measured, grown, snapshotted and overwritten while mounted, restored larger beside
their source, cloned, snapshotted in a group, the driver killed and started again,
verified, unmounted, deleted; then prove that no mount, no loop device and no file is
left.

Needs root. Ctrl-C at any moment cleans up. Exit code 0: every step held, 1: one did
not or it was interrupted, 2: it cannot run here.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return &CannotRunError{err.Error()}
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkMachine(); err != nil {
				return err
			}

			root, err := makeRoot(parent)
			if err != nil {
				return err
			}

			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}

			ctx, release := untilSignal(cmd.Context())
			defer release()

			return newDemo(program, placesIn(root), keep, newReport(cmd.OutOrStdout())).run(ctx)
		},
	}
	cmd.Flags().StringVar(&parent, "dir", "", "work in a new directory in this one (default: the system's for temporary files)")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep that directory, with the driver's state and log")

	return cmd
}

// untilSignal returns a context that ends at the first signal. Further ones are
// swallowed: cleaning up is bounded in time, and being killed in the middle of it
// would leave mounts behind.
func untilSignal(parent context.Context) (context.Context, func()) {
	if parent == nil {
		parent = context.Background()
	}

	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)

	// `demo | head` must not kill it either. The report notices by itself that
	// nobody reads; the signal says less, since it comes for the socket of a
	// killed driver too.
	unheeded := make(chan os.Signal, 1)
	signal.Notify(unheeded, unix.SIGPIPE)

	go func() {
		select {
		case <-signals:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()

	// The signals stay swallowed: the process ends next, with the demo's exit
	// code and not by the last of many Ctrl-C.
	return ctx, func() { cancel(nil) }
}

// checkMachine says what is missing before anything is touched.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return &CannotRunError{"the demo mounts filesystems and attaches loop devices: run it as root (sudo)"}
	}

	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return &CannotRunError{"the kernel offers no loop devices (" + err.Error() + "): modprobe loop, or run outside this container"}
	}

	var missing []string

	for _, tool := range []string{"mkfs.ext4", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_repair"} {
		if !hasTool(tool) {
			missing = append(missing, tool)
		}
	}

	if len(missing) > 0 {
		return &CannotRunError{strings.Join(missing, ", ") + " missing: install e2fsprogs and xfsprogs, or use `make demo`"}
	}

	return nil
}

// hasTool looks where the driver's process will look.
func hasTool(name string) bool {
	if _, err := exec.LookPath(name); err == nil {
		return true
	}

	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return true
		}
	}

	return false
}

// makeRoot makes the demo's own directory. Its path has no symlinks, since the
// driver follows none below the kubelet's directory.
func makeRoot(parent string) (string, error) {
	root, err := os.MkdirTemp(parent, "touchstone-demo-")
	if err != nil {
		return "", &CannotRunError{"make a directory for the demo: " + err.Error()}
	}

	resolved, err := filepath.EvalSymlinks(root)
	if err == nil {
		resolved, err = filepath.Abs(resolved)
	}

	if err == nil && len(placesIn(resolved).socket) > socketLimit {
		err = &CannotRunError{"the socket's path would be too long: choose a shorter --dir"}
	}

	if err != nil {
		return "", errors.Join(err, os.Remove(root))
	}

	return resolved, nil
}
