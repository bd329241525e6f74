package device

import (
	"sync"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Raw has the loop devices of raw-block and direct volumes, which are attached until the volume is
// unstaged. The devices of mounted volumes are found through their mounts. It is safe for concurrent use.
type Raw struct {
	config *Config

	mu       sync.Mutex
	byVolume map[string]Attachments
}

// Numbers are the loop devices of a raw-block or direct volume: the one of the staging,
// and a second one of the read-only publications if the first can be written (a read-only
// bind mount of a device node does not prevent writes to the device).
type Numbers struct {
	Staged, ReadOnly int
}

// Attachments are the devices that a volume was attached to, with their disk sequence
// numbers: if another program detaches an image, the kernel reuses its number.
type Attachments struct {
	Numbers

	StagedSequence, ReadOnlySequence uint64

	// notFound says that the devices could not be searched for because of a failure.
	notFound bool
}

func noNumbers() Numbers { return Numbers{Staged: None, ReadOnly: None} }

func newRaw(config *Config) *Raw {
	return &Raw{config: config, byVolume: map[string]Attachments{}}
}

// Get returns the attachments that are still the volume's, and None for those that have
// another image by now.
func (r *Raw) Get(volumeID string) (Numbers, error) {
	attachments, err := r.Found(volumeID)
	if err != nil {
		return noNumbers(), err
	}

	if attachments.Staged, err = r.verify(attachments.Staged, attachments.StagedSequence); err != nil {
		return noNumbers(), err
	}

	attachments.ReadOnly, err = r.verify(attachments.ReadOnly, attachments.ReadOnlySequence)

	return attachments.Numbers, err
}

// Found returns what is recorded, after another search for devices that the start could not find.
func (r *Raw) Found(volumeID string) (Attachments, error) {
	if attachments := r.recorded(volumeID); !attachments.notFound {
		return attachments, nil
	}

	if err := r.findAgain(volumeID); err != nil {
		return Attachments{Numbers: noNumbers()}, err
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	attachments, known := r.byVolume[volumeID]
	if !known {
		return Attachments{Numbers: noNumbers()}, nil // it was dropped meanwhile
	}

	attachments.notFound = false
	r.byVolume[volumeID] = attachments

	return attachments, nil
}

func (r *Raw) recorded(volumeID string) Attachments {
	r.mu.Lock()
	defer r.mu.Unlock()

	if attachments, ok := r.byVolume[volumeID]; ok {
		return attachments
	}

	return Attachments{Numbers: noNumbers()}
}

// change changes what is recorded of the volume, also if that is nothing yet.
func (r *Raw) change(volumeID string, change func(*Attachments)) {
	r.mu.Lock()
	defer r.mu.Unlock()

	attachments, known := r.byVolume[volumeID]
	if !known {
		attachments.Numbers = noNumbers()
	}

	change(&attachments)
	r.byVolume[volumeID] = attachments
}

// verify returns None for a number that is attached for another image by now.
func (r *Raw) verify(number int, sequence uint64) (int, error) {
	if number == None {
		return None, nil
	}

	now, attached, err := r.config.Loops.Attachment(number)
	if err != nil || attached && now.Sequence != sequence {
		return None, err
	}

	return number, nil
}

// Had reports whether the volume was attached to the number, whatever image has it by now.
func (r *Raw) Had(volumeID string, number int) bool {
	attachments := r.recorded(volumeID)

	return number == attachments.Staged || number == attachments.ReadOnly
}

// Add records a device of the volume; second means the one of its read-only publications.
func (r *Raw) Add(volumeID string, number int, sequence uint64, second bool) {
	r.change(volumeID, func(a *Attachments) {
		if second {
			a.ReadOnly, a.ReadOnlySequence = number, sequence
		} else {
			a.Staged, a.StagedSequence = number, sequence
		}
	})
}

// drop drops both devices of the volume.
func (r *Raw) drop(volumeID string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.byVolume, volumeID)
}

// Attachment returns the device of the volume's staging, false where it has none. It may be
// one that is detached with its last user (AutoClear).
func (r *Raw) Attachment(volumeID string) (loop.Attachment, bool, error) {
	attachments, err := r.Found(volumeID)
	if err != nil {
		return loop.Attachment{}, false, err
	}

	attachment, attached, err := r.config.Loops.Attachment(attachments.Staged)

	return attachment, attached && attachment.Sequence == attachments.StagedSequence, err
}

// IsStaleNode reports whether the mount is a bind of the node of a loop device that has no
// image any more, or had the volume's image before another one: such a bind outlives the
// attachment.
func (r *Raw) IsStaleNode(v *staged.Volume, point mount.Point) (bool, error) {
	number, isLoop := point.LoopDevice()
	if !isLoop || point.Major == loop.Major {
		return false, nil
	}

	if r.Had(v.VolumeID, number) {
		return true, nil
	}

	_, attached, err := r.config.Loops.Attachment(number)

	return err == nil && !attached, observe.Unknown(err, v, "attached to "+loop.Name(number))
}
