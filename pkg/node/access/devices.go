package access

import (
	"fmt"
	"os"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// CheckLength returns pool.ErrTruncated while the image of a volume in use is shorter than one of its
// devices: a device that took its size would hide that data is lost.
func (p *Provider) CheckLength(v *staged.Volume) error {
	if !v.IsImage() {
		return nil
	}

	numbers, err := p.For(v).Devices(v)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		if err := p.checkLength(v, number); err != nil {
			return err
		}
	}

	return nil
}

func (p *Provider) checkLength(v *staged.Volume, number int) error {
	image, err := p.openImage(v, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()

	device, attached, err := p.config.Loops.Status(number)
	if err != nil || !attached {
		return err
	}

	info, err := image.Stat()
	if err != nil {
		return err
	}

	found, err := loop.IdentityOf(image)
	if err != nil || found != device.Backing || info.Size() >= device.SizeBytes {
		return err
	}

	return fmt.Errorf("its image has %d bytes, and its device %d: %w", info.Size(), device.SizeBytes, pool.ErrTruncated)
}

// heldDevices has the loop devices of raw-block and direct volumes. The devices of mounted
// volumes are found through their mounts.
type heldDevices struct {
	loops *loop.Loops
	// find searches for the devices of a volume whose image was renamed.
	find func(volumeID string) error

	mu       sync.Mutex
	byVolume map[string]Attachments
	// notFound are the volumes whose devices could not be searched for because of a failure.
	notFound map[string]struct{}
}

// deviceNumbers are the loop devices of a raw-block or direct volume: the one of the staging,
// and a second one of the read-only publications if the first can be written (a read-only
// bind mount of a device node does not prevent writes to the device).
type deviceNumbers struct {
	Staged, ReadOnly int
}

// Attachments are the devices that a volume was attached to, with their disk sequence
// attachments: if another program detaches an image, the kernel reuses its number.
type Attachments struct {
	deviceNumbers

	StagedSequence, ReadOnlySequence uint64
}

func noDevices() deviceNumbers { return deviceNumbers{Staged: NoDevice, ReadOnly: NoDevice} }

func newHeldDevices(loops *loop.Loops, find func(volumeID string) error) *heldDevices {
	return &heldDevices{loops: loops, find: find, byVolume: map[string]Attachments{}, notFound: map[string]struct{}{}}
}

// get returns the attachments that are still the volume's, and NoDevice for those that have
// another image by now.
func (d *heldDevices) get(volumeID string) (deviceNumbers, error) {
	attachments, err := d.found(volumeID)
	if err != nil {
		return noDevices(), err
	}

	if attachments.Staged, err = d.verify(attachments.Staged, attachments.StagedSequence); err != nil {
		return noDevices(), err
	}

	attachments.ReadOnly, err = d.verify(attachments.ReadOnly, attachments.ReadOnlySequence)

	return attachments.deviceNumbers, err
}

// found is recorded, after another search for devices that the start could not find.
func (d *heldDevices) found(volumeID string) (Attachments, error) {
	d.mu.Lock()
	_, notFound := d.notFound[volumeID]
	d.mu.Unlock()

	if notFound {
		if err := d.find(volumeID); err != nil {
			return Attachments{deviceNumbers: noDevices()}, err
		}

		d.mu.Lock()
		delete(d.notFound, volumeID)
		d.mu.Unlock()
	}

	return d.recorded(volumeID), nil
}

func (d *heldDevices) recorded(volumeID string) Attachments {
	d.mu.Lock()
	defer d.mu.Unlock()

	if attachments, ok := d.byVolume[volumeID]; ok {
		return attachments
	}

	return Attachments{deviceNumbers: noDevices()}
}

// verify returns NoDevice for a number that is attached for another image by now.
func (d *heldDevices) verify(number int, sequence uint64) (int, error) {
	if number == NoDevice {
		return NoDevice, nil
	}

	now, attached, err := d.loops.Attachment(number)
	if err != nil || attached && now.Sequence != sequence {
		return NoDevice, err
	}

	return number, nil
}

// had reports whether the volume was attached to the number, whatever image has it by now.
func (d *heldDevices) had(volumeID string, number int) bool {
	attachments := d.recorded(volumeID)

	return number == attachments.Staged || number == attachments.ReadOnly
}

// add records a device of the volume; second means the one of its read-only publications.
func (d *heldDevices) add(volumeID string, number int, sequence uint64, second bool) {
	attachments := d.recorded(volumeID)
	if second {
		attachments.ReadOnly, attachments.ReadOnlySequence = number, sequence
	} else {
		attachments.Staged, attachments.StagedSequence = number, sequence
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	d.byVolume[volumeID] = attachments
}

// dropReader drops the second device of the volume.
func (d *heldDevices) dropReader(volumeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if attachments, ok := d.byVolume[volumeID]; ok {
		attachments.ReadOnly, attachments.ReadOnlySequence = NoDevice, 0
		d.byVolume[volumeID] = attachments
	}
}

// drop drops both devices of the volume.
func (d *heldDevices) drop(volumeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.byVolume, volumeID)
	delete(d.notFound, volumeID)
}

// addNotFound records that the search for the volume's devices failed.
func (d *heldDevices) addNotFound(volumeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.notFound[volumeID] = struct{}{}
}

// attachment returns the device of the volume's staging, false where it has none. It may be
// one that is detached with its last user (AutoClear).
func (d *heldDevices) attachment(volumeID string) (loop.Attachment, bool, error) {
	attachments, err := d.get(volumeID)
	if err != nil || attachments.Staged == NoDevice {
		return loop.Attachment{}, false, err
	}

	return d.loops.Attachment(attachments.Staged)
}
