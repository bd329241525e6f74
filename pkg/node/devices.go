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

	"github.com/touchstone-csi/touchstone/pkg/blockdev"
	"github.com/touchstone-csi/touchstone/pkg/pool"
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
	loops *blockdev.Loops

	mu       sync.Mutex
	byVolume map[string]given
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

func newDevices(loops *blockdev.Loops) *devices {
	return &devices{loops: loops, byVolume: map[string]given{}}
}

// get leaves out numbers that other images have by now.
func (d *devices) get(volumeID string) pair {
	got := d.given(volumeID)

	return pair{staged: d.still(got.staged, got.stagedSequence), readOnly: d.still(got.readOnly, got.readOnlySequence)}
}

func (d *devices) given(volumeID string) given {
	d.mu.Lock()
	defer d.mu.Unlock()

	if got, ok := d.byVolume[volumeID]; ok {
		return got
	}

	return given{pair: pair{staged: none, readOnly: none}}
}

func (d *devices) still(number int, sequence uint64) int {
	if number == none {
		return none
	}

	if now, attached := d.loops.Attachment(number); attached && now.Sequence != sequence {
		return none
	}

	return number
}

// sequence is 0 where nothing is attached.
func (d *devices) sequence(number int) uint64 {
	if number == none {
		return 0
	}

	now, _ := d.loops.Attachment(number)

	return now.Sequence
}

// had says whether the volume was given the number, whoever has it by now.
func (d *devices) had(volumeID string, number int) bool {
	got := d.given(volumeID)

	return number == got.staged || number == got.readOnly
}

func (d *devices) set(volumeID string, known pair) {
	got := given{pair: known, stagedSequence: d.sequence(known.staged), readOnlySequence: d.sequence(known.readOnly)}

	d.mu.Lock()
	defer d.mu.Unlock()

	if known.staged == none && known.readOnly == none {
		delete(d.byVolume, volumeID)

		return
	}

	d.byVolume[volumeID] = got
}

// attached says whether the volume has a device, be it one that is about to go.
func (d *devices) attached(volumeID string) bool {
	_, attached := d.status(volumeID)

	return attached
}

// stays says whether the volume has a device that nobody has asked to go: one that
// somebody has open at its detach goes with its last user.
func (d *devices) stays(volumeID string) bool {
	status, attached := d.status(volumeID)

	return attached && !status.AutoClear
}

func (d *devices) status(volumeID string) (blockdev.Status, bool) {
	number := d.get(volumeID).staged
	if number == none {
		return blockdev.Status{}, false
	}

	status, attached, err := d.loops.Status(number)

	return status, err == nil && attached
}

// attach gives the image a loop device: the one it has already, or a new one,
// if possible with the number of its slot.
func (s *Service) attach(ctx context.Context, use *Use, image *os.File, readOnly, autoClear bool) (*blockdev.Device, error) {
	preferred := none
	if use.Slot != none && !readOnly {
		preferred = s.loops.OwnNumber(use.Slot)
	}

	device, err := s.loops.Attach(ctx, image, blockdev.AttachOptions{
		ReadOnly:  readOnly,
		Buffered:  use.Parameters.BlockSize == volume.SmallBlockSize,
		BlockSize: use.Parameters.BlockSize,
		AutoClear: autoClear,
		KeepSpace: use.Parameters.Provisioning == volume.Thick,
		// What the image is attached to already is another node's, unless the
		// volume outlived its staging here: records come before devices.
		Own:       use.sharedReaders() || len(use.Publications) == 0,
		Preferred: preferred,
	})
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", use.VolumeID, err)
	}

	info, err := image.Stat()
	if err == nil {
		s.evidence.attach(use, attachment{number: device.Number, sequence: device.Sequence()}, info.Size(),
			readOnly && use.byDevice() && !use.readOnly())

		err = s.tuneNew(ctx, use, device.Number)
	}

	if err != nil {
		return nil, errors.Join(err, device.Close(), s.detachNew(ctx, use, device.Number))
	}

	return device, nil
}

// detachNew takes an attachment back that came to nothing, unless the volume
// was in use through it before.
func (s *Service) detachNew(ctx context.Context, use *Use, number int) error {
	if known := s.devices.get(use.VolumeID); number == known.staged || number == known.readOnly || len(use.Publications) > 0 {
		return nil
	}

	return s.detach(ctx, use, number)
}

// attachBlock attaches the image of a raw-block volume, for one purpose of the
// pair, and remembers the number.
func (s *Service) attachBlock(ctx context.Context, use *Use, readOnly bool) (int, error) {
	device, err := s.attachNamed(ctx, use, readOnly, false)
	if err != nil {
		return none, err
	}

	if err := device.Close(); err != nil {
		return none, err
	}

	s.foundDevice(use, device.Number, readOnly)

	return device.Number, nil
}

// findDevices learns the numbers again after a restart. The name of the image
// tells, so that the devices of one that was deleted are found, too.
func (s *Service) findDevices(attached []blockdev.Attachment) {
	for _, status := range attached {
		id := strings.TrimSuffix(path.Base(status.BackingPath), pool.ImageSuffix)

		use, known := s.uses.get(id)
		if !known || !use.byDevice() {
			continue
		}

		s.foundDevice(use, status.Number, status.ReadOnly)
	}
}

func (s *Service) foundDevice(use *Use, number int, readOnly bool) {
	numbers := s.devices.get(use.VolumeID)
	if readOnly && !use.readOnly() {
		numbers.readOnly = number
	} else {
		numbers.staged = number
	}

	s.devices.set(use.VolumeID, numbers)
}

// findRenamed learns the numbers of volumes whose images have another name by now:
// from where their nodes are bound, from what runtimes were told, and from where
// they would be by preference.
func (s *Service) findRenamed(all []blockdev.Attachment) {
	for _, use := range s.uses.all() {
		if !use.byDevice() || s.devices.get(use.VolumeID) != (pair{staged: none, readOnly: none}) {
			continue
		}

		for _, number := range s.likelyNumbers(use) {
			status, attached, err := s.loops.Status(number)
			if err != nil || !attached || status.AttachedAs != imageName(use.VolumeID) {
				continue
			}

			for _, each := range all {
				if each.BackingPath == status.BackingPath {
					s.foundDevice(use, each.Number, each.ReadOnly)
				}
			}
		}
	}
}

func (s *Service) likelyNumbers(use *Use) []int {
	var numbers []int

	if use.Slot != none {
		numbers = append(numbers, s.loops.OwnNumber(use.Slot))
	}

	for _, publication := range use.Publications {
		if number, told := s.toldNumber(use, publication); told {
			numbers = append(numbers, number)
		}

		place, err := s.places.Find(publication.TargetPath)
		if err != nil {
			continue
		}

		if point, mounted, err := place.Mounted(); err == nil && mounted {
			if number, isLoop := loopNumber(point); isLoop {
				numbers = append(numbers, number)
			}
		}

		place.Close()
	}

	return numbers
}

// releaseReader detaches the second device once nobody reads through it.
func (s *Service) releaseReader(ctx context.Context, use *Use) error {
	known := s.devices.get(use.VolumeID)
	if known.readOnly == none {
		return nil
	}

	for _, publication := range use.Publications {
		if publication.ReadOnly {
			return nil
		}
	}

	if err := s.detach(ctx, use, known.readOnly); err != nil {
		return err
	}

	known.readOnly = none
	s.devices.set(use.VolumeID, known)

	return nil
}

// releaseDevices detaches all devices of a raw-block volume.
func (s *Service) releaseDevices(ctx context.Context, use *Use) error {
	known := s.devices.get(use.VolumeID)

	for _, number := range []int{known.readOnly, known.staged} {
		if number == none {
			continue
		}

		if err := s.detach(ctx, use, number); err != nil {
			return err
		}
	}

	s.devices.set(use.VolumeID, pair{staged: none, readOnly: none})

	return nil
}

// detach detaches the number if it still has the volume's image, and returns
// when it is gone.
func (s *Service) detach(ctx context.Context, use *Use, number int) error {
	status, attached, err := s.loops.Status(number)
	if err != nil || !attached {
		return err
	}

	return s.detached(ctx, use, status)
}

// detached returns when the attachment is gone that status tells of.
func (s *Service) detached(ctx context.Context, use *Use, status blockdev.Status) error {
	s.releaseQueue(use, status.Number)
	s.evidence.detach(status.Number)

	ctx, cancel := context.WithTimeout(ctx, detachLimit)
	defer cancel()

	err := s.loops.DetachImage(ctx, status.Number, status.Backing())
	if err != nil && !errors.Is(err, blockdev.ErrOtherImage) {
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
