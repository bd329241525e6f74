package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/served"
)

const (
	nodeID = "soak"
	mib    = 1 << 20
	gib    = 1 << 30
	// sharedBytes is the size of the sparse file in which the pool is that shares
	// blocks.
	sharedBytes = 20 * gib
	// startLimit ends what would hang.
	startLimit = time.Minute
)

// site is where a driver lives.
type site struct {
	options

	root string
}

func (s *site) state() string   { return filepath.Join(s.root, "state") }
func (s *site) kubelet() string { return filepath.Join(s.root, "kubelet") }
func (s *site) log() string     { return filepath.Join(s.root, "driver.log") }
func (s *site) xfs() string     { return filepath.Join(s.root, "xfs") }

// pools are one whose files share blocks and one whose files do so only where
// the disk's own filesystem can.
func (s *site) pools() map[string]string {
	return map[string]string{"plain": filepath.Join(s.root, "plain"), "shared": filepath.Join(s.xfs(), "pool")}
}

func newSite(ctx context.Context, given options, root string) (*site, error) {
	s := &site{options: given, root: root}
	image := filepath.Join(root, "xfs.img")

	for _, directory := range []string{s.kubelet(), s.xfs()} {
		if err := os.Mkdir(directory, 0o750); err != nil {
			return nil, fmt.Errorf("make directories for the driver: %w", err)
		}
	}

	file, err := os.Create(image)
	if err == nil {
		err = errors.Join(file.Truncate(sharedBytes), file.Close())
	}

	if err != nil {
		return nil, fmt.Errorf("make the pool that shares blocks: %w", err)
	}

	for _, words := range [][]string{
		{"mkfs.xfs", "-q", "-s", "size=4096", "-m", "reflink=1", image},
		{"mount", "-o", "loop,discard", image, s.xfs()},
	} {
		if output, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%v: %w: %s", words, err, output)
		}
	}

	return s, nil
}

// remove takes away all that newSite has made, and what a driver has left.
func (s *site) remove() error {
	loops := loop.NewLoops(loop.LoopsOptions{})

	devices, err := s.devices()
	for _, each := range devices {
		err = errors.Join(err, loops.Detach(context.Background(), each.Number))
	}

	if unmounted := unix.Unmount(s.xfs(), 0); unmounted != nil {
		err = errors.Join(err, fmt.Errorf("unmount %s: %w", s.xfs(), unmounted), unix.Unmount(s.xfs(), unix.MNT_DETACH))
	}

	return errors.Join(err, os.RemoveAll(s.root))
}

// devices are those that the driver has attached.
func (s *site) devices() ([]loop.Attachment, error) {
	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return nil, err
	}

	return slices.DeleteFunc(all, func(each loop.Attachment) bool {
		return !strings.HasPrefix(each.BackingPath, s.root+"/") || each.BackingPath == filepath.Join(s.root, "xfs.img")
	}), nil
}

// process is the running driver and a client of it.
type process struct {
	*csiclient.Client

	command *exec.Cmd
	http    string
	// ended is closed when the process is gone.
	ended chan struct{}
}

func (s *site) start(ctx context.Context) (*process, error) {
	address := served.Address()

	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	defer log.Close()

	socket := "unix://" + filepath.Join(s.root, "csi.sock")
	words := []string{
		"serve", "--endpoint", socket, "--node-id", nodeID, "--state-dir", s.state(), "--kubelet-dir", s.kubelet(),
		// Each xfs provisions 300 MiB and uses a few. Most of an expansion would be
		// waiting for others.
		"--overcommit", "20", "--coalesce-window", "20ms", "--http-endpoint", address,
		"--health-relist-period", "1s", "--health-evented-relist-period", "1s", "--check-period", s.checkPeriod.String(),
	}

	for name, directory := range s.pools() {
		words = append(words, "--pool", name+"="+directory)
	}

	// Not the context's: it is terminated at the end.
	command := exec.Command(s.binary, words...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}

	client, err := csiclient.Connect(socket, grpc.WithChainUnaryInterceptor(bounded(s.timeLimit)))
	if err != nil {
		return nil, err
	}

	if err := child.Start(command); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}

	p := &process{Client: client, command: command, http: address, ended: make(chan struct{})}

	go func() {
		defer close(p.ended)
		_ = command.Wait() // ProcessState says it
	}()

	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	if err := p.WaitReady(limited); err != nil {
		return nil, errors.Join(err, p.kill(), fmt.Errorf("its log ends with: %s", s.lastLog()))
	}

	return p, nil
}

// bounded has a call that hangs end as a failure.
func bounded(limit time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, request, answer any, connection *grpc.ClientConn, call grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()

		return call(ctx, method, request, answer, connection, options...)
	}
}

func (s *site) lastLog() string {
	const enough = 4096

	text, err := os.ReadFile(s.log())
	if err != nil {
		return err.Error()
	}

	return string(text[max(0, len(text)-enough):])
}

var errEnded = errors.New("the driver did not end as it should")

// terminate ends the driver as Kubernetes does.
func (p *process) terminate() error {
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("end the driver: %w", err)
	}

	select {
	case <-p.ended:
	case <-time.After(startLimit):
		return errors.Join(errEnded, p.kill())
	}

	if code := p.command.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%w: %s", errEnded, p.command.ProcessState)
	}

	return nil
}

// kill makes sure that it is gone.
func (p *process) kill() error {
	_ = p.command.Process.Kill() // it may be gone already
	<-p.ended

	return p.Close()
}

// poolNames are in a fixed order.
func (s *site) poolNames() []string {
	return slices.Sorted(maps.Keys(s.pools()))
}
