package probe

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/holder"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/operation"
)

// holderPeriod is for how long the process that was found last is named without another search,
// while it is running. A search reads the /proc of all processes.
const holderPeriod = 10 * time.Second

// busyVolume is what a call could not release: a mount that could not be unmounted, or a device
// that the kernel detaches with its last user.
type busyVolume struct {
	// path is that of the mount, empty for a device.
	path   string
	device Attachment
	// released means that the device is detached by now. The volume is not staged any more,
	// although its record says so until the CO repeats its call.
	released bool
	// holder is the process or block device that was found last, zero for none, and searchedAt when.
	holder     holder.Process
	searchedAt time.Time
}

func (b *busyVolume) isDevice() bool { return b != nil && b.path == "" }

// busyVolumes remembers what could not be released, by the volumes' ids. It is in memory only: the
// first call after a restart fails again.
type busyVolumes struct {
	mu       sync.Mutex
	byVolume map[string]busyVolume
	// search is the semaphore of the searches for processes: each may take long, or hang.
	search chan struct{}
}

func newBusyVolumes() *busyVolumes {
	return &busyVolumes{byVolume: map[string]busyVolume{}, search: make(chan struct{}, 1)}
}

// get returns a copy, nil where the volume is not busy.
func (b *busyVolumes) get(id string) *busyVolume {
	b.mu.Lock()
	defer b.mu.Unlock()

	if found, ok := b.byVolume[id]; ok {
		return &found
	}

	return nil
}

// ids returns the volumes of which something is held.
func (b *busyVolumes) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	var ids []string

	for id, each := range b.byVolume {
		if !each.released {
			ids = append(ids, id)
		}
	}

	return ids
}

func (b *busyVolumes) isHeld(id string) bool {
	found := b.get(id)

	return found != nil && !found.released
}

// add records what is held, with the process known so far if it was recorded before.
func (b *busyVolumes) add(id string, now busyVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if before, ok := b.byVolume[id]; ok && before.path == now.path && before.device.Number == now.device.Number {
		now.holder, now.searchedAt = before.holder, before.searchedAt
	}

	b.byVolume[id] = now
}

// update changes what is recorded, unless that is about something else by now.
func (b *busyVolumes) update(id string, changed busyVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if now, ok := b.byVolume[id]; ok && now.path == changed.path && now.device == changed.device {
		b.byVolume[id] = changed
	}
}

// remove drops what is recorded of the volume, if it is that.
func (b *busyVolumes) remove(id string, isOf func(busyVolume) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if busy, ok := b.byVolume[id]; ok && isOf(busy) {
		delete(b.byVolume, id)
	}
}

// forget drops all that is recorded of the volume.
func (b *busyVolumes) forget(id string) { b.remove(id, func(busyVolume) bool { return true }) }

// StagedOrPublished records that the CO uses the volume again: no use of it is in the way, and
// nothing keeps it from being staged.
func (p *Prober) StagedOrPublished(id string) {
	p.busy.forget(id)
	p.failures.forget(id, time.Now())
}

// addDetaching records a device of a raw-block or direct volume that another program has
// detached, or a call of an earlier run of the driver, while it was in use. The driver attaches
// these devices until they are unstaged.
func (s *probeState) addDetaching(number int, sequence uint64) {
	s.unsettled = true
	now := busyVolume{device: Attachment{Number: number, Sequence: sequence}}

	if s.busy.held == nil && !s.prober.isBusy(s.view.id) {
		s.prober.busy.add(s.view.id, now)
		s.busy.held = &now

		// A call that has unstaged it meanwhile has forgotten what was known before.
		if _, _, inUse := s.prober.config.Volumes.Get(s.view.id); !inUse {
			s.prober.busy.forget(s.view.id)
		}
	}
}

// busyProbe finds out what keeps in use what a call could not release of a volume.
type busyProbe struct {
	volumes *busyVolumes
	loops   *loop.Loops
	id      string
	// inUse means that the volume has a record.
	inUse bool
	// held is nil for nothing.
	held  *busyVolume
	found *findings
}

// isUnstaged reports whether the driver itself has unmounted the volume from its staging path, in a
// call that could not detach the device.
func (b *busyProbe) isUnstaged() bool { return b.held.isDevice() }

// report adds that something keeps in use what a call could not release, and which process does.
// The condition of a device ends when that is detached, the condition of a mount when it is
// unmounted, or when the process does not use it any more.
func (b *busyProbe) report(ctx context.Context, mounts map[string]observedMount) error {
	if b.held == nil || b.held.released {
		return nil
	}

	if b.held.isDevice() {
		return b.reportDevice(ctx)
	}

	if mounts[b.held.path].id == 0 {
		b.remove()

		return nil
	}

	before := b.held.holder
	process := b.findHolder(ctx, func() ([]holder.Process, error) { return holder.OfMount(b.held.path) })

	switch {
	case process.PID > 0:
		b.found.add(health.VolumeBusy, "not unmounted: "+process.Name()+" keeps it in use; end it: "+b.held.path)
	case process.Device != "":
		b.found.add(health.VolumeBusy, "not unmounted: "+process.Name()+" is made of it; detach that: "+b.held.path)
	case before != holder.Process{}:
		b.remove()
	default:
		b.found.add(health.VolumeBusy, "not unmounted: a process not visible here, or a mount beneath, keeps it in use: "+b.held.path)
	}

	return nil
}

func (b *busyProbe) reportDevice(ctx context.Context) error {
	process := b.findHolder(ctx, func() ([]holder.Process, error) {
		found, err := holder.OfDevice(unix.Mkdev(loop.Major, uint32(b.held.device.Number)))
		// During the search the device may have been detached, and attached to another volume.
		if attached, _ := b.isAttached(); !attached {
			return nil, errDetached
		}

		return found, err
	})

	attached, err := b.isAttached()

	switch {
	case err != nil:
		return err
	case !attached:
		b.endDevice()
	case process == holder.Process{}:
		b.found.add(health.VolumeBusy, "not detached: a process not visible here keeps it in use; look in other PID namespaces")
	case process.Device != "":
		b.found.add(health.VolumeBusy, "not detached: "+process.Name()+" is made of it, perhaps by the kubelet; detach that")
	case process.Mount == "":
		b.found.add(health.VolumeBusy, "not detached: "+process.Name()+" keeps it in use; end it")
	default:
		b.found.add(health.VolumeBusy, "not detached: "+process.Name()+" keeps it in use; end it or unmount "+process.Mount)
	}

	return nil
}

// errDetached: what a search has found uses another attachment of the device's number.
var errDetached = errors.New("the device is detached")

// isAttached reports whether the device that could not be detached is still attached.
func (b *busyProbe) isAttached() (bool, error) {
	now, attached, err := b.loops.Attachment(b.held.device.Number)

	return attached && now.Sequence == b.held.device.Sequence, err
}

// endDevice keeps what is known of a volume with a record: it is unstaged until the CO's next
// call.
func (b *busyProbe) endDevice() {
	if !b.inUse {
		b.volumes.forget(b.id)

		return
	}

	b.held.released = true
	b.volumes.update(b.id, *b.held)
}

func (b *busyProbe) remove() {
	b.volumes.remove(b.id, func(busy busyVolume) bool { return busy.path == b.held.path })
}

// findHolder returns what uses what is busy, zero where none is visible. It
// returns the last one for as long as that is among those found, so that the message stays the
// same, and where the search does not end within ResponseTimeout. One search runs at a time.
func (b *busyProbe) findHolder(ctx context.Context, search func() ([]holder.Process, error)) holder.Process {
	last := b.held.holder
	if time.Since(b.held.searchedAt) < holderPeriod && (last == holder.Process{} || last.IsRunning()) {
		return last
	}

	ctx, cancel := context.WithTimeout(ctx, ResponseTimeout)
	defer cancel()

	searches := b.volumes.search
	select {
	case searches <- struct{}{}:
	case <-ctx.Done():
		return last
	}

	found, err := operation.Await(ctx, func() ([]holder.Process, error) {
		defer func() { <-searches }()

		return search()
	})
	if err != nil {
		return last
	}

	now := holder.Process{}
	isLast := func(each holder.Process) bool { return each.PID == last.PID && each.Device == last.Device }

	if at := max(0, slices.IndexFunc(found, isLast)); len(found) > 0 {
		now = found[at]
	}

	b.held.holder, b.held.searchedAt = now, time.Now()
	b.volumes.update(b.id, *b.held)

	return now
}
