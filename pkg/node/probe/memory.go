package probe

import (
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Memory is what operations report about volumes, and what probes have observed last. It implements
// device.Events and access.Events. It is safe for concurrent use.
type Memory struct {
	observations *Observations
	gate         *Gate
	busy         *busyVolumes
}

// NewMemory returns an empty memory.
func NewMemory() *Memory {
	return &Memory{observations: NewObservations(), gate: NewGate(), busy: newBusyVolumes()}
}

// Observations are the last observations of the volumes.
func (m *Memory) Observations() *Observations { return m.observations }

// Gate keeps probes out of volumes that are unmounted.
func (m *Memory) Gate() *Gate { return m.gate }

// Attached records the volume's new device before anything uses it. isSecond means that it is
// a raw-block volume's second device, for its read-only publications.
func (m *Memory) Attached(record *staged.Volume, device *loop.Device, imageBytes int64, isSecond bool) {
	if isSecond {
		m.observations.AddReader(record.VolumeID, device.Number)

		return
	}

	m.observations.Attach(record.VolumeID, Attachment{Number: device.Number, Sequence: device.Sequence},
		imageBytes, record.Ephemeral)
}

// Detached drops the mapping of a device that is about to be detached.
func (m *Memory) Detached(number int) { m.observations.Detach(number) }

// MountBusy records that a call could not unmount the volume from the path, because something
// uses the mount.
func (m *Memory) MountBusy(record *staged.Volume, path string) {
	m.busy.add(record.VolumeID, busyVolume{path: path})
}

// Unmounted records that the volume was unmounted from the path.
func (m *Memory) Unmounted(record *staged.Volume, path string) {
	m.busy.remove(record.VolumeID, func(busy busyVolume) bool { return busy.path == path })
}

// DeviceBusy records that a call could not detach the volume's device, because something has it
// open or mounted.
func (m *Memory) DeviceBusy(record *staged.Volume, number int, sequence uint64) {
	m.busy.add(record.VolumeID, busyVolume{device: Attachment{Number: number, Sequence: sequence}})
}
