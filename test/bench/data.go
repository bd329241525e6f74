package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
)

const (
	// dataBytes is what each spot holds of data, and dataVolume the size of its volume.
	dataBytes, dataVolume = 256 * mib, gib
	// dataSeconds is how long fio runs for each load of each spot in a round.
	dataSeconds = 2
	// handShare is what a volume is to have of the rate of a loop device made by hand.
	handShare = 0.98

	host, byHand, rawByHand = "host", "losetup, ext4", "losetup, raw block"
)

// spot is a path where data is read and written.
type spot struct {
	name, path string
	// like is the spot made by hand that it is compared with, "" for none.
	like string
}

// load is one call of fio.
type load struct {
	name      string
	arguments []string
}

func loads() []load {
	random := func(kind, depth string) []string {
		return []string{"--rw=rand" + kind, "--bs=4k", "--iodepth=" + depth}
	}
	sequential := func(kind, depth string) []string { return []string{"--rw=" + kind, "--bs=1M", "--iodepth=" + depth} }

	return []load{
		{"sequential read, 1", sequential("read", "1")},
		{"sequential read, 32", sequential("read", "32")},
		{"sequential write, 1", sequential("write", "1")},
		{"sequential write, 32", sequential("write", "32")},
		{"random read, 1", random("read", "1")},
		{"random read, 32", random("read", "32")},
		{"random write, 1", random("write", "1")},
		{"random write, 32", random("write", "32")},
		{"random write and fdatasync, 1", append(random("write", "1"), "--fdatasync=1")},
	}
}

// data measures reads and writes of what a pod gets, beside the same of the disk and of a loop device made by
// hand. All spots have their turn with each load, so that they meet the same machine.
func data(ctx context.Context, b *bench) (failure error) {
	plain, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	pooled, donePooled, err := b.start(ctx, embedded)
	if err != nil {
		return err
	}
	defer donePooled()

	loops, err := b.loopsByHand(ctx)
	defer func() { failure = errors.Join(failure, loops.remove(context.WithoutCancel(ctx))) }()

	if err != nil {
		return err
	}

	var removals []func() error

	defer func() {
		for _, remove := range removals {
			failure = errors.Join(failure, remove())
		}
	}()

	spots := []spot{{name: host, path: filepath.Join(loops.dir, "data")}}
	spots = append(spots, loops.spots...)

	for _, each := range []struct {
		driver  *driver
		name    string
		backing backing
		like    string
	}{
		{plain, "ext4, thin", backing{fsType: "ext4"}, byHand},
		{plain, "ext4, thick", backing{fsType: "ext4", parameters: map[string]string{"provisioning": "thick"}}, byHand},
		{plain, "raw block", backing{}, rawByHand},
		{plain, "directory", backing{parameters: map[string]string{"backing": "directory"}, fsType: "ext4"}, ""},
		{pooled, "ext4, embedded pool", backing{fsType: "ext4"}, byHand},
	} {
		path, remove, err := each.driver.dataSpot(ctx, each.name, each.backing)
		if err != nil {
			return fmt.Errorf("%s: %w", each.name, err)
		}

		removals = append(removals, remove)
		spots = append(spots, spot{each.name, path, each.like})
	}

	return b.measureSpots(ctx, spots)
}

// measureSpots fills each spot, and puts each load on each of them.
func (b *bench) measureSpots(ctx context.Context, spots []spot) error {
	first := load{"first sequential write, 32", []string{"--rw=write", "--bs=1M", "--iodepth=32", "--end_fsync=1"}}

	for i, each := range append([]load{first}, loads()...) {
		rates := map[string]float64{}

		if i > 0 {
			each.arguments = append(each.arguments, "--time_based", fmt.Sprint("--runtime=", dataSeconds))
		}

		for _, at := range spots {
			found, err := fio(ctx, at.path, each.arguments)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", each.name, at.name, err)
			}

			rates[at.name] = found.rate
			name := fmt.Sprintf("Data, %s: %s", each.name, at.name)

			b.results.put(name, found.rate, known("/s"))
			b.results.put(name+": p50", found.median, known("ms"))
			b.results.put(name+": p99", found.last, known("ms"))
		}

		for _, at := range spots {
			name := fmt.Sprintf("Data, %s: %s ÷ ", each.name, at.name)

			if at.name != host {
				b.results.put(name+host, rates[at.name]/rates[host], known(""))
			}

			if at.like != "" {
				b.results.put(name+at.like, rates[at.name]/rates[at.like], atLeast(handShare, ""))
			}
		}

		slices.Reverse(spots)
	}

	return nil
}

// requests is what fio says of one run: requests in a second, and what they took in milliseconds.
type requests struct{ rate, median, last float64 }

// fio runs one load on a file or device. The latency is that of the request, or with fdatasync that of the sync.
func fio(ctx context.Context, path string, arguments []string) (requests, error) {
	command := exec.CommandContext(ctx, "fio", append([]string{
		"--name=data", "--filename=" + path, fmt.Sprint("--size=", dataBytes), "--direct=1", "--ioengine=libaio",
		"--randrepeat=0", "--norandommap", "--output-format=json",
	}, arguments...)...)

	output, err := command.Output()
	if err != nil {
		return requests{}, fmt.Errorf("%s: %w: %s", command, err, output)
	}

	type latency struct {
		Percentile map[string]float64 `json:"percentile"`
	}

	type direction struct {
		Rate    float64 `json:"iops"`
		Latency latency `json:"clat_ns"`
	}

	var report struct {
		Jobs []struct {
			Read  direction `json:"read"`
			Write direction `json:"write"`
			Sync  struct {
				Latency latency `json:"lat_ns"`
			} `json:"sync"`
		} `json:"jobs"`
	}

	// A warning may precede it.
	text := string(output)
	if err := json.Unmarshal([]byte(text[max(strings.Index(text, "{"), 0):]), &report); err != nil || len(report.Jobs) != 1 {
		return requests{}, fmt.Errorf("%s: its report has %d jobs: %w: %s", command, len(report.Jobs), err, text)
	}

	job := report.Jobs[0]
	found := job.Read

	if job.Write.Rate > 0 {
		found = job.Write
	}

	if slices.Contains(arguments, "--fdatasync=1") {
		found.Latency = job.Sync.Latency
	}

	const perMillisecond = 1e6

	return requests{
		found.Rate, found.Latency.Percentile["50.000000"] / perMillisecond, found.Latency.Percentile["99.000000"] / perMillisecond,
	}, nil
}

// dataSpot makes a volume, of raw block without a filesystem, and returns where its data is.
func (d *driver) dataSpot(ctx context.Context, name string, of backing) (path string, remove func() error, err error) {
	capability := csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	if of.fsType != "" {
		capability = mountableAs(of.fsType)
	}

	claim, err := d.made(ctx, name, dataVolume, of.parameters, capability)
	if err != nil {
		return "", nil, err
	}

	remove = func() error { return d.removeClaim(ctx, claim) }
	if err := d.bringUp(ctx, claim); err != nil {
		return "", nil, errors.Join(err, remove())
	}

	path = d.seen(claim.TargetPath)
	if of.fsType != "" {
		path = filepath.Join(path, "data")
	}

	return path, remove, nil
}

func (d *driver) removeClaim(ctx context.Context, claim *csiclient.Publication) error {
	ctx = context.WithoutCancel(ctx)

	return errors.Join(d.takeDown(ctx, claim), d.delete(ctx, claim.VolumeID))
}

// handLoops are loop devices on images made by hand, one with an ext4 that is mounted.
type handLoops struct {
	dir     string
	mounted string
	devices []string
	spots   []spot
}

// loopsByHand makes them as an administrator would for the best speed: allocated images, read and written past
// the page cache. What it returns is removed also after an error.
func (b *bench) loopsByHand(ctx context.Context) (*handLoops, error) {
	dir, err := os.MkdirTemp(b.dir, "by-hand-")
	if err != nil {
		return &handLoops{}, fmt.Errorf("loop devices by hand: %w", err)
	}

	l := &handLoops{dir: dir}

	for _, name := range []string{"filesystem", "raw"} {
		image := filepath.Join(dir, name)

		for _, words := range [][]string{
			{"fallocate", "--length", strconv.Itoa(dataVolume), image},
			{"losetup", "--find", "--show", "--direct-io=on", image},
		} {
			output, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return l, fmt.Errorf("loop devices by hand: %s: %w: %s", strings.Join(words, " "), err, output)
			}

			if words[0] == "losetup" {
				l.devices = append(l.devices, strings.TrimSpace(string(output)))
			}
		}
	}

	mounted := filepath.Join(dir, "mounted")

	if output, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", l.devices[0]).CombinedOutput(); err != nil {
		return l, fmt.Errorf("loop devices by hand: mkfs.ext4: %w: %s", err, output)
	}

	if err := errors.Join(os.Mkdir(mounted, 0o755), unix.Mount(l.devices[0], mounted, "ext4", 0, "")); err != nil {
		return l, fmt.Errorf("loop devices by hand: %w", err)
	}

	l.mounted = mounted
	l.spots = []spot{{byHand, filepath.Join(mounted, "data"), ""}, {rawByHand, l.devices[1], ""}}

	return l, nil
}

func (l *handLoops) remove(ctx context.Context) error {
	var failures []error

	if l.mounted != "" {
		failures = append(failures, unix.Unmount(l.mounted, 0))
	}

	for _, each := range l.devices {
		failures = append(failures, exec.CommandContext(ctx, "losetup", "--detach", each).Run())
	}

	return errors.Join(append(failures, os.RemoveAll(l.dir))...)
}
