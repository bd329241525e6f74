package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/child"
)

const (
	nodeID = "bench"
	// readyLimit ends what would hang; it is no verdict.
	readyLimit = time.Minute
	mib        = 1 << 20
	// volumeBytes is the size of every volume here.
	volumeBytes = 64 * mib
)

// driver is a running child process and a client of it.
type driver struct {
	*csiclient.Client

	binary, root string
	environment  []string
	// mounts is the mount namespace of its own in which it runs, also after a restart. Nothing is left of it
	// when this program ends, however it does.
	mounts  *os.File
	command *exec.Cmd
	// began is the start of the process; took is the time from then to its being ready.
	began time.Time
	took  time.Duration
}

// start starts a driver with nothing in its state. done ends it and removes
// all that it had.
func (b *bench) start(ctx context.Context, environment ...string) (d *driver, done func(), err error) {
	root, err := os.MkdirTemp(b.dir, "driver-")
	if err != nil {
		return nil, nil, fmt.Errorf("start the driver: %w", err)
	}

	d, err = b.startIn(ctx, root, environment...)
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(root))
	}

	return d, func() {
		d.end()
		_ = os.RemoveAll(root)
	}, nil
}

func (b *bench) startIn(ctx context.Context, root string, environment ...string) (*driver, error) {
	d := &driver{binary: b.binary, root: root, environment: environment}

	if err := d.run(ctx); err != nil {
		return nil, err
	}

	mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", d.command.Process.Pid))
	if err != nil {
		d.kill()

		return nil, fmt.Errorf("the driver's mount namespace: %w", err)
	}

	d.mounts = mounts

	return d, nil
}

// run starts the process and waits until it is ready.
func (d *driver) run(ctx context.Context) error {
	kubelet := filepath.Join(d.root, "kubelet")
	if err := os.MkdirAll(kubelet, 0o750); err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}

	log, err := os.OpenFile(filepath.Join(d.root, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}
	defer log.Close()

	socket := "unix://" + filepath.Join(d.root, "csi.sock")
	words := []string{
		d.binary, "serve", "--endpoint", socket, "--node-id", nodeID,
		"--state-dir", filepath.Join(d.root, "state"), "--pool", "default=" + filepath.Join(d.root, "pool"),
		// 1,000,000 volumes are provisioned with more than most disks have.
		"--kubelet-dir", kubelet, "--overcommit", "100000",
	}
	attributes := &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}

	if d.mounts != nil {
		attributes = nil
		words = append([]string{"nsenter", fmt.Sprintf("--mount=/proc/%d/fd/%d", os.Getpid(), d.mounts.Fd()), "--"}, words...)
	}

	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Stderr = log
	command.Env = append(os.Environ(), d.environment...)
	command.SysProcAttr = attributes

	client, err := csiclient.Connect(socket)
	if err != nil {
		return err
	}

	began := time.Now()
	if err := child.Start(command); err != nil {
		return fmt.Errorf("start the driver: %w", err)
	}

	d.Client, d.command, d.began = client, command, began

	limited, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()

	err = client.WaitReady(limited)
	d.took = time.Since(d.began)

	if err != nil {
		d.kill()

		return fmt.Errorf("%w; its log: %s", err, d.lastLog())
	}

	return nil
}

// restart ends the driver, as SIGTERM or SIGKILL does, and starts it again, beside its mounts.
func (d *driver) restart(ctx context.Context, by syscall.Signal) error {
	if err := d.command.Process.Signal(by); err != nil {
		return fmt.Errorf("end the driver: %w", err)
	}

	_ = d.command.Wait() // SIGKILL is an error to it
	_ = d.Close()

	return d.run(ctx)
}

// end ends the driver and its mounts.
func (d *driver) end() {
	d.kill()
	_ = d.mounts.Close()
}

func (d *driver) kill() {
	_ = d.command.Process.Kill()
	_ = d.command.Wait()
	_ = d.Close()
}

func (d *driver) lastLog() string {
	text, err := os.ReadFile(filepath.Join(d.root, "log"))
	if err != nil {
		return err.Error()
	}

	return string(text[max(0, len(text)-4096):])
}

// memory returns a quantity of /proc/PID/status, in MiB.
func (d *driver) memory(name string) (float64, error) {
	return mebibytes(fmt.Sprintf("/proc/%d/status", d.command.Process.Pid), name)
}

// mebibytes returns the sum of quantities in a file of lines like "VmRSS: 1234 kB".
func mebibytes(path string, names ...string) (sum float64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("quantities of memory: %w", err)
	}
	defer file.Close()

	lines := bufio.NewScanner(file)

	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if !slices.Contains(names, name) {
			continue
		}

		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
		if err != nil {
			return 0, fmt.Errorf("quantities of memory: %s: %w", path, err)
		}

		sum += kib / 1024
	}

	return sum, lines.Err()
}

// processor returns how much time the driver and the tools that it has run
// have spent on a processor: a quantity that other programs hardly change.
func (d *driver) processor() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.command.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("processor time of the driver: %w", err)
	}

	// proc_pid_stat(5): utime, stime, cutime and cstime are the fields 14 to
	// 17, in hundredths of a second; the name, field 2, may hold anything.
	const first, last, tick = 14 - 3, 17 - 3, 10 * time.Millisecond

	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))

	var total time.Duration

	for _, field := range fields[first : last+1] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("processor time of the driver: %w", err)
		}

		total += time.Duration(ticks) * tick
	}

	return total, nil
}

// costing is together with the driver's processor time per call, in
// milliseconds.
func (d *driver) costing(ctx context.Context, callers, count int, do func(ctx context.Context, number int) error,
) (rate, cost float64, err error) {
	before, err := d.processor()
	if err != nil {
		return 0, 0, err
	}

	if rate, err = together(ctx, callers, count, do); err != nil {
		return 0, 0, err
	}

	after, err := d.processor()

	return rate, milliseconds(after-before) / float64(count), err
}

func mountable() *csi.VolumeCapability { return mountableAs("ext4") }

func mountableAs(fsType string) *csi.VolumeCapability {
	return csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, fsType)
}

// claim makes a volume and returns a use of it.
func (d *driver) claim(ctx context.Context, name string, parameters map[string]string) (*csiclient.Publication, error) {
	return d.claimOf(ctx, name, backing{parameters: parameters, fsType: "ext4", bytes: volumeBytes})
}

func (d *driver) claimOf(ctx context.Context, name string, b backing) (*csiclient.Publication, error) {
	return d.made(ctx, name, b.bytes, b.parameters, mountableAs(b.fsType))
}

// staged makes a volume and brings it to its staging path.
func (d *driver) staged(ctx context.Context, name string, parameters map[string]string) (*csiclient.Publication, error) {
	claim, err := d.claim(ctx, name, parameters)
	if err != nil {
		return nil, err
	}

	if err := d.Attach(ctx, claim); err != nil {
		return nil, err
	}

	return claim, d.Stage(ctx, claim)
}

func (d *driver) delete(ctx context.Context, id string) error {
	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})

	return err
}
