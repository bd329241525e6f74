package crash_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// history has what the CO knew at any point of the log of a disk's writes. A nil history
// records nothing.
type history struct {
	// position returns the number of entries in the log.
	position func() int

	mu    sync.Mutex
	calls []*call
}

// call is one step of the CO that has succeeded.
type call struct {
	worker int
	name   string
	// began and acknowledged are numbers of entries in the log: the call has written none
	// of those before began, and all that it guarantees is within the first acknowledged ones.
	began, acknowledged int
	// volume and snapshot are the object, and volumeAfter and snapshotAfter what the CO
	// knew about it afterwards.
	volume, volumeAfter     *volume
	snapshot, snapshotAfter *snapshot
}

func (h *history) now() int {
	if h == nil {
		return 0
	}

	return h.position()
}

// acknowledge records a call that is complete.
func (h *history) acknowledge(c *call) {
	if h == nil {
		return
	}

	c.acknowledged = h.position()

	if c.volume != nil {
		c.volumeAfter = c.volume.clone()
	}

	if c.snapshot != nil {
		c.snapshotAfter = c.snapshot.clone()
	}

	h.mu.Lock()
	defer h.mu.Unlock()

	h.calls = append(h.calls, c)
}

// mix describes the calls: how many there were of each name, and on how many volumes of each kind.
func (h *history) mix() string {
	names, kinds, seen := map[string]int{}, map[string]int{}, map[*volume]bool{}

	for _, c := range h.calls {
		names[c.name]++

		if c.volume != nil && !seen[c.volume] {
			seen[c.volume] = true
			kinds[c.volume.kind.name]++
		}
	}

	return fmt.Sprintf("calls: %v, volumes: %v", names, kinds)
}

// at gives the workers the objects as the CO knew them at a point of the log, with the call that
// was in progress as one of unknown outcome. Nothing is attached to a device or mounted.
func (h *history) at(point int, workers []*worker) {
	for _, w := range workers {
		w.volumes, w.graves, w.snapshots, w.snapshotGraves = nil, nil, nil, nil

		for _, calls := range h.byObject(w.index) {
			if calls[0].volume != nil {
				w.rebuildVolume(calls, point)
			} else {
				w.rebuildSnapshot(calls, point)
			}
		}
	}
}

// byObject returns the calls of a worker, those of each object in their order.
func (h *history) byObject(worker int) [][]*call {
	type object struct {
		volume   *volume
		snapshot *snapshot
	}

	var order []object

	objects := map[object][]*call{}

	for _, c := range h.calls {
		if c.worker != worker {
			continue
		}

		key := object{c.volume, c.snapshot}
		if objects[key] == nil {
			order = append(order, key)
		}

		objects[key] = append(objects[key], c)
	}

	all := make([][]*call, 0, len(order))
	for _, key := range order {
		all = append(all, objects[key])
	}

	return all
}

// divide returns the last call that was acknowledged at the point, and the one that was in
// progress; nil is none.
func divide(calls []*call, point int) (acknowledged, pending *call) {
	for _, c := range calls {
		switch {
		case c.acknowledged <= point:
			acknowledged = c
		case c.began < point:
			return acknowledged, c
		default:
			return acknowledged, nil
		}
	}

	return acknowledged, nil
}

func (w *worker) rebuildVolume(calls []*call, point int) {
	last, pending := divide(calls, point)

	var v *volume

	switch {
	case last != nil:
		v = last.volumeAfter.clone()
	case pending != nil:
		v = pending.volumeAfter.clone()
		v.phase, v.durable, v.filled, v.claim.VolumeID, v.data = absent, false, false, "", map[int64]sum{}

		if v.from != nil {
			v.data = maps.Clone(pending.volumeAfter.data)
		}
	default:
		return
	}

	if v.phase == deleted {
		w.graves = append(w.graves, v.claim.VolumeID)

		return
	}

	// The machine has lost its mounts and devices.
	v.phase = min(v.phase, attached)
	v.published, v.behind = map[target]bool{}, false

	if pending != nil {
		v.interrupted(pending)
	}

	w.volumes = append(w.volumes, v)
}

// interrupted makes the call the volume's pending one, as far as a restart leaves something of it.
func (v *volume) interrupted(pending *call) {
	switch pending.name {
	case "create":
		v.pending = v.create()
	case "attach":
		v.pending = v.attach()
	case "detach":
		v.pending = v.detach()
	case "expand":
		v.pending = v.expand()
	case "modify":
		v.pending = v.modify(pending.volumeAfter.readAhead)
	case "delete":
		v.pending = v.delete()
	case "write":
		// The file or block may have the old content, the new one, or some of each.
		maps.DeleteFunc(v.data, func(slot int64, before sum) bool { return pending.volumeAfter.data[slot] != before })
	}
}

func (w *worker) rebuildSnapshot(calls []*call, point int) {
	last, pending := divide(calls, point)

	switch {
	case last == nil && pending == nil:
		return
	case last != nil && last.snapshotAfter.phase == deleted:
		w.snapshotGraves = append(w.snapshotGraves, last.snapshotAfter.snapshotIDs()...)

		return
	}

	s := cmp.Or(last, pending).snapshotAfter.clone()

	if last == nil {
		s.phase, s.id = absent, ""
		for i := range s.of {
			s.of[i].snapshotID = ""
		}
	}

	if pending != nil {
		s.pending = s.create()
		if last != nil {
			s.pending = s.delete()
		}
	}

	w.snapshots = append(w.snapshots, s)
}

// clone returns a copy without a pending step. It shares what random choices come from.
func (v *volume) clone() *volume {
	other := *v
	other.published, other.data, other.pending = maps.Clone(v.published), maps.Clone(v.data), nil

	return &other
}

func (s *snapshot) clone() *snapshot {
	other := *s
	other.of, other.pending = slices.Clone(s.of), nil

	return &other
}
