package controller

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// setPhase records a snapshot in a phase.
func (s *site) setPhase(id string, phase record.Phase) *record.Snapshot {
	s.t.Helper()

	var changed *record.Snapshot

	require.NoError(s.t, s.config.Store.Update(s.t.Context(), func(tx *state.Tx) error {
		found, _ := s.catalog.Snapshots.In(tx).Get(id)
		changed = found.InPhase(phase)
		changed.Sequence = 0

		return s.catalog.Snapshots.In(tx).Put(id, changed)
	}))

	return changed
}

// TestSnapshotBeingCopiedIsNotReady, and is returned only for its own request.
func TestSnapshotBeingCopiedIsNotReady(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	sourceID := s.create("source")
	id := s.snapshot("snapshot", sourceID)
	request := &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: sourceID}

	s.setPhase(id, record.PhaseCopying)

	_, end := s.copies.Running.Start(t.Context(), id, "snapshot")
	release := s.hold("volume " + sourceID)

	made, err := s.CreateSnapshot(t.Context(), request)
	require.NoError(t, err)
	require.False(t, made.GetSnapshot().GetReadyToUse(), "want: it is not ready")

	for name, change := range map[string]func(r *csi.CreateSnapshotRequest){
		"source":      func(r *csi.CreateSnapshotRequest) { r.SourceVolumeId = newID(t) },
		"consistency": func(r *csi.CreateSnapshotRequest) { r.Parameters = map[string]string{volume.KeyConsistency: "none"} },
	} {
		other := &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: sourceID}
		change(other)

		_, err = s.CreateSnapshot(t.Context(), other)
		rpccode.Require(t, err, codes.AlreadyExists, "another %s", name)
	}

	// One that is not acknowledged is awaited.
	s.setPhase(id, record.PhaseCreating)

	answer := make(chan error, 1)

	go func() {
		_, err := s.CreateSnapshot(t.Context(), request)
		answer <- err
	}()

	require.Eventually(t, func() bool { return s.ops.Len() == 2 }, await.Limit, time.Millisecond, "want: the call waits")
	end()
	release()
	require.NoError(t, await.Receive(t, answer, "the call"))
	s.requireSound()
}

// TestASlowCopyIsAcknowledged after the time of grace: it is recorded, with a sequence, before the
// answer.
func TestASlowCopyIsAcknowledged(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	sourceID := s.create("source")
	id := s.snapshot("snapshot", sourceID)

	s.restart(func(c *Config) { c.CopyGrace = time.Millisecond })

	s.setPhase(id, record.PhaseCreating)

	_, end := s.copies.Running.Start(t.Context(), id, "snapshot")
	release := s.hold("volume " + sourceID)

	made, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: sourceID})
	require.NoError(t, err)
	require.Equal(t, id, made.GetSnapshot().GetSnapshotId())
	require.False(t, made.GetSnapshot().GetReadyToUse(), "want: it is not ready")

	found, _ := s.catalog.Snapshots.Get(id)
	require.Equal(t, record.PhaseCopying, found.Phase)
	require.NotZero(t, found.Sequence, "want: it is in the order of snapshots")
	end()
	release()

	for _, phase := range []record.Phase{record.PhaseReady, record.PhaseFailed, record.PhaseDeleting} {
		s.setPhase(id, phase)

		acknowledged, err := s.catalog.AcknowledgeSnapshot(t.Context(), id)
		require.NoError(t, err)
		require.Nil(t, acknowledged, "want: it is not being copied")

		found, _ := s.catalog.Snapshots.Get(id)
		require.Equal(t, phase, found.Phase)
	}

	_, err = s.catalog.AcknowledgeSnapshot(t.Context(), "unknown")
	require.NoError(t, err, "there is nothing to record")
}

// TestSnapshotsAreListedInOrder: the one that was taken later has the larger sequence, and one that was
// acknowledged keeps its own.
func TestSnapshotsAreListedInOrder(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	sourceID := s.create("source")
	before := time.Now()
	first, _ := s.catalog.Snapshots.Get(s.snapshot("first", sourceID))
	second, _ := s.catalog.Snapshots.Get(s.snapshot("second", sourceID))

	require.True(t, first.TakenBefore(second), "want: %d is before %d", first.Sequence, second.Sequence)
	require.Positive(t, first.Sequence, "want: it has a sequence")
	require.False(t, first.CreatedAt.Before(before), "want: the time is that of the copy")

	members := s.group("group", sourceID, s.create("other")).GetSnapshots()
	for _, each := range members {
		require.False(t, each.GetCreationTime().AsTime().Before(before), "want: the time is that of the copy")
	}

	copying := first.InPhase(record.PhaseCopying)
	require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error { return s.catalog.Snapshots.In(tx).Put(copying.ID, copying) }))

	again := copying.InPhase(record.PhaseCopying)
	again.CreatedAt, again.Sequence = time.Now().Add(time.Hour), 0
	require.NoError(t, s.catalog.AcceptSnapshots(t.Context(), nil, again))

	found, _ := s.catalog.Snapshots.Get(first.ID)
	require.Equal(t, record.PhaseReady, found.Phase)
	require.Equal(t, first.Sequence, found.Sequence, "want: the sequence that was acknowledged")
	require.True(t, first.CreatedAt.Equal(found.CreatedAt), "want: the time that was acknowledged")

	// What was deleted meanwhile is not acknowledged.
	s.setPhase(first.ID, record.PhaseDeleting)
	rpccode.Require(t, rpc.Status(s.catalog.AcceptSnapshots(t.Context(), nil, again)), codes.Aborted)
	rpccode.Require(t, rpc.Status(s.catalog.AcceptSnapshots(t.Context(), nil, &record.Snapshot{ID: newID(t)})), codes.Aborted)
	rpccode.Require(t, rpc.Status(s.catalog.ReserveSnapshots(t.Context(), nil, again)), codes.Aborted)

	rpccode.Require(t, rpc.Status(s.catalog.ReserveSnapshots(t.Context(), nil, s.renamed(first, "second"))), codes.AlreadyExists)
	rpccode.Require(t, rpc.Status(s.catalog.ReserveSnapshots(t.Context(), &record.Group{ID: newID(t), Name: "group"})), codes.AlreadyExists)

	// A member is deleted with its group, of which the CO may hear later.
	s.setPhase(members[0].GetSnapshotId(), record.PhaseDeleting)
	_, err := s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: members[0].GetSnapshotId()})
	require.NoError(t, err, "want: it is gone for the CO")

	s.failPool("default")
	rpccode.Require(t, rpc.Status(s.catalog.ReserveSnapshots(t.Context(), nil, s.renamed(first, "third"))), codes.Unavailable)

	_, err = s.catalog.Pool("x", "volume y")
	errtext.Require(t, err, `volume y: bad configuration: pool "x" is not configured`)
}

// renamed returns another snapshot with a name.
func (s *site) renamed(of *record.Snapshot, name string) *record.Snapshot {
	other := of.InPhase(record.PhaseCreating)
	other.ID, other.Name = newID(s.t), name

	return other
}

// TestTheObjectOfAFailedCreationIsRemovedLater: the object of a failed creation that cannot be
// removed now. Its name is free, and the removal is repeated.
func TestTheObjectOfAFailedCreationIsRemovedLater(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	volumeID := s.create("volume")
	v, err := s.catalog.FindVolume(volumeID)
	require.NoError(t, err)

	s.hide(volumeID)

	p := s.served()
	s.closePool("default")

	err = s.remover.UndoVolume(t.Context(), v, p, errBroken)
	require.ErrorIs(t, err, errBroken)
	require.ErrorIs(t, err, fs.ErrClosed, "what cannot be removed is reported")
	require.Equal(t, 1, s.config.Removals.Len(), "want: it is removed later")
	s.flush()

	_, _, found := s.catalog.Volumes.Lookup(record.NameIndex, "volume")
	require.False(t, found, "want: the name of the volume is free")

	s.failPool("default")
	s.restart()
	s.requireSound()
	require.Empty(t, s.allRecords(), "want: nothing is recorded")
}

// TestProgressEndsWithTheCopy: no task is left of copies that are made, or that fail.
func TestProgressEndsWithTheCopy(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"restore", "clone", "snapshot", "group snapshot"} {
		registry := progress.NewRegistry(slog.New(slog.DiscardHandler))
		s := newSite(t, func(c *Config) { c.Progress = registry })
		run := operations()[name](s)
		ended, end := context.WithCancel(t.Context())
		end()

		require.Error(t, run(ended), "want: the call ends with its caller")

		restore := s.spoil("default", "scratch")
		require.Error(t, run(t.Context()), "want: %s needs scratch", name)
		require.Empty(t, registry.List(), "want: the task of a copy that fails has ended")
		restore()
		require.NoError(t, run(t.Context()))
		require.Empty(t, registry.List(), "want: the task of a copy has ended")
	}
}

// TestCopiesAreTakenWhileTheirSourcesAreFrozen: of those in use, together, at a time within.
func TestCopiesAreTakenWhileTheirSourcesAreFrozen(t *testing.T) {
	t.Parallel()

	for name, kind := range map[string]string{"clone": "clone", "snapshot": "snapshot", "group snapshot": "group snapshot"} {
		registry := progress.NewRegistry(slog.New(slog.DiscardHandler))
		s := newSite(t, func(c *Config) { c.Progress = registry })
		run := operations()[name](s)
		unused := s.create("unused")

		for id := range s.catalog.Volumes.Ascend("") {
			if id != unused {
				s.node.known = append(s.node.known, id)
			}
		}

		s.node.inUse()

		var frozenAt time.Time

		s.node.whileFrozen = func() {
			frozenAt = time.Now()

			for _, each := range registry.List() {
				require.Equal(t, kind, each.Kind)
			}

			require.Len(t, registry.List(), len(s.node.known), "want: the task of each copy runs")
			require.Empty(t, s.inPool("default", "snapshots"), "want: nothing is copied before")
			require.Len(t, s.health.monitored(), len(s.node.known)+1, "want: what is made of a copy is not ready before")
		}

		require.NoError(t, run(t.Context()))
		require.Equal(t, [][]string{s.node.known}, s.node.frozen, "what is in use is frozen once")

		for _, each := range s.catalog.Snapshots.Ascend("") {
			require.False(t, each.CreatedAt.Before(frozenAt), "want: the time is that of the copy")
		}

		for _, each := range s.catalog.Groups.Ascend("") {
			require.False(t, each.CreatedAt.Before(frozenAt), "want: the time is that of the copies")
		}
	}
}

// TestCopyWithoutConsistencyDoesNotFreeze, nor ask the node.
func TestCopyWithoutConsistencyDoesNotFreeze(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	first, second := s.create("first"), s.create("second")
	require.NoError(t, s.publish(t.Context(), first, nextNode))

	none := map[string]string{volume.KeyConsistency: "none"}
	_, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "refused", SourceVolumeId: first})
	rpccode.Require(t, err, codes.FailedPrecondition)
	errtext.Require(t, err, "its pool can't copy it in an instant")

	_, err = s.groups.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "refused", SourceVolumeIds: []string{first, second}})
	rpccode.Require(t, err, codes.FailedPrecondition)
	errtext.Require(t, err, "leave it out of the group")

	_, err = s.CreateVolume(t.Context(), createRequestOf("refused", ofVolume(first)))
	rpccode.Require(t, err, codes.FailedPrecondition)

	s.node.useErr = errBroken

	_, err = s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "taken", SourceVolumeId: first, Parameters: none})
	require.NoError(t, err)

	_, err = s.groups.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: "taken", SourceVolumeIds: []string{first, second}, Parameters: none,
	})
	require.NoError(t, err)

	_, err = s.CreateVolume(t.Context(), createRequestOf("taken", ofVolume(first), with(volume.KeyConsistency, "none")))
	require.NoError(t, err)
	require.Empty(t, s.node.frozen, "want: nothing is frozen")
	s.requireSound()
}

// TestDirectoriesSayWhetherTheirSizeIsLimited as their pool does; images do not.
func TestDirectoriesSayWhetherTheirSizeIsLimited(t *testing.T) {
	t.Parallel()

	s := newSite(t)

	for backing, want := range map[string]volume.SizeLimit{
		"image": "", "directory": volume.SizeLimitOf(s.served().Directories.Support().Limited),
	} {
		v, err := s.catalog.FindVolume(s.create(backing, with("backing", backing)))
		require.NoError(t, err)
		require.Equal(t, want, v.SizeLimit)
	}
}

// TestSnapshotOfAMissingImageFails, and its expansion: only one that was never used can have been lost without its data.
func TestSnapshotOfAMissingImageFails(t *testing.T) {
	t.Parallel()

	s := newSite(t)

	for _, used := range []bool{false, true} {
		id := s.create("volume")

		if used {
			require.NoError(t, s.publish(t.Context(), id, ownNode))
			s.stage(id)
			require.NoError(t, s.unpublish(t.Context(), id, ownNode))
		}

		require.NoError(t, os.Remove(s.imagePath(id)))
		rpccode.Require(t, s.expand(t.Context(), id, 8*mib), map[bool]codes.Code{true: codes.NotFound}[used])

		if !used {
			require.NoError(t, os.Remove(s.imagePath(id)))
		}

		_, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: id})
		if used {
			rpccode.Require(t, err, codes.NotFound)
		} else {
			require.NoError(t, err)
			s.requireSound()

			_, err = s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: s.snapshot("snapshot", id)})
			require.NoError(t, err)
		}

		require.NoError(t, s.remove(t.Context(), id))
		s.settle()
		s.flush()
	}
}

// TestSnapshotsAreListedFromATokenOn: all, those of a volume, and one.
func TestSnapshotsAreListedFromATokenOn(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	sourceID, otherID := s.create("source"), s.create("other")
	ids := []string{s.snapshot("a", sourceID), s.snapshot("b", otherID), s.snapshot("c", sourceID), s.snapshot("d", sourceID)}
	hidden := s.snapshot("hidden", sourceID)
	s.setPhase(hidden, record.PhaseCreating)

	for name, test := range map[string]struct {
		request *csi.ListSnapshotsRequest
		want    []string
		token   string
	}{
		"all":                        {&csi.ListSnapshotsRequest{}, ids, ""},
		"all, from a token":          {&csi.ListSnapshotsRequest{StartingToken: ids[1]}, ids[2:], ""},
		"a page of all":              {&csi.ListSnapshotsRequest{MaxEntries: 2}, ids[:2], ids[1]},
		"of a volume":                {&csi.ListSnapshotsRequest{SourceVolumeId: sourceID}, []string{ids[0], ids[2], ids[3]}, ""},
		"a page of a volume":         {&csi.ListSnapshotsRequest{SourceVolumeId: sourceID, MaxEntries: 2}, []string{ids[0], ids[2]}, ids[2]},
		"of a volume, from a token":  {&csi.ListSnapshotsRequest{SourceVolumeId: sourceID, StartingToken: ids[0]}, ids[2:], ""},
		"one":                        {&csi.ListSnapshotsRequest{SnapshotId: ids[1]}, ids[1:2], ""},
		"one of its volume":          {&csi.ListSnapshotsRequest{SnapshotId: ids[1], SourceVolumeId: otherID}, ids[1:2], ""},
		"one of another volume":      {&csi.ListSnapshotsRequest{SnapshotId: ids[1], SourceVolumeId: sourceID}, nil, ""},
		"one behind the token":       {&csi.ListSnapshotsRequest{SnapshotId: ids[1], StartingToken: ids[0]}, ids[1:2], ""},
		"the one of the token":       {&csi.ListSnapshotsRequest{SnapshotId: ids[1], StartingToken: ids[1]}, nil, ""},
		"an unknown one":             {&csi.ListSnapshotsRequest{SnapshotId: "x"}, nil, ""},
		"one that is being created":  {&csi.ListSnapshotsRequest{SnapshotId: hidden}, nil, ""},
		"of a volume that is no one": {&csi.ListSnapshotsRequest{SourceVolumeId: "x"}, nil, ""},
	} {
		answer, err := s.ListSnapshots(t.Context(), test.request)
		require.NoError(t, err, name)

		var got []string
		for _, each := range answer.GetEntries() {
			got = append(got, each.GetSnapshot().GetSnapshotId())
		}

		require.Equal(t, test.want, got, name)
		require.Equal(t, test.token, answer.GetNextToken(), name)
	}
}

// TestPagesAreAskedForRightly: each list refuses a page that is none before it waits for anything.
func TestPagesAreAskedForRightly(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	ended, end := context.WithCancel(t.Context())
	end()

	for name, list := range map[string]func(most int32, token string) error{
		"ListVolumes": func(most int32, token string) error {
			_, err := s.ListVolumes(ended, &csi.ListVolumesRequest{MaxEntries: most, StartingToken: token})

			return err
		},
		"ListSnapshots": func(most int32, token string) error {
			_, err := s.ListSnapshots(ended, &csi.ListSnapshotsRequest{MaxEntries: most, StartingToken: token})

			return err
		},
		"ControllerListVolumeHealth": func(most int32, token string) error {
			_, err := s.ControllerListVolumeHealth(ended, &csi.ControllerListVolumeHealthRequest{MaxEntries: most, StartingToken: token})

			return err
		},
	} {
		rpccode.Require(t, list(-1, ""), codes.InvalidArgument, "%s of -1 entries", name)
		rpccode.Require(t, list(0, "x"), codes.Aborted, "%s from a token that is none", name)
	}
}

// TestRemovalsAreNamed after what they remove, and are of its pool.
func TestRemovalsAreNamed(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	one := &record.Snapshot{ID: "s", Parameters: volume.Parameters{Pool: "fast"}}

	for want, task := range map[[2]string][]*record.Snapshot{{"fast", "snapshot s"}: {one}} {
		made := s.remover.Snapshots(nil, task)
		require.Equal(t, want, [2]string{made.Pool, made.Object})
	}

	made := s.remover.Snapshots(&record.Group{ID: "g"}, []*record.Snapshot{one})
	require.Equal(t, [2]string{"fast", "group snapshot g"}, [2]string{made.Pool, made.Object})

	made = s.remover.Snapshots(&record.Group{ID: "g"}, nil)
	require.Equal(t, [2]string{"", "group snapshot g"}, [2]string{made.Pool, made.Object})
	require.Equal(t, pool.Object{ID: "s", Snapshot: true}, one.Object())
}
