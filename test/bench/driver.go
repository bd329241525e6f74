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

	root    string
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
		// d may have been restarted; whatever state it is in goes.
		d.kill()
		_ = os.RemoveAll(root)
	}, nil
}

func (b *bench) startIn(ctx context.Context, root string, environment ...string) (*driver, error) {
	kubelet := filepath.Join(root, "kubelet")
	if err := os.MkdirAll(kubelet, 0o750); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}

	log, err := os.OpenFile(filepath.Join(root, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}
	defer log.Close()

	socket := "unix://" + filepath.Join(root, "csi.sock")
	command := exec.CommandContext(ctx, b.binary, "serve", "--endpoint", socket, "--node-id", nodeID,
		"--state-dir", filepath.Join(root, "state"), "--pool", "default="+filepath.Join(root, "pool"),
		// 1,000,000 volumes are provisioned with more than most disks have.
		"--kubelet-dir", kubelet, "--overcommit", "100000")
	command.Stderr = log
	command.Env = append(os.Environ(), environment...)
	// In a mount namespace of its own nothing is left, however it ends.
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}

	client, err := csiclient.Connect(socket)
	if err != nil {
		return nil, err
	}

	began := time.Now()
	if err := child.Start(command); err != nil {
		return nil, fmt.Errorf("start the driver: %w", err)
	}

	d := &driver{Client: client, root: root, command: command, began: began}

	limited, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()

	err = client.WaitReady(limited)
	d.took = time.Since(began)

	if err != nil {
		d.kill()

		return nil, fmt.Errorf("%w; its log: %s", err, d.lastLog())
	}

	return d, nil
}

// restart ends the driver, as SIGTERM or SIGKILL does, and starts it again.
func (b *bench) restart(ctx context.Context, d *driver, by syscall.Signal) error {
	if err := d.command.Process.Signal(by); err != nil {
		return fmt.Errorf("end the driver: %w", err)
	}

	_ = d.command.Wait() // SIGKILL is an error to it
	_ = d.Close()

	again, err := b.startIn(ctx, d.root)
	if err != nil {
		return err
	}

	*d = *again

	return nil
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
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", d.command.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("memory of the driver: %w", err)
	}
	defer file.Close()

	for lines := bufio.NewScanner(file); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != name+":" {
			continue
		}

		kib, err := strconv.ParseFloat(fields[1], 64)

		return kib / 1024, err
	}

	return 0, nil
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
