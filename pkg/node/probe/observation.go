package probe

import (
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// observation is what one probe has read of a volume. The next probe and the events of
// the kernel are compared with it.
type observation struct {
	at time.Time
	// attached is the volume's loop device, nil where none was found.
	attached *Attachment
	// imageBytes is the size of the image, and growth when the image last became larger.
	imageBytes int64
	growth     growth
	// mounts has an entry for each path at which the volume has to be mounted: a zero
	// value where it is not.
	mounts map[string]observedMount
	// filesystem is its fsid, zero where the volume has no filesystem of its own.
	filesystem [2]int32
	// checkPeriod is the time between two checks, 0 where there are none.
	checkPeriod time.Duration
}

// lastObservation is what is remembered of one volume.
type lastObservation struct {
	observation

	// ioErrorAt is the time of the last I/O error of the device, as an event reported it, and
	// foreignWriteAt that of the last write to the image by another program.
	ioErrorAt, foreignWriteAt time.Time
	// unexplainedWrites are the times of the writes to the image since the last probe, which has to
	// find out which of them are the driver's or the device's.
	unexplainedWrites []time.Time
	// attachedAt is zero for what was attached before the driver's start.
	attachedAt time.Time
	// usage is what NodeGetVolumeStats measured: of a directory by a walk, which no probe
	// makes, of an image maybe before the first probe.
	usage *health.Usage
}

// Attachment is one image at one loop device.
type Attachment struct {
	Number int
	// Sequence is the kernel's DISKSEQ, 0 on kernels that have none (before 5.15).
	Sequence uint64
	// deviceBytes is 0 until a probe has read it.
	deviceBytes int64
}

// is reports whether the number still has the same attachment. Without a sequence that
// cannot be known.
func (a *Attachment) is(number int, sequence uint64) bool {
	return a != nil && a.Number == number && a.Sequence == sequence && sequence != 0
}

// replaced reports whether now is known to be another attachment than before.
func replaced(before, now *Attachment) bool {
	return before != nil && now != nil && before.Sequence != now.Sequence
}

// growth is the interval between two probes in which the image has grown, extended by
// growthSettleTime. Writes to the image within it are attributed to the growth.
type growth struct {
	after, until time.Time
}

// growthSettleTime is for how long after an image has grown writes to it are attributed
// to the growth.
const growthSettleTime = 2 * time.Second

// covers reports whether the growth explains a write at that time.
func (g growth) covers(written time.Time) bool {
	return written.After(g.after) && written.Before(g.until)
}

// observedMount is a mount of a volume.
type observedMount struct {
	mountState

	id uint64
}

// mountState is what of a mount may change and make the volume unhealthy.
type mountState struct {
	readOnly, superReadOnly, emergency, shutdown bool
}

func mountStateOf(point *mount.Point) mountState {
	return mountState{
		readOnly: point.ReadOnly, superReadOnly: point.SuperReadOnly,
		emergency: point.HasSuperOption("emergency_ro"), shutdown: point.HasSuperOption("shutdown"),
	}
}

// mountsChanged reports whether one of the mounts observed is gone, is covered by
// another mount, or has another state. A volume of which a mount was missing is always
// reported: the mount may be back.
func mountsChanged(observed map[string]observedMount, table mountTable) bool {
	for _, was := range observed {
		point, ok := table.byID[was.id]
		if !ok || table.topAt[point.Path] != was.id || mountStateOf(point) != was.mountState {
			return true
		}
	}

	return false
}

// mountTable indexes the mounts of this mount namespace.
type mountTable struct {
	byID map[uint64]*mount.Point
	// topAt has the id of the mount that is visible at a path: the newest one.
	topAt map[string]uint64
}

func newMountTable(points []mount.Point) mountTable {
	table := mountTable{byID: make(map[uint64]*mount.Point, len(points)), topAt: make(map[string]uint64, len(points))}

	for i := range points {
		point := &points[i]
		table.byID[point.ID] = point
		table.topAt[point.Path] = max(table.topAt[point.Path], point.ID)
	}

	return table
}
