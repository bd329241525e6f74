package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
)

// socketLimit is the longest path in a sockaddr_un, without the final NUL.
const socketLimit = 107

var (
	errRequirement = errors.New("the demo mounts filesystems and attaches loop devices")
	errSocketPath  = errors.New("the socket's path would be too long: choose a shorter --dir")
	errShellPath   = errors.New("its commands are lines of sh: choose a --dir without spaces and characters of the shell")
)

// cannotRun gives an error the exit code for what this machine, user or command line does not allow.
func cannotRun(err error) error { return ctl.WithCode(2, err) }

// NewCommand returns `demo`.
func NewCommand() *cobra.Command {
	var (
		parent string
		keep   bool
	)

	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the lifecycle of volumes on this machine, with real volumes",
		Long: `Start the driver on a temporary state and pool, and run the commands of a volume's
lifecycle as a person would type them: volumes are created, mounted, written to,
measured, grown, snapshotted and overwritten while mounted, restored larger beside their
source, cloned, and snapshotted in a group; the driver is killed and restarted; the
volumes are verified, unmounted and deleted. Finally verify that no mount, no loop
device and no file is left.

Needs root. Ctrl-C cleans up at any time. Exit code 0: every step succeeded, 1: one
failed or was interrupted, 2: the demo cannot run here.`,
		Args: func(cmd *cobra.Command, args []string) error { return cannotRun(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			btrfs, err := checkMachine(cmd.Context())
			if err != nil {
				return cannotRun(err)
			}
			root, err := makeRoot(parent)
			if err != nil {
				return cannotRun(err)
			}

			// The signals stay ignored after the first one: cleaning up is limited in time,
			// and its interruption would leave mounts behind.
			ctx, _ := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			// `demo | head` must not kill it either: the next line returns the write's error.
			signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)

			return newDemo(root, cmd.OutOrStdout()).run(ctx, btrfs, keep)
		},
	}
	cmd.Flags().StringVar(&parent, "dir", "", "parent of the demo's temporary directory (default: the system's)")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep that directory, with the driver's state and log")

	return cmd
}

// checkMachine checks the requirements before anything is changed, and returns whether the
// machine has btrfs, too.
func checkMachine(ctx context.Context) (btrfs bool, err error) {
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return false, fmt.Errorf("the kernel offers no loop devices (%w): modprobe loop, or run outside this container", err)
	}

	report := doctor.Examine(ctx, doctor.Config{
		Mode: doctor.ModeAll, WithoutDriver: true, PoolImageBytes: poolBytes,
		Only: []string{"privileges", "filesystem", "tools"},
	})
	btrfs = true
	for _, finding := range report.Findings {
		if finding.Verdict == doctor.Problem {
			return false, fmt.Errorf("%w: %s: %s", errRequirement, finding.Seen, finding.Cure)
		}
		btrfs = btrfs && (finding.Object != "btrfs" || finding.Verdict == doctor.OK)
	}
	return btrfs, nil
}

// makeRoot makes the demo's directory. Its path has no symlinks, since the driver follows
// none below the kubelet's directory.
func makeRoot(parent string) (string, error) {
	parent, err := filepath.Abs(cmp.Or(parent, os.TempDir()))
	if err != nil {
		return "", err
	}
	if parent, err = filepath.EvalSymlinks(parent); err != nil {
		return "", err
	}
	if strings.ContainsAny(parent, " \t\n\\\"'`$&;|<>()*?[]#~") {
		return "", fmt.Errorf("%s: %w", parent, errShellPath)
	}

	root, err := os.MkdirTemp(parent, "touchstone-demo-")
	if err != nil || len(filepath.Join(root, socketName)) <= socketLimit {
		return root, err
	}
	return root, errors.Join(errSocketPath, os.Remove(root))
}
