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

// socketLimit is the longest path in a sockaddr_un, without the final NUL.
const socketLimit = 107

// CannotRunError means that the demo did not start, because this machine, user or command
// line does not allow it.
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
		Short: "Show the lifecycle of volumes on this machine, with real volumes",
		Long: `Start the driver on a temporary state and pool, and make all calls of a volume's
lifecycle as an orchestrator does: volumes are created, attached, formatted, mounted,
written to, measured, grown, snapshotted and overwritten while mounted, restored larger
beside their source, cloned, and snapshotted in a group; the driver is killed and
restarted; the volumes are verified, unmounted and deleted. Finally verify that no mount,
no loop device and no file is left.

Needs root. Ctrl-C cleans up at any time. Exit code 0: every step succeeded, 1: one
failed or was interrupted, 2: the demo cannot run here.`,
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

			ctx, release := cancelOnSignal(cmd.Context())
			defer release()

			return newDemo(program, workPathsIn(root), keep, newReport(cmd.OutOrStdout())).run(ctx)
		},
	}
	cmd.Flags().StringVar(&parent, "dir", "", "parent of the demo's temporary directory (default: the system's)")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep that directory, with the driver's state and log")

	return cmd
}

// cancelOnSignal returns a context that ends at the first signal. It ignores further ones:
// cleaning up is limited in time, and its interruption would leave mounts behind.
func cancelOnSignal(parent context.Context) (context.Context, func()) {
	if parent == nil {
		parent = context.Background()
	}

	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)

	// `demo | head` must not kill it either. The report's write returns the error;
	// SIGPIPE is also raised for the socket of a killed driver.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, unix.SIGPIPE)

	go func() {
		select {
		case <-signals:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()

	// The signals stay ignored: the process exits next, with the demo's exit code.
	return ctx, func() { cancel(nil) }
}

// checkMachine checks the requirements before anything is changed.
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

// hasTool searches the directories that the driver's process searches.
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

// makeRoot makes the demo's directory. Its path has no symlinks, since the driver follows
// none below the kubelet's directory.
func makeRoot(parent string) (string, error) {
	root, err := os.MkdirTemp(parent, "touchstone-demo-")
	if err != nil {
		return "", &CannotRunError{"make a directory for the demo: " + err.Error()}
	}

	resolved, err := filepath.EvalSymlinks(root)
	if err == nil {
		resolved, err = filepath.Abs(resolved)
	}

	if err == nil && len(workPathsIn(resolved).socket) > socketLimit {
		err = &CannotRunError{"the socket's path would be too long: choose a shorter --dir"}
	}

	if err != nil {
		return "", errors.Join(err, os.Remove(root))
	}

	return resolved, nil
}
