package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

const (
	// none is the number of no loop device.
	none = -1
	// detachLimit bounds the wait for whoever has a device open.
	detachLimit = 10 * time.Second
)

// devices knows the loop devices of raw-block and direct volumes. Those of mounted ones
// are found through their mount.
type devices struct {
	loops *loop.Loops

	// find searches for the devices of a volume whose image was renamed.
	find func(volumeID string) error

	mu       sync.Mutex
	byVolume map[string]given
	// missed are the volumes whose devices could not be found, for a failure.
	missed map[string]struct{}
}

// pair are the numbers of a volume's devices: that of the staging, and the
// second one that read-only publications get where the first can be written
// (a read-only bind of a node does not stop writes).
type pair struct {
	staged, readOnly int
}

// given are the numbers that a volume got, and their sequences. When somebody
// else detaches an image, the kernel has its number for the next one.
type given struct {
	pair

	stagedSequence, readOnlySequence uint64
}

func noDevices() pair { return pair{staged: none, readOnly: none} }

func newDevices(loops *loop.Loops) *devices {
	return &devices{loops: loops, byVolume: map[string]given{}, missed: map[string]struct{}{}}
}

// get leaves out numbers that other images have by now.
func (d *devices) get(volumeID string) (pair, error) {
	got, err := d.sought(volumeID)
	if err != nil {
		return noDevices(), err
	}

	if got.staged, err = d.still(got.staged, got.stagedSequence); err != nil {
		return noDevices(), err
	}

	got.readOnly, err = d.still(got.readOnly, got.readOnlySequence)

	return got.pair, err
}

// sought is given, after another search for devices that the start could not find.
func (d *devices) sought(volumeID string) (given, error) {
	d.mu.Lock()
	_, missed := d.missed[volumeID]
	d.mu.Unlock()

	if missed {
		if err := d.find(volumeID); err != nil {
			return given{pair: noDevices()}, err
		}

		d.mu.Lock()
		delete(d.missed, volumeID)
		d.mu.Unlock()
	}

	return d.given(volumeID), nil
}

func (d *devices) given(volumeID string) given {
	d.mu.Lock()
	defer d.mu.Unlock()

	if got, ok := d.byVolume[volumeID]; ok {
		return got
	}

	return given{pair: noDevices()}
}

func (d *devices) still(number int, sequence uint64) (int, error) {
	if number == none {
		return none, nil
	}

	now, attached, err := d.loops.Attachment(number)
	if err != nil || attached && now.Sequence != sequence {
		return none, err
	}

	return number, nil
}

// had says whether the volume was given the number, whatever image has it by now.
func (d *devices) had(volumeID string, number int) bool {
	got := d.given(volumeID)

	return number == got.staged || number == got.readOnly
}

// add records a device of the volume, the second one for readers or the other.
func (d *devices) add(volumeID string, number int, sequence uint64, second bool) {
	got := d.given(volumeID)
	if second {
		got.readOnly, got.readOnlySequence = number, sequence
	} else {
		got.staged, got.stagedSequence = number, sequence
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	d.byVolume[volumeID] = got
}

// dropReader forgets the second device, drop both.
func (d *devices) dropReader(volumeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if got, ok := d.byVolume[volumeID]; ok {
		got.readOnly, got.readOnlySequence = none, 0
		d.byVolume[volumeID] = got
	}
}

func (d *devices) drop(volumeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.byVolume, volumeID)
	delete(d.missed, volumeID)
}

// miss records that the volume's devices could not be found.
func (d *devices) miss(volumeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.missed[volumeID] = struct{}{}
}

// attachment returns the volume's device, false where it has none. It may be one
// that is about to go (AutoClear).
func (d *devices) attachment(volumeID string) (loop.Attachment, bool, error) {
	known, err := d.get(volumeID)
	if err != nil || known.staged == none {
		return loop.Attachment{}, false, err
	}

	return d.loops.Attachment(known.staged)
}

// attach gives the image a loop device: the one it has already, or a new one,
// if possible with the number of its slot.
func (s *Service) attach(ctx context.Context, use *staged.Volume, image *os.File, readOnly, autoClear bool) (*loop.Device, error) {
	preferred := none
	if use.Slot != none && !readOnly {
		preferred = s.loops.NumberOfSlot(use.Slot)
	}

	device, err := s.loops.Attach(ctx, image, loop.AttachOptions{
		ReadOnly:  readOnly,
		Buffered:  use.Parameters.BlockSize == volume.SmallBlockSize,
		BlockSize: use.Parameters.BlockSize,
		AutoClear: autoClear,
		NoDiscard: use.Parameters.Provisioning == volume.Thick,
		// What the image is attached to already is another node's, unless the
		// volume outlived its staging here: records come before devices.
		Exclusive:       use.SharedByReaders() || len(use.Publications) == 0,
		PreferredNumber: preferred,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", use.VolumeID, err)
	}

	info, err := image.Stat()
	if err == nil {
		s.prober.Attached(use, device, info.Size(), readOnly && use.ExposesRawDevice() && !use.IsReadOnly())

		err = s.tuneNew(ctx, use, device.Number)
	}

	if err != nil {
		return nil, errors.Join(err, device.Close(), s.detachNew(ctx, use, device.Number))
	}

	return device, nil
}

// detachNew takes an attachment back that came to nothing, unless the volume
// was in use through it before.
func (s *Service) detachNew(ctx context.Context, use *staged.Volume, number int) error {
	if s.devices.had(use.VolumeID, number) || len(use.Publications) > 0 {
		return nil
	}

	return s.detach(ctx, use, number)
}

// attachBlock attaches the image of a raw-block volume, for one purpose of the
// pair, and remembers the number.
func (s *Service) attachBlock(ctx context.Context, use *staged.Volume, readOnly bool) (int, error) {
	device, err := s.attachNamed(ctx, use, readOnly, false)
	if err != nil {
		return none, err
	}

	if err := device.Close(); err != nil {
		return none, err
	}

	s.devices.add(use.VolumeID, device.Number, device.Sequence, readOnly && !use.IsReadOnly())

	return device.Number, nil
}

// findDevices learns the numbers again after a restart. The name of the image
// tells, so that the devices of one that was deleted are found, too.
func (s *Service) findDevices(attached []loop.Attachment) {
	for _, status := range attached {
		id := strings.TrimSuffix(path.Base(status.BackingPath), layout.ImageSuffix)

		use, known := s.stagedVolumes.Get(id)
		if !known || !use.ExposesRawDevice() {
			continue
		}

		s.devices.add(use.VolumeID, status.Number, status.Sequence, status.ReadOnly && !use.IsReadOnly())
	}
}

// findRenamed learns the numbers of volumes whose images have another name by now.
// Volumes for which that fails are searched for again when they are asked for.
func (s *Service) findRenamed(all []loop.Attachment) {
	for _, use := range s.stagedVolumes.All() {
		if !use.ExposesRawDevice() || s.devices.given(use.VolumeID).pair != noDevices() {
			continue
		}

		if err := s.findByUse(use, all); err != nil {
			s.config.Log.Error("the devices of a volume could not be found", "volume", use.VolumeID, "error", err)
			s.devices.miss(use.VolumeID)
		}
	}
}

// findAgain is findRenamed for one volume.
func (s *Service) findAgain(volumeID string) error {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known {
		return nil
	}

	all, err := s.loops.Attachments()
	if err != nil {
		return err
	}

	return s.findByUse(use, all)
}

// findByUse finds the devices by how they are used: by where their nodes are bound,
// by what runtimes were told, and by what their numbers would be by preference.
func (s *Service) findByUse(use *staged.Volume, all []loop.Attachment) error {
	likely, err := s.likelyNumbers(use)
	if err != nil {
		return err
	}

	for _, number := range likely {
		status, attached, err := s.loops.Status(number)
		if errors.Is(err, loop.ErrBackingUnresponsive) && use.Slot != none && number == s.loops.NumberOfSlot(use.Slot) {
			// Only preferred for this volume: another program has it (decision 0025).
			continue
		}

		if err != nil {
			return err
		}

		if !attached || status.AttachedAs != imageName(use.VolumeID) {
			continue
		}

		for _, each := range all {
			if each.BackingPath == status.BackingPath {
				s.devices.add(use.VolumeID, each.Number, each.Sequence, each.ReadOnly && !use.IsReadOnly())
			}
		}
	}

	return nil
}

func (s *Service) likelyNumbers(use *staged.Volume) ([]int, error) {
	var numbers []int

	if use.Slot != none {
		numbers = append(numbers, s.loops.NumberOfSlot(use.Slot))
	}

	for _, publication := range use.Publications {
		number, told, err := s.toldNumber(use, publication)
		if err != nil {
			return nil, err
		}

		if told {
			numbers = append(numbers, number)
		}

		point, mounted, err := s.mountAt(publication.TargetPath)
		if err != nil {
			return nil, err
		}

		if number, isLoop := loopNumber(point); mounted && isLoop {
			numbers = append(numbers, number)
		}
	}

	return numbers, nil
}

// releaseReader detaches the second device once nobody reads through it.
func (s *Service) releaseReader(ctx context.Context, use *staged.Volume) error {
	known, err := s.devices.get(use.VolumeID)
	if err != nil || known.readOnly == none {
		return err
	}

	for _, publication := range use.Publications {
		if publication.ReadOnly {
			return nil
		}
	}

	if err := s.detach(ctx, use, known.readOnly); err != nil {
		return err
	}

	s.devices.dropReader(use.VolumeID)

	return nil
}

// releaseDevices detaches all devices of a raw-block volume.
func (s *Service) releaseDevices(ctx context.Context, use *staged.Volume) error {
	known, err := s.devices.get(use.VolumeID)
	if err != nil {
		return err
	}

	for _, number := range []int{known.readOnly, known.staged} {
		if number == none {
			continue
		}

		if err := s.detach(ctx, use, number); err != nil {
			return err
		}
	}

	s.devices.drop(use.VolumeID)

	return nil
}

// detach detaches the number if it still has the volume's image, and returns
// when it is gone.
func (s *Service) detach(ctx context.Context, use *staged.Volume, number int) error {
	status, attached, err := s.loops.Status(number)
	if err != nil || !attached {
		return err
	}

	return s.detached(ctx, use, status)
}

// detached returns when the attachment is gone that status tells of.
func (s *Service) detached(ctx context.Context, use *staged.Volume, status loop.Status) error {
	s.tuner.ResetQueue(use.VolumeID, status.Number)
	s.prober.Detached(status.Number)

	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()

	err := s.loops.DetachImage(ctx, status.Number, status.Backing())
	if err != nil && !errors.Is(err, loop.ErrOtherImage) {
		return fmt.Errorf("volume %s: %w", use.VolumeID, err)
	}

	return nil
}

func openFlag(readOnly bool) int {
	if readOnly {
		return os.O_RDONLY
	}

	return os.O_RDWR
}
