package probe

import (
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// detachedDevice is the volume that a device was attached for, and until when an event may be of that
// time.
type detachedDevice struct {
	id    string
	until time.Time
}

// lateEvents is how long after a failed request its event may come.
const lateEvents = 10 * time.Second

// index maps what events name to volumes. The lock of Observations guards it.
type index struct {
	// byNumber maps loop devices, and byFilesystem fsids, which several volumes may share.
	byNumber     map[int]string
	byFilesystem map[[2]int32][]string
	// detached has the loop devices that were detached last, of which events may still come.
	detached map[int]detachedDevice
}

func newIndex() index {
	return index{
		byNumber: map[int]string{}, byFilesystem: map[[2]int32][]string{},
		detached: map[int]detachedDevice{},
	}
}

func (x *index) attach(number int, id string) {
	x.byNumber[number] = id
	delete(x.detached, number)
}

// move follows the device and the filesystem of a volume from one observation to the next.
func (x *index) move(id string, was, now observation) {
	if was.attached != nil && now.attached == nil && x.byNumber[was.attached.Number] == id {
		delete(x.byNumber, was.attached.Number)
	}

	if was.filesystem != now.filesystem {
		x.leaveFilesystem(id, was.filesystem)
	}

	if now.filesystem != ([2]int32{}) && !slices.Contains(x.byFilesystem[now.filesystem], id) {
		x.byFilesystem[now.filesystem] = append(x.byFilesystem[now.filesystem], id)
	}

	if now.attached != nil {
		x.byNumber[now.attached.Number] = id
	}
}

// forget drops all of a volume but its filesystem, also of one that was attached and never observed.
func (x *index) forget(id string) {
	maps.DeleteFunc(x.byNumber, func(_ int, volumeID string) bool { return volumeID == id })
	maps.DeleteFunc(x.detached, func(_ int, device detachedDevice) bool { return device.id == id })
}

func (x *index) detach(number int) {
	if id, ok := x.byNumber[number]; ok {
		x.detached[number] = detachedDevice{id: id, until: time.Now().Add(lateEvents)}
	}

	delete(x.byNumber, number)
}

func (x *index) leaveFilesystem(id string, filesystem [2]int32) {
	others := slices.DeleteFunc(x.byFilesystem[filesystem], func(other string) bool { return other == id })
	if len(others) == 0 {
		delete(x.byFilesystem, filesystem)

		return
	}

	x.byFilesystem[filesystem] = others
}

// detachedFrom returns the volume that was attached to the event's device until shortly before.
func (x *index) detachedFrom(event health.Event) []string {
	if unix.Major(event.Device) != loop.Major {
		return nil
	}

	last, ok := x.detached[int(unix.Minor(event.Device))]
	if !ok || !event.At.Before(last.until) {
		return nil
	}

	return []string{last.id}
}

func (x *index) atDevice(device uint64) []string {
	if unix.Major(device) != loop.Major {
		return nil
	}

	if id, ok := x.byNumber[int(unix.Minor(device))]; ok {
		return []string{id}
	}

	return nil
}
