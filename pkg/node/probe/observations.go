package probe

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// Observations remembers the last observation of each volume and what events reported
// since, and maps what events name (devices, fsids) to volumes. The volume
// ids are those that the CO uses.
type Observations struct {
	mu       sync.Mutex
	byVolume map[string]*lastObservation
	index    index
	// queries are the start times of the unanswered queries to filesystems.
	queries map[string][]*time.Time
}

// NewObservations returns an empty memory.
func NewObservations() *Observations {
	return &Observations{
		byVolume: map[string]*lastObservation{}, index: newIndex(), queries: map[string][]*time.Time{},
	}
}

// last returns a copy of what is remembered of the volume.
func (o *Observations) last(id string) lastObservation {
	o.mu.Lock()
	defer o.mu.Unlock()

	if found, ok := o.byVolume[id]; ok {
		return *found
	}

	return lastObservation{}
}

func (o *Observations) volumeLocked(id string) *lastObservation {
	found, ok := o.byVolume[id]
	if !ok {
		found = &lastObservation{}
		o.byVolume[id] = found
	}

	return found
}

// AddReader maps a raw-block volume's second, read-only device to the volume.
func (o *Observations) AddReader(id string, number int) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.index.attach(number, id)
}

// Attach records the volume's new device before anything uses it. The image of an
// ephemeral volume was just formatted in the pool: those writes are attributed to growth.
func (o *Observations) Attach(id string, now Attachment, imageBytes int64, ephemeral bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.index.attach(now.Number, id)

	found := o.volumeLocked(id)
	found.at = time.Now()
	found.attachedAt, found.attached, found.imageBytes = found.at, &now, imageBytes

	if ephemeral {
		found.growth = growth{until: found.at.Add(growthSettleTime)}
	}
}

// Detach drops the mapping of a device that is about to be detached. Events of failed requests that
// come within lateEvents are still the volume's.
func (o *Observations) Detach(number int) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.index.detach(number)
}

// set stores what a probe has read. What events reported of an earlier attachment does
// not apply to the next one.
func (o *Observations) set(id string, now observation) {
	o.mu.Lock()
	defer o.mu.Unlock()

	found := o.volumeLocked(id)

	if replaced(found.attached, now.attached) {
		found.ioErrorAt, found.foreignWriteAt, found.unexplainedWrites = time.Time{}, time.Time{}, nil
	}

	o.index.move(id, found.observation, now)
	found.observation = now
}

// Forget drops all that is remembered of a volume.
func (o *Observations) Forget(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	if was, ok := o.byVolume[id]; ok {
		o.index.leaveFilesystem(id, was.filesystem)
	}

	o.index.forget(id)
	delete(o.byVolume, id)
}

// DetachAll is Detach for all devices of a volume that is not attached any more. What was observed of
// the volume stays.
func (o *Observations) DetachAll(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	for number, volumeID := range o.index.byNumber {
		if volumeID == id {
			o.index.detach(number)
		}
	}
}

// SetUsage records what NodeGetVolumeStats has measured.
func (o *Observations) SetUsage(id string, usage health.Usage) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.volumeLocked(id).usage = &usage
}

// LastUsage returns the usage last measured, at least the size of the device or of the
// image.
func (o *Observations) LastUsage(id string) health.Usage {
	last := o.last(id)

	switch {
	case last.usage != nil:
		return *last.usage
	case last.attached != nil && last.attached.deviceBytes > 0:
		return health.Usage{Bytes: health.Amount{Total: last.attached.deviceBytes}}
	default:
		return health.Usage{Bytes: health.Amount{Total: last.imageBytes}}
	}
}

// CheckPeriod returns the time between two checks as the last probe read it from the
// volume's pool, 0 where it is unknown or there are none.
func (o *Observations) CheckPeriod(id string) time.Duration { return o.last(id).checkPeriod }

// IsVolumesMount reports whether the last probe found the volume in that mount at the
// path.
func (o *Observations) IsVolumesMount(id, path string, mountID uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	found, ok := o.byVolume[id]

	return ok && found.mounts[path].id == mountID
}

// recordIOError records that a request to a device has failed, and returns its volume.
func (o *Observations) recordIOError(event health.Event) []string {
	o.mu.Lock()
	defer o.mu.Unlock()

	ids := o.index.atDevice(event.Device)
	if len(ids) == 0 {
		ids = o.index.detachedFrom(event)
	}

	for _, id := range ids {
		o.volumeLocked(id).ioErrorAt = event.At
	}

	return ids
}

// atDevice returns the volume that is attached to the device.
func (o *Observations) atDevice(device uint64) []string {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.index.atDevice(device)
}

// inFilesystem returns the volumes whose filesystem has the fsid.
func (o *Observations) inFilesystem(filesystem [2]int32) []string {
	o.mu.Lock()
	defer o.mu.Unlock()

	return slices.Clone(o.index.byFilesystem[filesystem])
}

// maxWriteDelay is the longest delay between a write and its event.
const maxWriteDelay = 20 * time.Millisecond

// maxUnexplainedWrites bounds how many times of writes wait for a probe, which their events
// trigger. Later ones replace the last one.
const maxUnexplainedWrites = 64

// recordWrite records that a volume's image was written, if it was attached at that time.
func (o *Observations) recordWrite(id string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()

	found, ok := o.byVolume[id]
	if !ok || found.attached == nil || !at.After(found.attachedAt.Add(maxWriteDelay)) {
		return
	}

	if len(found.unexplainedWrites) == maxUnexplainedWrites {
		found.unexplainedWrites = found.unexplainedWrites[:maxUnexplainedWrites-1]
	}

	found.unexplainedWrites = append(found.unexplainedWrites, at)
}

// takeUnexplainedWrites returns the writes that no probe has explained, and drops them.
func (o *Observations) takeUnexplainedWrites(id string) []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()

	found, ok := o.byVolume[id]
	if !ok {
		return nil
	}

	writes := found.unexplainedWrites
	found.unexplainedWrites = nil

	return writes
}

// recordForeignWrite records that another program has written the volume's image.
func (o *Observations) recordForeignWrite(id string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.volumeLocked(id).foreignWriteAt = at
}

// withIOErrors returns the volumes of which an I/O error was reported.
func (o *Observations) withIOErrors() []string {
	o.mu.Lock()
	defer o.mu.Unlock()

	var ids []string

	for id, found := range o.byVolume {
		if !found.ioErrorAt.IsZero() {
			ids = append(ids, id)
		}
	}

	return ids
}

// withChangedMounts returns the volumes whose mounts differ from the last observation.
func (o *Observations) withChangedMounts(points []mount.Point) []string {
	table := newMountTable(points)

	o.mu.Lock()
	defer o.mu.Unlock()

	var ids []string

	for id, found := range o.byVolume {
		if mountsChanged(found.mounts, table) {
			ids = append(ids, id)
		}
	}

	return ids
}

// queryTimeout is how long a query to a filesystem may take before the filesystem counts
// as hanging.
const queryTimeout = time.Second

// ErrNoResponse means that the volume's filesystem does not respond.
var ErrNoResponse = errors.New("its filesystem does not answer")

// BeginQuery registers a query to the volume's filesystem until end is called. It returns
// ErrNoResponse where an earlier query has run for more than queryTimeout: each of them
// may block a thread.
func (o *Observations) BeginQuery(id string) (end func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	now := time.Now()

	for _, since := range o.queries[id] {
		if now.Sub(*since) > queryTimeout {
			return nil, ErrNoResponse
		}
	}

	o.queries[id] = append(o.queries[id], &now)

	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()

		o.queries[id] = slices.DeleteFunc(o.queries[id], func(other *time.Time) bool { return other == &now })
		if len(o.queries[id]) == 0 {
			delete(o.queries, id)
		}
	}, nil
}
