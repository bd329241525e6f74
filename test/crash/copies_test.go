package crash_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const (
	// copiesEach is how many snapshots and groups a worker has at a time.
	copiesEach = 3
	// reflinkPoolBytes is plenty: images are sparse and hold little.
	reflinkPoolBytes = 8 << 30
	// copyOften is in how many of a hundred steps there is something to do with
	// copies.
	copyOften = 30
)

// TestCrashCopies kills the driver while it makes snapshots, groups, restores
// and clones, on each kind of pool.
func TestCrashCopies(t *testing.T) {
	namespace.NeedRoot(t)

	seed, kills := number(t, "seed"), int(number(t, "kills"))
	built := build(t)
	aims := []string{
		"CreateSnapshot", "DeleteSnapshot", "CreateVolume", "CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "NodeStageVolume",
	}

	t.Run("reflink", func(t *testing.T) {
		s := newScenario(t, built, seed+2)
		s.site.poolAt, s.copyOften, s.site.reflinks = testpool.Reflink(t, reflinkPoolBytes), copyOften, true
		s.run(kills, aims)
	})
	t.Run("btrfs", func(t *testing.T) {
		s := newScenario(t, built, seed+4)
		s.site.poolAt, s.copyOften, s.site.reflinks = testpool.Btrfs(t, reflinkPoolBytes), copyOften, true
		s.run(max(1, kills/2), aims)
	})
	t.Run("no reflink", func(t *testing.T) {
		s := newScenario(t, built, seed+3)
		s.copyOften = copyOften
		s.run(max(1, kills/2), aims)
	})
}

// snapshot is what the CO knows about one snapshot, or about a group of them.
type snapshot struct {
	name  string
	group bool
	of    []snapshotted
	// id is the snapshot's or the group's.
	id      string
	phase   phase
	pending *step
}

// snapshotted is one volume as it was when the snapshot was first asked for.
// Nothing happens to it until the outcome is known.
type snapshotted struct {
	volumeID, snapshotID string
	kind                 kind
	capacity             int64
	data                 map[int64]sum
	parameters           map[string]string
}

func (v *volume) snapshotted(reflinks bool) snapshotted {
	s := snapshotted{volumeID: v.claim.VolumeID, kind: v.kind, capacity: v.capacity, data: maps.Clone(v.data)}
	// A volume that can't be frozen is only copied if the class says that it is not written to.
	// A btrfs can be, but it thaws by reading its superblock, and gives up writing
	// permanently when that is interrupted, also by a SIGKILL of the thawing process
	// (docs/recovery.md).
	if !v.kind.image() || v.kind.block && !reflinks || v.kind.fsType == filesystem.Btrfs {
		s.parameters = map[string]string{"consistency": "none"}
	}

	return s
}

// copySteps settles what is unknown of copies and then, now and then, does
// something with them. It is false when the driver is gone.
func (w *worker) copySteps(p *process) bool {
	if w.copyOften == 0 {
		return true
	}

	if !w.settleCopies(p) {
		return false
	}

	if w.random.IntN(100) >= w.copyOften {
		return true
	}

	if len(w.snapshots) > 0 && (len(w.snapshots) >= copiesEach || w.random.IntN(2) == 0) {
		s := w.snapshots[w.random.IntN(len(w.snapshots))]
		if w.random.IntN(3) == 0 {
			return w.doCopy(p, s, s.delete())
		}

		return w.makeCopy(p, s.of[w.random.IntN(len(s.of))])
	}

	return w.snapshotSome(p)
}

// settleCopies brings the unknown outcomes of copies to an end, so that no
// source changes in between: of a snapshot it would not be known then what it
// holds.
func (w *worker) settleCopies(p *process) bool {
	for _, s := range slices.Clone(w.snapshots) {
		if s.pending != nil && !w.doCopy(p, s, s.pending) {
			return false
		}
	}

	for _, v := range slices.Clone(w.volumes) {
		if v.from != nil && v.phase == absent && !w.do(p, v, v.create()) {
			return false
		}
	}

	return true
}

func (w *worker) snapshotSome(p *process) bool {
	var sources []*volume

	for _, v := range w.volumes {
		if v.phase >= created && v.phase != deleted && v.pending == nil {
			sources = append(sources, v)
		}
	}

	if len(sources) == 0 {
		return true
	}

	w.random.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })

	w.made++
	s := &snapshot{name: fmt.Sprintf("snapshot-%d-%d", w.index, w.made)}

	if w.random.IntN(3) == 0 {
		s.group = true
	} else {
		if w.random.IntN(4) == 0 {
			return w.cloneOf(p, sources[0])
		}

		sources = sources[:1]
	}

	for _, v := range sources {
		// The members of a group are frozen together, also where a copy is instant.
		s.of = append(s.of, v.snapshotted(w.site.reflinks && !s.group))
	}

	w.snapshots = append(w.snapshots, s)

	return w.doCopy(p, s, s.create())
}

// makeCopy restores a snapshot as a volume, sometimes a larger one.
func (w *worker) makeCopy(p *process, of snapshotted) bool {
	return w.copyFrom(p, of, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: of.snapshotID},
	}})
}

func (w *worker) cloneOf(p *process, v *volume) bool {
	of := v.snapshotted(w.site.reflinks)
	if of.parameters != nil && v.phase == staged {
		return true // no class allows a clone to be copied unfrozen
	}

	return w.copyFrom(p, of, &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: of.volumeID},
	}})
}

func (w *worker) copyFrom(p *process, of snapshotted, from *csi.VolumeContentSource) bool {
	if len(w.volumes) >= volumesAtMost {
		return true
	}

	w.made++

	v := newVolume(w.site, w.source, fmt.Sprintf("copy-%d-%d", w.index, w.made))
	v.kind, v.from, v.data = of.kind, from, maps.Clone(of.data)
	v.capacity = of.capacity

	if w.random.IntN(2) == 0 {
		v.capacity += of.kind.grows
	}

	w.volumes = append(w.volumes, v)
	w.copies++

	return w.do(p, v, v.create())
}

func (s *snapshot) create() *step {
	if s.group {
		return &step{name: "create group", call: s.createGroup, then: func() { s.phase = created }}
	}

	return &step{
		name: "create snapshot", then: func() { s.phase = created },
		call: func(ctx context.Context, co *csiclient.Client) error {
			answer, err := co.CreateSnapshotAndWait(ctx, &csi.CreateSnapshotRequest{
				Name: s.name, SourceVolumeId: s.of[0].volumeID, Parameters: s.of[0].parameters,
			})
			if err != nil {
				return err
			}

			s.id = answer.GetSnapshot().GetSnapshotId()
			s.of[0].snapshotID = s.id

			return s.of[0].answers(answer.GetSnapshot())
		},
	}
}

func (s *snapshot) createGroup(ctx context.Context, co *csiclient.Client) error {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: s.name}
	for _, of := range s.of {
		request.SourceVolumeIds = append(request.GetSourceVolumeIds(), of.volumeID)

		if of.parameters != nil {
			request.Parameters = of.parameters
		}
	}

	answer, err := co.CreateGroupSnapshotAndWait(ctx, request)
	if err != nil {
		return err
	}

	s.id = answer.GetGroupSnapshot().GetGroupSnapshotId()

	for _, member := range answer.GetGroupSnapshot().GetSnapshots() {
		at := slices.IndexFunc(s.of, func(of snapshotted) bool { return of.volumeID == member.GetSourceVolumeId() })
		if at < 0 || member.GetGroupSnapshotId() != s.id {
			return fmt.Errorf("%w: a member that was not requested: %v", errWrong, member)
		}

		s.of[at].snapshotID = member.GetSnapshotId()

		if err := s.of[at].answers(member); err != nil {
			return err
		}
	}

	if len(answer.GetGroupSnapshot().GetSnapshots()) != len(s.of) {
		return fmt.Errorf("%w: %v for %v", errWrong, answer, request)
	}

	return nil
}

func (of *snapshotted) answers(told *csi.Snapshot) error {
	if !told.GetReadyToUse() || told.GetSizeBytes() != of.capacity || told.GetSourceVolumeId() != of.volumeID {
		return fmt.Errorf("%w: %v is no snapshot of %s with %d bytes", errWrong, told, of.volumeID, of.capacity)
	}

	return nil
}

func (s *snapshot) delete() *step {
	return &step{
		name: "delete snapshot", then: func() { s.phase = deleted },
		call: func(ctx context.Context, co *csiclient.Client) error {
			if !s.group {
				_, err := co.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.id})

				return err
			}

			_, err := co.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
				GroupSnapshotId: s.id, SnapshotIds: s.snapshotIDs(),
			})

			return err
		},
	}
}

func (s *snapshot) snapshotIDs() []string {
	ids := make([]string, len(s.of))
	for i, of := range s.of {
		ids[i] = of.snapshotID
	}

	return ids
}

// doCopy is do for a snapshot.
func (w *worker) doCopy(p *process, s *snapshot, next *step) bool {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()

	made := &call{worker: w.index, name: next.name, began: w.history.now(), snapshot: s}

	if err := next.call(ctx, p.Client); err != nil {
		if p.lost(err) {
			s.pending = next

			return false
		}

		w.t.Errorf("%s %s (%s) after %d kills: %v", next.name, s.name, s.id, w.kills, err)

		return false
	}

	s.pending = nil
	next.then()
	w.history.acknowledge(made)

	if s.phase == deleted {
		w.snapshotGraves = append(w.snapshotGraves, s.snapshotIDs()...)
		w.snapshots = slices.DeleteFunc(w.snapshots, func(other *snapshot) bool { return other == s })
	}

	return true
}

// checkSnapshots is checkAcknowledged for them.
func (s *scenario) checkSnapshots(p *process) {
	s.t.Helper()

	if s.copyOften == 0 {
		return
	}

	listed := map[string]*csi.Snapshot{}

	for entry, err := range p.Snapshots(s.t.Context(), "", 0) {
		require.NoError(s.t, err)
		require.NotContains(s.t, listed, entry.GetSnapshot().GetSnapshotId(), "listed twice")
		listed[entry.GetSnapshot().GetSnapshotId()] = entry.GetSnapshot()
	}

	unknown := 0

	for _, w := range s.workers {
		for _, held := range w.snapshots {
			if held.phase == absent {
				unknown += len(held.of)

				continue
			}

			for _, of := range held.of {
				if held.pending == nil {
					require.Contains(s.t, listed, of.snapshotID, "an acknowledged snapshot is lost")
					require.NoError(s.t, of.answers(listed[of.snapshotID]))
				}

				delete(listed, of.snapshotID)
			}
		}

		for _, id := range w.snapshotGraves {
			require.NotContains(s.t, listed, id, "a deleted snapshot is back")
		}
	}

	require.LessOrEqual(s.t, len(listed), unknown, "snapshots that were not requested: %v", listed)
}

// finishCopies restores every snapshot that is left, which the last round of
// reading then compares, and deletes it.
func (w *worker) finishCopies(p *process) {
	if !w.settleCopies(p) {
		return
	}

	for _, s := range slices.Clone(w.snapshots) {
		for _, of := range s.of {
			if !w.makeCopy(p, of) {
				return
			}
		}

		if !w.doCopy(p, s, s.delete()) {
			return
		}
	}
}

func (i *inventory) expectSnapshot(s *snapshot) {
	for _, of := range s.of {
		if of.kind.image() {
			insert(&i.Snapshots, of.snapshotID+".img")
		} else {
			insert(&i.Snapshots, of.snapshotID)
		}
	}
}
