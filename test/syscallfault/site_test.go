package syscallfault_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

const (
	nodeID = "node-under-test"
	// limit ends a wait that would hang; it is no verdict on speed.
	limit = 2 * time.Minute
	// refused is the exit code of a driver that can't start.
	refused = 2
)

var (
	errWrong = errors.New("the driver is wrong")
	errEnded = errors.New("the driver ended instead of starting")
)

// site is a driver's directories and the driver that runs there.
type site struct {
	*csiclient.Client

	binary, root, pool string
	injector           *injector

	// flags are those of the driver beside the usual ones.
	flags []string

	command *exec.Cmd
	tracer  *syscallfault.Tracer
	ended   chan struct{}
	model   *model
}

func newSite(t *testing.T, binary, pool string) *site {
	t.Helper()

	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	if pool == "" {
		pool = filepath.Join(root, "pool")
	} else {
		pool = filepath.Join(pool, filepath.Base(root))
	}

	s := &site{binary: binary, root: root, pool: pool, model: &model{}}
	s.injector = &injector{site: s}

	for _, directory := range []string{s.kubelet(), s.pool} {
		require.NoError(t, os.MkdirAll(directory, 0o750))
	}

	return s
}

func (s *site) state() string   { return filepath.Join(s.root, "state") }
func (s *site) kubelet() string { return filepath.Join(s.root, "kubelet") }
func (s *site) direct() string  { return filepath.Join(s.root, "direct-volumes") }
func (s *site) log() string     { return filepath.Join(s.root, "driver.log") }

// launch starts the driver and does not wait for it.
func (s *site) launch() error {
	log, err := os.OpenFile(s.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	endpoint := "unix://" + filepath.Join(s.root, "csi.sock")
	command := exec.Command(s.binary, append([]string{
		"serve", "--endpoint=" + endpoint, "--node-id=" + nodeID,
		"--state-dir=" + s.state(), "--pool=default=" + s.pool, "--kubelet-dir=" + s.kubelet(),
		"--direct-volume-root=" + s.direct(), "--shim-root=" + filepath.Join(s.root, "shims"),
		"--overcommit=20", "--coalesce-window=1ms", "--v=2",
	}, s.flags...)...)
	command.Stdout, command.Stderr = log, log

	tracer, err := syscallfault.Start(command, s.injector.decide)
	if err != nil {
		return err
	}

	s.command, s.tracer, s.ended = command, tracer, make(chan struct{})

	go func(ended chan struct{}) {
		defer close(ended)
		_ = command.Wait() // ProcessState has the result
	}(s.ended)

	s.Client, err = csiclient.Connect(endpoint)

	return err
}

// awaitReady fails if the driver ends instead.
func (s *site) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	ready := make(chan error, 1)
	go func() { ready <- s.WaitReady(ctx) }()

	select {
	case err := <-ready:
		return err
	case <-s.ended:
		cancel()
		<-ready

		return fmt.Errorf("%w: %s", errEnded, s.command.ProcessState)
	}
}

func (s *site) start() error {
	if err := s.launch(); err != nil {
		return err
	}

	return s.awaitReady()
}

// end sends the signal and returns the process's state when it has ended.
func (s *site) end(by syscall.Signal) (*os.ProcessState, error) {
	if s.command == nil {
		return nil, nil
	}

	_ = s.command.Process.Signal(by) // it may have ended by itself

	select {
	case <-s.ended:
	case <-time.After(limit):
		_ = s.command.Process.Kill()

		return nil, fmt.Errorf("%w: it does not end within %s after %s", errWrong, limit, by)
	}

	state := s.command.ProcessState
	s.command = nil

	return state, s.Close()
}

// restart terminates the driver, verifies its state and starts it again.
func (s *site) restart(by syscall.Signal) error {
	ended, err := s.end(by)
	if err != nil {
		return err
	}

	if by == syscall.SIGTERM && ended != nil && !ended.Success() && ended.ExitCode() != refused {
		return fmt.Errorf("%w: after SIGTERM it ended with: %s", errWrong, ended)
	}

	if err := s.verifyState(); err != nil {
		return err
	}

	return s.start()
}

func (s *site) verifyState() error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	output, err := exec.CommandContext(ctx, s.binary, "state", "verify", "--state-dir="+s.state()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("state verify: %w: %s", err, output)
	}

	return nil
}

// close ends the driver and takes away what a failed injection has left.
func (s *site) close(t *testing.T) {
	t.Helper()

	if _, err := s.end(syscall.SIGKILL); err != nil {
		t.Error(err)
	}

	devices := s.devices(t)

	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (bool, bool) { return !beneath(m.Mountpoint, s.root), false })
	require.NoError(t, err)

	for _, each := range slices.Backward(mounts) {
		thaw(each.Mountpoint)

		if err := unix.Unmount(each.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Logf("unmount %s: %v", each.Mountpoint, err)
		}
	}

	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	for _, device := range devices {
		if err := loop.NewLoops(loop.LoopsOptions{}).Detach(ctx, device.Number); err != nil {
			t.Logf("detach %s: %v", device.Path, err)
		}
	}

	require.NoError(t, os.RemoveAll(s.pool))
}

// lastLog is the end of the driver's log, for a failure.
func (s *site) lastLog() string {
	const enough = 2 << 10

	log, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}

	return string(log[max(0, len(log)-enough):])
}

// settle leaves the work that a start does in the background some time.
func (s *site) settle() error {
	const enough = 50 * time.Millisecond

	select {
	case <-s.ended:
		return fmt.Errorf("%w: %s", errEnded, s.command.ProcessState)
	case <-time.After(enough):
		return nil
	}
}

// thaw is for a filesystem that a killed driver has frozen: unmounted like that it
// would stay attached, out of reach.
func thaw(path string) {
	root, err := os.Open(path)
	if err != nil {
		return
	}
	defer root.Close()

	_ = filesystem.Thaw(root) // most are not frozen
}
