package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	conditions "github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// victim is a published volume that becomes unhealthy.
type victim struct {
	*driver

	claim *csiclient.Publication
	image string
	// aside is a second link to the image.
	aside string
	bytes int64
}

// fault is a fault that the kernel reports by an event.
type fault struct {
	what   string
	block  bool
	reason conditions.Reason
	// cause returns when it began: just before the call that does it.
	cause func(v *victim) (time.Time, error)
	// cure ends it, as an administrator would.
	cure func(ctx context.Context, v *victim) error
}

func faultKinds() []fault {
	return []fault{
		{"image deleted", false, conditions.BackingFileMissing, (*victim).removeImage, putImageBack},
		{"image truncated", true, conditions.BackingFileTruncated, (*victim).truncate, lengthen},
		{"target unmounted", false, conditions.VolumeUnmounted, (*victim).unmount, mountAgain},
		{"error of an ext4", false, conditions.FilesystemCorrupted, (*victim).triggerError, restage},
		{"read error of a raw block device", true, conditions.IOErrors, (*victim).readBeyond, restage},
		{"raw block device detached", true, conditions.DeviceMissing, (*victim).detachDevice, restage},
	}
}

// faults measures the time from a fault until NodeGetVolumeHealth reports it,
// and from its cure until it does not.
func (b *bench) faults(ctx context.Context) error {
	d, done, err := b.start(ctx)
	if err != nil {
		return err
	}
	defer done()

	all := &sample{}

	for _, each := range faultKinds() {
		told, cured, err := d.sufferAll(ctx, each)
		if err != nil {
			return fmt.Errorf("%s: %w", each.what, err)
		}

		b.results.put("From fault to condition, "+each.what+": p50", told.quantile(0.5), known("ms"))
		b.results.put("… longest, "+each.what, told.quantile(1), known("ms"))
		b.results.put("… from its cure to its end, "+each.what+": p50", cured.quantile(0.5), known("ms"))
		all.took = append(all.took, told.took...)
	}

	b.results.put("From fault to condition, all of these: p50", all.quantile(0.5), atMost(50, "ms"))
	b.results.put("From fault to condition, all of these: p99", all.quantile(0.99), atMost(1000, "ms"))

	return nil
}

// sufferAll makes volumes unhealthy and healthy again, each once: a volume with many events
// is probed less often.
func (d *driver) sufferAll(ctx context.Context, f fault) (told, cured *sample, failure error) {
	const count = 30
	// calm waits until no probe of earlier events is under way.
	const calm = 1500 * time.Millisecond

	told, cured = &sample{}, &sample{}
	victims := make([]*victim, 0, count)

	// A raw block device would outlive the driver.
	defer func() {
		for _, each := range victims {
			failure = errors.Join(failure, d.takeDown(context.WithoutCancel(ctx), each.claim))
		}
	}()

	for number := range count {
		v, err := d.newVictim(ctx, fmt.Sprint("victim ", number, " of ", f.what), f.block)
		if err != nil {
			return nil, nil, err
		}

		victims = append(victims, v)
	}

	if err := pause(ctx, calm); err != nil {
		return nil, nil, err
	}

	for _, each := range victims {
		if err := each.suffer(ctx, f, told, cured); err != nil {
			return nil, nil, err
		}
	}

	return told, cured, nil
}

func (d *driver) newVictim(ctx context.Context, name string, block bool) (*victim, error) {
	capability := mountable()
	if block {
		capability = csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	}

	claim, err := d.made(ctx, name, volumeBytes, nil, capability)
	if err != nil {
		return nil, err
	}

	images := filepath.Join(d.root, "pool", "images")

	return &victim{
		driver: d, claim: claim, image: filepath.Join(images, claim.VolumeID+".img"),
		aside: filepath.Join(d.root, claim.VolumeID+".aside"), bytes: volumeBytes,
	}, d.bringUp(ctx, claim)
}

// suffer causes the fault, and then repairs it.
func (v *victim) suffer(ctx context.Context, f fault, told, cured *sample) error {
	if _, err := v.await(ctx, f.reason, false); err != nil {
		return err
	}

	began, err := f.cause(v)
	if err != nil {
		return err
	}

	known, err := v.await(ctx, f.reason, true)
	if err != nil {
		return err
	}

	told.took = append(told.took, known.Sub(began))

	return cured.time(func() error {
		if err := f.cure(ctx, v); err != nil {
			return err
		}

		_, err := v.await(ctx, f.reason, false)

		return err
	})
}

// errNotTold means that no event reported a fault, or its end.
var errNotTold = errors.New("the volume's health was not reported in time")

// await polls until the node reports the reason, or no longer reports it, and
// returns when it knew that.
func (v *victim) await(ctx context.Context, reason conditions.Reason, there bool) (time.Time, error) {
	// A finding of a relist comes later than that.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()

	for {
		answer, err := v.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: v.claim.VolumeID})
		now := time.Now()

		if err != nil {
			return now, err
		}

		told := answer.GetVolumeHealth().GetHealthStatuses()
		if slices.ContainsFunc(told, func(each *csi.VolumeHealth_VolumeHealthEntry) bool { return each.GetReason() == string(reason) }) == there {
			return now, nil
		}

		if pause(ctx, time.Millisecond) != nil {
			return now, fmt.Errorf("%w: wanted %s (%t), reported are %v", errNotTold, reason, there, told)
		}
	}
}

func (v *victim) removeImage() (time.Time, error) {
	if err := os.Link(v.image, v.aside); err != nil {
		return time.Time{}, fmt.Errorf("keep the image: %w", err)
	}

	began := time.Now()

	return began, os.Remove(v.image)
}

func putImageBack(_ context.Context, v *victim) error { return os.Rename(v.aside, v.image) }

func (v *victim) truncate() (time.Time, error) {
	began := time.Now()

	return began, os.Truncate(v.image, v.bytes/2)
}

func lengthen(_ context.Context, v *victim) error { return os.Truncate(v.image, v.bytes) }

// unmount does so in the driver's mount namespace. What it takes to get there
// counts, too: some milliseconds.
func (v *victim) unmount() (time.Time, error) {
	began := time.Now()
	namespace := fmt.Sprintf("--mount=/proc/%d/ns/mnt", v.command.Process.Pid)

	if output, err := exec.Command("nsenter", namespace, "umount", v.claim.TargetPath).CombinedOutput(); err != nil {
		return began, fmt.Errorf("unmount the target: %w: %s", err, output)
	}

	return began, nil
}

func mountAgain(ctx context.Context, v *victim) error {
	return errors.Join(v.Unpublish(ctx, v.claim), v.Publish(ctx, v.claim))
}

func restage(ctx context.Context, v *victim) error {
	return errors.Join(os.Truncate(v.image, v.bytes), v.Unpublish(ctx, v.claim), v.Unstage(ctx, v.claim),
		v.Stage(ctx, v.claim), v.Publish(ctx, v.claim))
}

func (v *victim) triggerError() (time.Time, error) {
	device, err := v.device()
	if err != nil {
		return time.Time{}, err
	}

	trigger := "/sys/fs/ext4/" + filepath.Base(device) + "/trigger_fs_error"
	began := time.Now()

	return began, os.WriteFile(trigger, []byte("bench"), 0)
}

// readBeyond reads what is not in the image any more.
func (v *victim) readBeyond() (time.Time, error) {
	path, err := v.device()
	if err != nil {
		return time.Time{}, err
	}

	device, err := os.Open(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the device: %w", err)
	}
	defer device.Close()

	if err := os.Truncate(v.image, v.bytes/2); err != nil {
		return time.Time{}, err
	}

	began := time.Now()

	if _, err := device.ReadAt(make([]byte, 4096), v.bytes-mib); !errors.Is(err, unix.EIO) {
		return began, fmt.Errorf("%w: reading beyond the image's end ended with: %w", errNotTold, err)
	}

	return began, nil
}

func (v *victim) detachDevice() (time.Time, error) {
	path, err := v.device()
	if err != nil {
		return time.Time{}, err
	}

	device, err := os.Open(path)
	if err != nil {
		return time.Time{}, fmt.Errorf("detach the device: %w", err)
	}
	defer device.Close()

	began := time.Now()

	return began, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0)
}

var errNoDevice = errors.New("no loop device has the image")

// device returns the path of the loop device that has the image.
func (v *victim) device() (string, error) {
	all, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return "", err
	}

	for _, each := range all {
		if each.BackingPath == v.image {
			return each.Path, nil
		}
	}

	return "", fmt.Errorf("%w %s", errNoDevice, v.image)
}
