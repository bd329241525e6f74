package ctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
)

// Exit codes of every touchstone command.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
)

// WithCode gives an error the exit code with which the process ends; nil stays nil.
func WithCode(code int, err error) error {
	if err != nil {
		return &coded{err, code}
	}

	return nil
}

// usage returns an error of the command line, not of the driver.
func usage(err error) error { return WithCode(exitUsage, err) }

// coded is an error with an exit code. That of a command that checks health is 1 only for an
// unhealthy result, and 2 if there is no result.
type coded struct {
	error

	code int
}

// ExitCode is 1 or 2.
func (e *coded) ExitCode() int { return e.code }

// Unwrap returns the cause.
func (e *coded) Unwrap() error { return e.error }

func unhealthy(err error) error { return &coded{err, exitFailed} }

// undetermined gives an error exit code 2, unless it has an exit code of its own.
func undetermined(err error) error {
	if errors.As(err, new(*coded)) {
		return err
	}

	return usage(err)
}

// ExitCode returns the process's exit code for err: 0 for nil, the result of the error's
// method ExitCode() int if it has one, else 1.
func ExitCode(err error) int {
	var coded interface{ ExitCode() int }

	switch {
	case err == nil:
		return exitGood
	case errors.As(err, &coded):
		return coded.ExitCode()
	default:
		return exitFailed
	}
}

// unserved are the reasons why a driver lacks a service.
var unserved = map[string]string{
	calls.ServiceName:      "the driver records no calls: start it with --call-log=ring, or with a file",
	faults.ServiceName:     "the driver has no fault rules: start it with --enable-faults or --faults",
	strict.ServiceName:     "the driver does not check the CO: start it with --strict",
	health.ServiceName:     "the driver has no report of its volumes, and no checks on demand: it is not Touchstone",
	kata.ServiceName:       "the driver lists no direct volumes: it is not Touchstone, or serves no node",
	persistent.ServiceName: "the volume is mounted, but no start of the driver mounts it again: it is not Touchstone, or simulates its node",
	progress.ServiceName:   "the driver lists no copies: it is not Touchstone, or serves no controller",
}

// explain returns an error in the words of the person at the terminal: names in place of ids, and what to
// do about a service or a driver that is not there.
func (s *settings) explain(ctx context.Context, endpoint string, known knownNames, err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.Unimplemented:
		for service, why := range unserved {
			if strings.Contains(err.Error(), "unknown service "+service) {
				return &explained{err, why}
			}
		}
	case codes.Unavailable, codes.DeadlineExceeded:
		err = explainConnection(ctx, endpoint, err)
	default:
	}

	return &explained{err, known.in(err.Error())}
}

// explained is an error with another message.
type explained struct {
	error

	message string
}

// Error implements error.
func (e *explained) Error() string { return e.message }

// Unwrap returns the cause.
func (e *explained) Unwrap() error { return e.error }

// explainConnection adds the remedy to the error of a driver that cannot be reached, or not in time. One that can be
// has given the error itself.
func explainConnection(ctx context.Context, endpoint string, err error) error {
	network, address := "tcp", endpoint
	if path, isSocket := strings.CutPrefix(endpoint, "unix:"); isSocket {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}

	info, _ := os.Stat(address)
	connection, failure := (&net.Dialer{}).DialContext(ctx, network, address)

	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w; --timeout has passed, and the driver may continue: repeat the command with a longer one", err)
	case failure == nil:
		return errors.Join(err, connection.Close())
	case network == "tcp" && ctx.Err() == nil:
		return fmt.Errorf("%w; --endpoint %s has to be where a CSI driver listens: its socket, or HOST:PORT", err, endpoint)
	case info != nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w; %s is no socket: --endpoint names the driver's", err, address)
	case errors.Is(failure, fs.ErrNotExist):
		return fmt.Errorf("%w; there is no socket: is the driver running? `touchstone serve` or `systemctl start touchstone` "+
			"starts it, --endpoint names another socket", err)
	case errors.Is(failure, unix.ECONNREFUSED):
		return fmt.Errorf("%w; nothing listens there any more: start the driver again", err)
	case errors.Is(failure, fs.ErrPermission):
		return fmt.Errorf("%w; the socket belongs to another user: use root (sudo)", err)
	default:
		return err
	}
}

// The remedies of the driver's messages, which are for orchestrators.
var (
	publishAgain = regexp.MustCompile(`(restart its pod|stage it again|stage or publish it again): \S+` +
		`|unpublish and unstage it, then stage it again|unstage it and stage it again`)
	unpublishFirst = regexp.MustCompile(`unpublish it( there)? first|unpublish and unstage it first`)
)

// forPeople returns a driver's message with the volume in its commands, and with commands in place of its other
// remedies for a volume that the mount command has staged. What an orchestrator has published is not to be
// unmounted by hand.
func forPeople(known health.VolumeReport, message string) string {
	message = strings.ReplaceAll(message, rescueCommand(health.VolumeReport{ID: oneVolume.text}), rescueCommand(known))
	if !mountedByHand(known) {
		return message
	}

	message = publishAgain.ReplaceAllLiteralString(message, mountAgain(known))

	return unpublishFirst.ReplaceAllLiteralString(message, strings.Join(umountCommands(known), and))
}

// mountedByHand reports whether the mount command has staged the volume.
func mountedByHand(known health.VolumeReport) bool {
	return filepath.Base(known.Staged) == stagingPrefix+known.ID
}

// nameOf returns the volume's name, or its id, as a word of a command.
func nameOf(known health.VolumeReport) string { return shellWord(cmp.Or(known.Name, known.ID)) }

// sortedPaths returns the paths of a volume, each before those beneath it.
func sortedPaths(known health.VolumeReport) []string {
	return slices.Sorted(slices.Values(known.Published))
}

// umountCommands unmount the volume, from each of its paths: umount refuses one that has several.
func umountCommands(known health.VolumeReport) []string {
	if len(known.Published) <= 1 {
		return []string{"touchstone ctl volume umount " + nameOf(known)}
	}

	paths := sortedPaths(known)
	slices.Reverse(paths)

	return mapped(paths, func(path string) string { return "touchstone ctl volume umount " + shellWord(path) })
}

// mountAgain returns the commands that stage the volume again, with others while it is not staged.
func mountAgain(known health.VolumeReport, meanwhile ...string) string {
	mounts := mapped(sortedPaths(known), func(path string) string { return mountCommand(known, path) })

	return strings.Join(slices.Concat(umountCommands(known), meanwhile, mounts), and)
}

// stageAgain is the remedy of a filesystem that grows when it is staged.
func stageAgain(known health.VolumeReport) string {
	if mountedByHand(known) {
		return "run " + mountAgain(known)
	}

	return "have the orchestrator unstage it and stage it again"
}

// and joins commands of which each needs the one before it.
const and = " && "

// mountCommand returns the command that mounts the volume at a path as it is mounted there.
func mountCommand(known health.VolumeReport, path string) string {
	command := "touchstone ctl volume mount " + nameOf(known) + " " + shellWord(path)

	if mode := known.AccessMode; mode != "" && mode != defaultMode.String() {
		command += " --access-mode " + mode
	}

	if slices.Contains(known.ReadOnly, path) {
		command += " --readonly"
	}

	if slices.Contains(known.Persistent, path) {
		command += " --persist"
	}

	return command + strings.Repeat(" --"+mountFlag+" FLAG", known.MountFlags) // The driver keeps them to itself.
}

// rescueCommand copies a volume whose image was deleted to a FILE.
func rescueCommand(known health.VolumeReport) string {
	return "touchstone ctl volume rescue " + nameOf(known) + " FILE"
}

// explainPath adds the flag that allows a path which the driver refused, or the command that ends the
// mount at another one.
func explainPath(err error, known health.VolumeReport, path string) error {
	if status.Code(err) == codes.InvalidArgument && strings.Contains(err.Error(), "must be beneath") {
		return fmt.Errorf("%w; start the driver with --allow-path %s to mount there", err, filepath.Dir(path))
	}

	return &explained{err, forPeople(known, err.Error())}
}
