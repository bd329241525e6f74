package node

import (
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// evidence is what looks and events leave behind: what no later look can see
// again, what a later one has to be compared with, and how the kernel's names
// lead to volumes. Volumes go by the id that the CO has for them.
type evidence struct {
	mu       sync.Mutex
	byVolume map[string]*known
	// byNumber has loop devices, byFilesystem those that share an fsid, and
	// byContent the names that the bytes of inline ephemeral volumes have.
	byNumber     map[int]string
	byFilesystem map[[2]int32][]string
	byContent    map[string]string
	// asked are the questions to filesystems that are not answered yet, and when
	// each was put.
	asked map[string][]*time.Time
}

// known is what is known of one volume.
type known struct {
	sight

	// ioErrorAt and writtenAt are when events last told of an I/O error, and of a
	// foreign program that wrote the image.
	ioErrorAt, writtenAt time.Time
	// attachedAt is zero for what was attached before the driver's start.
	attachedAt time.Time
	// usage is what NodeGetVolumeStats has found: of a directory by a walk that no
	// look takes, of an image maybe before the first look.
	usage *health.Usage
}

// sight is what one look has seen.
type sight struct {
	at       time.Time
	attached *attachment
	// imageBytes is how large the image was, and growth when it last became so.
	imageBytes int64
	growth     growth
	// mounts are by the path that was asked for; those that are missing have a
	// zero value.
	mounts map[string]seen
	// filesystem is its fsid, zero where there is none.
	filesystem [2]int32
	// period is the time between two checks, 0 where there are none.
	period time.Duration
}

// growth is the time between two looks in which the image has grown, and some
// more: writes to it are the growth's.
type growth struct {
	after, until time.Time
}

func (g growth) explains(written time.Time) bool {
	return written.After(g.after) && written.Before(g.until)
}

// attachment is one image at one loop device. Sequence is 0 on kernels that have
// none.
type attachment struct {
	number      int
	sequence    uint64
	deviceBytes int64
}

// same says whether it is still the same attachment, and not only the number.
func (a *attachment) same(number int, sequence uint64) bool {
	return a != nil && a.number == number && a.sequence == sequence && sequence != 0
}

// seen is a mount of a volume.
type seen struct {
	traits

	id uint64
}

// traits are what of a mount can be trouble.
type traits struct {
	readOnly, superReadOnly, emergency, shutdown bool
}

func traitsOf(point *mount.Point) traits {
	return traits{
		readOnly: point.ReadOnly, superReadOnly: point.SuperReadOnly,
		emergency: point.HasSuperOption("emergency_ro"), shutdown: point.HasSuperOption("shutdown"),
	}
}

func newEvidence() *evidence {
	return &evidence{
		byVolume: map[string]*known{}, byNumber: map[int]string{},
		byFilesystem: map[[2]int32][]string{}, byContent: map[string]string{},
		asked: map[string][]*time.Time{},
	}
}

// of returns a copy of what is known.
func (e *evidence) of(id string) known {
	e.mu.Lock()
	defer e.mu.Unlock()

	if found, ok := e.byVolume[id]; ok {
		return *found
	}

	return known{}
}

// entry is the volume's own; the caller has the lock.
func (e *evidence) entry(id string) *known {
	found, ok := e.byVolume[id]
	if !ok {
		found = &known{}
		e.byVolume[id] = found
	}

	return found
}

// named says whose bytes are called contentID in their pool.
func (e *evidence) named(contentID, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.byContent[contentID] = id
}

// volume returns the volume whose bytes have the name in their pool, which for
// most is their own.
func (e *evidence) volume(contentID string) string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.subjectOf(contentID)
}

func (e *evidence) subjectOf(contentID string) string {
	if id, inline := e.byContent[contentID]; inline {
		return id
	}

	return contentID
}

// attach says, before anybody uses the device, whose it is. Of a volume's second
// device, for its readers, that is all.
func (e *evidence) attach(use *staged.Volume, now attachment, imageBytes int64, second bool) {
	e.mu.Lock()
	defer e.mu.Unlock()

	id := e.subjectOf(use.VolumeID)
	e.byNumber[now.number] = id

	if second {
		return
	}

	known := e.entry(id)
	known.at = time.Now()
	known.attachedAt, known.attached, known.imageBytes = known.at, &now, imageBytes

	if use.Ephemeral {
		// It has just been formatted in its place.
		known.growth = growth{until: known.at.Add(growthEcho)}
	}
}

// detach says that the device is about to be nobody's.
func (e *evidence) detach(number int) {
	e.mu.Lock()
	defer e.mu.Unlock()

	delete(e.byNumber, number)
}

// keep remembers what a look has seen. What events have told of an attachment
// that is gone is not true of the next one.
func (e *evidence) keep(id string, seen sight) {
	e.mu.Lock()
	defer e.mu.Unlock()

	now := e.entry(id)

	if was := now.attached; was != nil && seen.attached != nil && was.sequence != seen.attached.sequence {
		now.ioErrorAt, now.writtenAt = time.Time{}, time.Time{}
	}

	if was := now.attached; was != nil && seen.attached == nil && e.byNumber[was.number] == id {
		delete(e.byNumber, was.number)
	}

	if now.filesystem != seen.filesystem {
		e.leaveFilesystem(id, now.filesystem)
	}

	if seen.filesystem != ([2]int32{}) && !slices.Contains(e.byFilesystem[seen.filesystem], id) {
		e.byFilesystem[seen.filesystem] = append(e.byFilesystem[seen.filesystem], id)
	}

	if seen.attached != nil {
		e.byNumber[seen.attached.number] = id
	}

	now.sight = seen
}

func (e *evidence) leaveFilesystem(id string, filesystem [2]int32) {
	left := slices.DeleteFunc(e.byFilesystem[filesystem], func(other string) bool { return other == id })
	if len(left) == 0 {
		delete(e.byFilesystem, filesystem)

		return
	}

	e.byFilesystem[filesystem] = left
}

// forget drops all that is known of a volume.
func (e *evidence) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	was, ok := e.byVolume[id]
	if !ok {
		return
	}

	e.leaveFilesystem(id, was.filesystem)

	if was.attached != nil && e.byNumber[was.attached.number] == id {
		delete(e.byNumber, was.attached.number)
	}

	maps.DeleteFunc(e.byContent, func(_, subject string) bool { return subject == id })
	delete(e.byVolume, id)
}

// measured keeps what a walk has found.
func (e *evidence) measured(id string, usage health.Usage) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.entry(id).usage = &usage
}

// ioError returns the volume whose device has failed a request.
func (e *evidence) ioError(event health.Event) []string {
	e.mu.Lock()
	defer e.mu.Unlock()

	ids := e.atLocked(event.Device)
	for _, id := range ids {
		e.entry(id).ioErrorAt = event.At
	}

	return ids
}

// atDevice returns the volume that a device number is of.
func (e *evidence) atDevice(device uint64) []string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.atLocked(device)
}

func (e *evidence) atLocked(device uint64) []string {
	if unix.Major(device) != loopMajor {
		return nil
	}

	if id, ok := e.byNumber[int(unix.Minor(device))]; ok {
		return []string{id}
	}

	return nil
}

// inFilesystem returns the volumes whose filesystem has the fsid.
func (e *evidence) inFilesystem(filesystem [2]int32) []string {
	e.mu.Lock()
	defer e.mu.Unlock()

	return slices.Clone(e.byFilesystem[filesystem])
}

// writeLag is how much later than it was made a write may be told of.
const writeLag = 20 * time.Millisecond

// written says that somebody else has written a volume's image, if it was attached
// by then.
func (e *evidence) written(id string, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if found, ok := e.byVolume[id]; ok && found.attached != nil && at.After(found.attachedAt.Add(writeLag)) {
		found.writtenAt = at
	}
}

// explained takes a write back that turned out to be no foreign one.
func (e *evidence) explained(id string, at time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()

	if found, ok := e.byVolume[id]; ok && found.writtenAt.Equal(at) {
		found.writtenAt = time.Time{}
	}
}

// failing are the volumes of which an I/O error was told.
func (e *evidence) failing() []string {
	e.mu.Lock()
	defer e.mu.Unlock()

	var ids []string

	for id, found := range e.byVolume {
		if !found.ioErrorAt.IsZero() {
			ids = append(ids, id)
		}
	}

	return ids
}

// otherThan returns the volumes of which a mount has gone, has come to lie
// beneath another or has other traits than when it was seen. Those that miss one
// are always among them: it may be back.
func (e *evidence) otherThan(points []mount.Point) []string {
	now, top := make(map[uint64]*mount.Point, len(points)), make(map[string]uint64, len(points))

	for i := range points {
		point := &points[i]
		now[point.ID] = point
		top[point.Path] = max(top[point.Path], point.ID)
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	var ids []string

	for id, found := range e.byVolume {
		for _, was := range found.mounts {
			point, there := now[was.id]
			if !there || top[point.Path] != was.id || traitsOf(point) != was.traits {
				ids = append(ids, id)

				break
			}
		}
	}

	return ids
}

// saw says whether that mount at the path is known to be the volume.
func (e *evidence) saw(id, path string, mountID uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	found, ok := e.byVolume[id]

	return ok && found.mounts[path].id == mountID
}

// ask returns what is to be called when a question to the volume's filesystem is
// answered, or errSilent where an earlier one has not been for too long: each of
// them may hold a thread.
func (e *evidence) ask(id string) (answered func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()

	now := time.Now()

	for _, since := range e.asked[id] {
		if now.Sub(*since) > patience {
			return nil, errSilent
		}
	}

	e.asked[id] = append(e.asked[id], &now)

	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()

		e.asked[id] = slices.DeleteFunc(e.asked[id], func(other *time.Time) bool { return other == &now })
		if len(e.asked[id]) == 0 {
			delete(e.asked, id)
		}
	}, nil
}
