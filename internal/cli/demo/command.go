package demo

import (
	"errors"
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

// cannotRunError means that this machine, user or command line does not allow the demo.
type cannotRunError string

func (e cannotRunError) Error() string { return string(e) }

// ExitCode is 2: usage, or cannot run.
func (cannotRunError) ExitCode() int { return 2 }

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
				return cannotRunError(err.Error())
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

			// The signals stay ignored after the first one: cleaning up is limited in time,
			// and its interruption would leave mounts behind.
			ctx, _ := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			// `demo | head` must not kill it either: the report returns the write's error.
			signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)

			return newDemo(root, keep, newReport(cmd.OutOrStdout())).run(ctx)
		},
	}
	cmd.Flags().StringVar(&parent, "dir", "", "parent of the demo's temporary directory (default: the system's)")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep that directory, with the driver's state and log")

	return cmd
}

// checkMachine checks the requirements before anything is changed. It appends the usual
// directories of mkfs and fsck to PATH, for the driver as well.
func checkMachine() error {
	if os.Geteuid() != 0 {
		return cannotRunError("the demo mounts filesystems and attaches loop devices: run it as root (sudo)")
	}

	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return cannotRunError("the kernel offers no loop devices (" + err.Error() + "): modprobe loop, or run outside this container")
	}

	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return cannotRunError("extend PATH: " + err.Error())
	}

	var missing []string
	for _, tool := range []string{"mkfs.ext4", "e2fsck", "resize2fs", "mkfs.xfs", "xfs_repair"} {
		if !hasTool(tool) {
			missing = append(missing, tool)
		}
	}

	if len(missing) > 0 {
		return cannotRunError(strings.Join(missing, ", ") + " missing: install e2fsprogs and xfsprogs, or use `make demo`")
	}
	return nil
}

func hasTool(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// makeRoot makes the demo's directory. Its path has no symlinks, since the driver follows
// none below the kubelet's directory.
func makeRoot(parent string) (string, error) {
	root, err := os.MkdirTemp(parent, "touchstone-demo-")
	if err != nil {
		return "", cannotRunError("make a directory for the demo: " + err.Error())
	}

	resolved, err := filepath.EvalSymlinks(root)
	if err == nil {
		resolved, err = filepath.Abs(resolved)
	}
	if err == nil && len(socketIn(resolved)) > socketLimit {
		err = cannotRunError("the socket's path would be too long: choose a shorter --dir")
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(root))
	}
	return resolved, nil
}
