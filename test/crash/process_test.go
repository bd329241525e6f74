package crash_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/kernellog"
)

const (
	nodeID = "node-under-test"
	// hangs only ends a test that would hang; it is no verdict on speed.
	hangs = time.Minute
)

// site is where a driver lives, and all that outlives it.
type site struct {
	binary, root string
	// poolAt is where the pool is if not beneath root, and reflinks says whether
	// copies are instant there.
	poolAt   string
	reflinks bool
	// limits says whether the sizes of directory volumes are enforced there.
	limits bool
	// disk is the directory with state and pool if they are on a disk of their own.
	disk string
	// memory is what the driver may take; nil is no limit.
	memory *memoryGroup
	// kernel is what the kernel logs from the site's beginning on.
	kernel *kernellog.Log
}

func (s *site) state() string   { return filepath.Join(cmp.Or(s.disk, s.root), "state") }
func (s *site) kubelet() string { return filepath.Join(s.root, "kubelet") }
func (s *site) log() string     { return filepath.Join(s.root, "driver.log") }

func (s *site) pool() string {
	if s.poolAt != "" {
		return s.poolAt
	}

	return filepath.Join(cmp.Or(s.disk, s.root), "pool")
}

// build makes the binary that is then killed.
func build(t *testing.T) string {
	t.Helper()

	binary := filepath.Join(t.TempDir(), "touchstone")
	require.NoError(t, child.BuildDriver(binary))

	return binary
}

func newSite(t *testing.T, binary string) *site {
	t.Helper()

	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)

	s := &site{binary: binary, root: root}
	require.NoError(t, os.MkdirAll(s.kubelet(), 0o750))

	s.kernel, err = kernellog.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.kernel.Close()) })

	return s
}

// process is one run of the driver.
type process struct {
	*csiclient.Client

	// closed is the client's; calls may still be on their way through it.
	closed  bool
	command *exec.Cmd
	ended   chan struct{}
	// killed is set before the kill: from then on calls may fail.
	killed atomic.Bool
	// starved says that the kernel was left to kill it, and struck that the test did.
	starved, struck atomic.Bool
	memory          *memoryGroup
	// exhausted is closed when the memory is free again.
	exhausted chan struct{}
}

func (s *site) start(t *testing.T, watch grpc.UnaryClientInterceptor) *process {
	t.Helper()

	log, err := os.OpenFile(s.log(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	require.NoError(t, err)

	defer log.Close()

	endpoint := "unix://" + filepath.Join(s.root, "csi.sock")
	// Not the test's context: a driver is ended by who started it.
	arguments := s.memory.entered([]string{
		s.binary, "serve", "--endpoint=" + endpoint, "--node-id=" + nodeID,
		"--state-dir=" + s.state(), "--pool=default=" + s.pool(), "--kubelet-dir=" + s.kubelet(),
		// Each xfs provisions 300 MiB and uses a few. Most of an expansion is
		// waiting for others, where a kill shows nothing. A periodic check that falls
		// into an audit has a copy in scratch.
		"--overcommit=20", "--coalesce-window=20ms", "--check-period=0", "--v=2",
	})
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Stdout, command.Stderr = log, log
	require.NoError(t, child.Start(command))

	client, err := csiclient.Connect(endpoint, append(awaitcall.Options(t), grpc.WithChainUnaryInterceptor(watch))...)
	require.NoError(t, err)

	p := &process{Client: client, command: command, ended: make(chan struct{}), memory: s.memory, exhausted: make(chan struct{})}

	go func() {
		defer close(p.ended)
		_ = command.Wait() // ProcessState says it
	}()

	t.Cleanup(func() { p.kill(t) })

	return p
}

// waitReady fails when the driver ends instead of getting ready.
func (p *process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hangs)
	defer cancel()

	ready := make(chan error, 1)
	go func() { ready <- p.WaitReady(ctx) }()

	select {
	case err := <-ready:
		return err
	case <-p.ended:
		cancel()
		<-ready

		return fmt.Errorf("%w: %s", errDied, p.command.ProcessState)
	}
}

var errDied = errors.New("the driver ended by itself")

// strike sends the signal and returns at once.
func (p *process) strike() {
	p.killed.Store(true)
	p.struck.Store(true)

	_ = p.command.Process.Kill() // it may be over already
}

// kill returns when the process is gone, and fails if it was not the kill that
// ended it.
func (p *process) kill(t *testing.T) {
	t.Helper()

	p.strike()
	p.end(t, func(status syscall.WaitStatus) bool { return status.Signal() == syscall.SIGKILL })
}

// terminate ends the driver as Kubernetes does.
func (p *process) terminate(t *testing.T) {
	t.Helper()

	require.NoError(t, p.command.Process.Signal(syscall.SIGTERM))
	p.end(t, func(status syscall.WaitStatus) bool { return status.Exited() && status.ExitStatus() == 0 })
}

func (p *process) end(t *testing.T, expected func(syscall.WaitStatus) bool) {
	t.Helper()

	await.Receive(t, p.ended, "the driver to end")

	if p.closed {
		return
	}

	require.NoError(t, p.Close())
	p.closed = true

	outcome, ok := p.command.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok, "want: the process has a wait status")
	require.True(t, expected(outcome), "the driver ended with: %s", p.command.ProcessState)
}

// verifyState runs `touchstone state verify`, which no driver may disturb.
func (s *site) verifyState(t *testing.T) {
	t.Helper()

	output, err := child.Command(t, s.binary, "state", "verify", "--state-dir="+s.state()).CombinedOutput()
	require.NoError(t, err, "%s", output)
}

// lastWords are for a person who has to find out why a test failed.
func (s *site) lastWords(t *testing.T) {
	t.Helper()

	const enough = 8 << 10

	log, err := os.ReadFile(s.log())
	if err != nil {
		t.Log(err)

		return
	}

	t.Logf("the end of the driver's log:\n%s", log[max(0, len(log)-enough):])

	records, err := s.kernel.Read()
	if err != nil {
		t.Log(err)
	}

	for _, each := range records {
		if each.Level <= kernellog.Warning {
			t.Logf("the kernel warned: %s", each.Text)
		}
	}
}

// panics returns what the driver logged of defects that it caught.
func (s *site) panics(t *testing.T) []string {
	t.Helper()

	log, err := os.ReadFile(s.log())
	require.NoError(t, err)

	var found []string

	for line := range bytes.Lines(log) {
		if bytes.Contains(line, []byte("panic")) {
			found = append(found, string(line))
		}
	}

	return found
}

// unanswered says whether the call failed for want of a driver, which has not
// said anything.
func unanswered(err error) bool {
	code := status.Code(err)

	return code == codes.Unavailable || code == codes.Canceled
}
