package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// ChangedScheduler is the record of a loop device whose I/O scheduler was changed. The device keeps its
// scheduler when the image is detached, so the former one has to be restored.
type ChangedScheduler struct {
	Number    int    `json:"number"`
	VolumeID  string `json:"volumeId"`
	Scheduler string `json:"scheduler"`
}

// RecordID returns the key of the record in the store.
func (t *ChangedScheduler) RecordID() string { return strconv.Itoa(t.Number) }

// Check implements [staged.Record].
func (t *ChangedScheduler) Check() error {
	if t.Number < 0 || t.Scheduler == "" {
		return fmt.Errorf("%w: number %d, scheduler %q", staged.ErrRecord, t.Number, t.Scheduler)
	}

	return volume.CheckID(t.VolumeID)
}

// SetQueue sets the queue of one of the volume's loop devices.
func (t *Tuner) SetQueue(ctx context.Context, volumeID string, number int, wanted volume.Mutable) error {
	// The kernel may have given the number of another volume's device to this one, if that
	// was detached by another program.
	if changed, ok := t.schedulers.Get(strconv.Itoa(number)); ok && changed.VolumeID != volumeID {
		t.resetQueue(changed)
	}

	attributes := queueOf(wanted)
	if attributes == queue.Unchanged() {
		return nil
	}

	if err := t.recordScheduler(ctx, volumeID, number, attributes.Scheduler); err != nil {
		return err
	}

	if err := t.queues.Set(loop.Name(number), attributes); err != nil {
		return fmt.Errorf("mutable parameters of volume %s: %w", volumeID, err)
	}

	return nil
}

// recordScheduler records the scheduler of the device before it is changed. A record of another
// volume is one whose scheduler could not be restored: the device's volume takes it over.
func (t *Tuner) recordScheduler(ctx context.Context, volumeID string, number int, wanted string) error {
	changed, recorded := t.schedulers.Get(strconv.Itoa(number))
	if recorded && changed.VolumeID != volumeID {
		return t.schedulers.PutUnsynced(ctx, &ChangedScheduler{Number: number, VolumeID: volumeID, Scheduler: changed.Scheduler})
	}

	if recorded || wanted == "" {
		return nil
	}

	now, err := t.queues.Get(loop.Name(number))
	if err != nil || now.Scheduler == wanted {
		return err
	}

	return t.schedulers.PutUnsynced(ctx, &ChangedScheduler{Number: number, VolumeID: volumeID, Scheduler: now.Scheduler})
}

// ResetQueue restores the scheduler of the volume's device before it is detached.
func (t *Tuner) ResetQueue(volumeID string, number int) {
	if changed, ok := t.schedulers.Get(strconv.Itoa(number)); ok && changed.VolumeID == volumeID {
		t.resetQueue(changed)
	}
}

// ResetQueues restores the schedulers of all devices that the volume has had.
func (t *Tuner) ResetQueues(volumeID string) {
	for _, changed := range t.schedulers.All() {
		if changed.VolumeID == volumeID {
			t.resetQueue(changed)
		}
	}
}

// resetQueue restores the scheduler of a device and deletes its record, also that of a device which
// does not exist any more, as after a reboot. A failure is only logged, because no volume depends on it.
func (t *Tuner) resetQueue(changed *ChangedScheduler) {
	err := t.queues.Set(loop.Name(changed.Number), queue.Attributes{ReadAheadKiB: -1, Scheduler: changed.Scheduler})
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = t.schedulers.DeleteLazily(changed.RecordID())
	}

	if err != nil {
		t.log.Warn("a loop device keeps the I/O scheduler of a volume that was detached from it",
			"device", loop.Name(changed.Number), "volume", changed.VolumeID, "error", err)
	}
}

func queueOf(wanted volume.Mutable) queue.Attributes {
	attributes := queue.Unchanged()
	attributes.Scheduler = wanted[volume.KeyIOScheduler]

	if _, named := wanted[volume.KeyReadAheadKiB]; named {
		attributes.ReadAheadKiB = wanted.Number(volume.KeyReadAheadKiB)
	}

	return attributes
}
