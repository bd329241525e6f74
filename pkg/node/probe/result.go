package probe

import (
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
)

// findings are what a probe has found.
type findings struct {
	entries []health.Entry
	usage   *health.Usage
	// again and noEarlyProbe become Again and NoEarlyProbe of health.Observation.
	again        time.Duration
	noEarlyProbe bool
	// unsettled means that a finding may be caused by an operation that is running: one
	// about what is mounted or attached, or with which image.
	unsettled bool
}

func (f *findings) add(reason health.Reason, message string) {
	f.entries = append(f.entries, health.NewEntry(reason, message))
}

func (f *findings) probeAgainAfter(wait time.Duration) {
	if f.again == 0 || wait < f.again {
		f.again = wait
	}
}

func (f *findings) result() health.Observation {
	return health.Observation{Entries: f.entries, Usage: f.usage, Again: f.again, NoEarlyProbe: f.noEarlyProbe}
}

func (f *findings) addDetached() {
	f.unsettled = true
	f.add(health.DeviceMissing, "its image was detached from its loop device; unpublish and unstage it, then stage it again")
}

func (f *findings) addShutDown() {
	f.add(health.DiskFailure, "its filesystem has shut down; see the kernel's log, unstage it and stage it again")
}

func (f *findings) addLostBacking(backing volume.Backing, how, remedy string) {
	f.unsettled = true
	f.entries = append(f.entries, health.LostBacking(backing, how+"; "+remedy))
}

// addSuspicion adds what was observed since the last check, unless data is known to be lost.
func (f *findings) addSuspicion(suspicion *fsck.Suspicion) {
	isLoss := func(entry health.Entry) bool { return entry.Status == health.DataLoss }

	if suspicion != nil && !slices.ContainsFunc(f.entries, isLoss) {
		f.add(suspicion.Reason, suspicion.Message)
	}
}

func (f *findings) addExhausted(usage mount.Usage, isImage bool) {
	if bytesExhausted(usage) {
		message := "it is full; delete files, or expand it"
		if !isImage {
			message = "it has reached its size limit, or its pool is full; delete files, expand it, or grow the pool"
		}

		f.add(health.OutOfCapacity, message)
	}

	if inodesExhausted(usage) {
		f.add(health.InodesExhausted, "no inode is left for new files; delete some, or expand it")
	}
}

const unmounted = "not mounted any more"

func (f *findings) addUnmounted(expected expectedMount, isUnstaged bool, how string) {
	f.unsettled = true

	if !expected.isTarget && isUnstaged {
		return
	}

	remedy := "; stage it again: "

	switch {
	case expected.isPersistent:
		remedy = "; mount it again: "
	case expected.isTarget:
		remedy = "; restart its pod: "
	}

	f.add(health.VolumeUnmounted, how+remedy+expected.path)
}
