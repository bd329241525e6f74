package controller

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestCallsCheckAgainAfterWaiting for the operation of the volume. What happens meanwhile is seen
// by the call when its turn comes.
func TestCallsCheckAgainAfterWaiting(t *testing.T) {
	t.Parallel()

	deleted := func(s *site, id string) {
		require.NoError(s.t, s.config.Store.Update(s.t.Context(), func(tx *state.Tx) error { return s.catalog.Volumes.In(tx).Delete(id) }))
	}
	failed := func(s *site, _ string) { s.failPool("default") }
	unsupported := func(s *site, _ string) { s.node.supportErr = errBroken }
	expanded := func(s *site, id string) {
		_, err := s.catalog.UpdateVolume(s.t.Context(), id, func(v *record.Volume) error { v.CapacityBytes += RoundBytes; return nil })
		require.NoError(s.t, err)
	}

	for name, test := range map[string]struct {
		// ahead are the operations of the call itself.
		ahead int
		codes map[string]codes.Code
	}{
		"publish":        {1, map[string]codes.Code{"deleted": codes.NotFound, "failed": codes.Unavailable}},
		"expand":         {1, map[string]codes.Code{"deleted": codes.NotFound, "failed": codes.Unavailable}},
		"modify":         {1, map[string]codes.Code{"deleted": codes.NotFound, "failed": codes.Unavailable, "unsupported": codes.InvalidArgument}},
		"delete":         {1, map[string]codes.Code{"deleted": codes.OK, "failed": codes.Unavailable}},
		"unpublish":      {1, map[string]codes.Code{"deleted": codes.OK, "failed": codes.OK}},
		"snapshot":       {1, map[string]codes.Code{"deleted": codes.NotFound, "failed": codes.Unavailable}},
		"clone":          {2, map[string]codes.Code{"deleted": codes.NotFound, "failed": codes.Unavailable, "expanded": codes.Aborted}},
		"group snapshot": {2, map[string]codes.Code{"deleted": codes.NotFound, "failed": codes.Unavailable}},
	} {
		for event, happen := range map[string]func(*site, string){
			"deleted": deleted, "failed": failed, "expanded": expanded, "unsupported": unsupported,
		} {
			if _, known := test.codes[event]; !known {
				continue
			}

			t.Run(name+" "+event, func(t *testing.T) {
				t.Parallel()

				s := newSite(t)
				run := operations()[name](s)
				id := s.firstVolume()
				release, answer := s.hold("volume "+id), make(chan error, 1)

				go func() { answer <- run(t.Context()) }()

				require.Eventually(t, func() bool { return s.ops.Len() == 1+test.ahead }, await.Limit, time.Millisecond, "want: the call waits")
				happen(s, id)
				release()
				rpccode.Require(t, await.Receive(t, answer, "the call"), test.codes[event])
			})
		}
	}
}

func (s *site) firstVolume() string {
	first := ""

	for id := range s.catalog.Volumes.Ascend("") {
		first = id

		break
	}

	return first
}

// hold keeps the operations of a key waiting until release is called.
func (s *site) hold(key string) (release func()) {
	s.t.Helper()

	released := make(chan struct{})
	call := operation.Call{Key: key, Method: "hold"}

	require.NoError(s.t, operation.Start(s.t.Context(), s.ops, call, func(context.Context) { <-released }))

	return func() { close(released) }
}

// TestAClosedStateFailsEachChange: what changes records returns the error of the state.
func TestAClosedStateFailsEachChange(t *testing.T) {
	t.Parallel()

	s := newSite(t, without("PUBLISH_UNPUBLISH_VOLUME"))
	id := s.create("volume")
	snapshotID := s.snapshot("snapshot", id)
	members := s.group("group", id)

	v, err := s.catalog.FindVolume(id)
	require.NoError(t, err)

	copying, _ := s.catalog.Snapshots.Get(snapshotID)
	copying = copying.InPhase(record.PhaseCopying)
	group, _ := s.catalog.Groups.Get(members.GetGroupSnapshotId())
	pristine := v.Clone()
	pristine.Pristine = true

	require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error {
		require.NoError(t, s.catalog.Volumes.In(tx).Put(id, pristine))

		return s.catalog.Snapshots.In(tx).Put(snapshotID, copying)
	}))

	p, err := s.catalog.PoolOf(v)
	require.NoError(t, err)
	require.NoError(t, s.config.Store.Close())

	ctx := t.Context()

	for name, change := range map[string]func() error{
		"record": func() error { return s.catalog.RecordVolume(ctx, v, p) },
		"updateRecord": func() error {
			_, err := s.catalog.UpdateVolume(ctx, id, func(*record.Volume) error { return nil })
			return err
		},
		"FreeVolumeNames":      func() error { return s.catalog.FreeVolumeNames(v) },
		"forget":               func() error { return s.catalog.ForgetVolume(id) },
		"recoverVolumes":       s.recoverVolumes,
		"Recover of snapshots": s.copies.Recover,
		"Recover":              func() error { return s.Recover(ctx) },
		"RecoverPool":          func() error { return s.RecoverPool(ctx, p) },
		"allocateDurably":      func() error { return s.allocateDurably(ctx, s.served()) },
		"ReserveSnapshots":     func() error { return s.catalog.ReserveSnapshots(ctx, nil, copying) },
		"AcceptSnapshots":      func() error { return s.catalog.AcceptSnapshots(ctx, group, copying) },
		"AcknowledgeSnapshot":  func() error { _, err := s.catalog.AcknowledgeSnapshot(ctx, snapshotID); return err },
		"FailSnapshots":        func() error { _, err := s.catalog.FailSnapshots(ctx, copying); return err },
		"removal of snapshots": func() error { return s.remover.Snapshots(group, nil).Remove(ctx) },
		"removeSnapshots":      func() error { return s.copies.Remove(ctx, group) },
	} {
		require.ErrorIs(t, change(), state.ErrNotOpen, name)
	}

	errtext.Require(t, s.Recover(ctx), "recover:")
	errtext.Require(t, s.RecoverPool(ctx, p), `recover pool "default"`)

	// Both remove the image, which RecoverPool does not make again.
	require.ErrorIs(t, s.remover.UndoVolume(ctx, v, p, errBroken), state.ErrNotOpen)
	require.ErrorIs(t, s.remover.Volume(v).Remove(ctx), state.ErrNotOpen)

	_, err = s.CreateVolume(ctx, createRequestOf("another"))
	errtext.Require(t, err, `create volume "another"`)
}

// TestAReadOnlyStateIsRecoveredLater: while the state takes no changes, what is half-done stays for the
// next start, and a removal succeeds.
func TestAReadOnlyStateIsRecoveredLater(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("volume")
	s.group("group", id)

	v, err := s.catalog.FindVolume(id)
	require.NoError(t, err)

	p, err := s.catalog.PoolOf(v)
	require.NoError(t, err)

	s.disk.failAt(1)
	rpccode.Require(t, s.modify(t.Context(), id, "readIOPS", "1"), codes.Unavailable)

	require.NoError(t, s.Recover(t.Context()))
	require.NoError(t, s.catalog.FreeVolumeNames(v))
	require.NoError(t, s.copies.Recover())
	require.NoError(t, s.RecoverPool(t.Context(), p), "want: a pool without anything to record is served")

	err = s.remover.UndoVolume(t.Context(), v, p, errBroken)
	require.ErrorIs(t, err, errBroken)
	require.NotErrorIs(t, err, state.ErrReadOnly)
	require.NotZero(t, s.config.Removals.Len(), "want: the record is forgotten later")
}

// TestSnapshotLocks: a snapshot that is read is not deleted, and one that is deleted is not read; a
// refused deletion of a group leaves none of its members locked.
func TestSnapshotLocks(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	made := s.group("group", s.create("one"), s.create("two"))

	var members []*record.Snapshot

	for _, each := range made.GetSnapshots() {
		found, release, err := s.copies.LockSnapshot(each.GetSnapshotId())
		require.NoError(t, err)
		release()

		members = append(members, found)
	}

	_, release, err := s.copies.LockSnapshot(members[1].ID)
	require.NoError(t, err)

	group, _ := s.catalog.Groups.Get(made.GetGroupSnapshotId())
	rpccode.Require(t, s.copies.Remove(t.Context(), group, members...), codes.Aborted)

	_, again, err := s.copies.LockSnapshot(members[0].ID)
	require.NoError(t, err, "want: the first member is not left locked")
	again()
	release()

	for _, each := range members {
		unlock, err := s.copies.Locks.TryLock(each.ID)
		require.NoError(t, err)

		_, _, err = s.copies.LockSnapshot(each.ID)
		rpccode.Require(t, err, codes.Aborted)
		unlock()
	}

	for _, each := range members {
		_, release, err := s.copies.LockSnapshot(each.ID)
		require.NoError(t, err)
		release()
	}

	for _, id := range []string{"", "../x", s.firstVolume()} {
		_, _, err := s.copies.LockSnapshot(id)
		rpccode.Require(t, err, codes.NotFound)

		// The lock of what does not exist is not left.
		free, err := s.copies.Locks.TryLock(id)
		require.NoError(t, err)
		free()
	}
}

func TestEachPhaseOfASnapshotHasItsAnswers(t *testing.T) {
	t.Parallel()

	for phase, want := range map[record.Phase]struct{ get, lock, again codes.Code }{
		record.PhaseReady:    {codes.OK, codes.OK, codes.OK},
		record.PhaseCopying:  {codes.OK, codes.Aborted, codes.Internal},
		record.PhaseFailed:   {codes.OK, codes.Aborted, codes.Internal},
		record.PhaseCreating: {codes.NotFound, codes.NotFound, codes.OK},
		record.PhaseDeleting: {codes.NotFound, codes.NotFound, codes.OK},
	} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			sourceID := s.create("source")
			id := s.snapshot("snapshot", sourceID)
			found, _ := s.catalog.Snapshots.Get(id)

			require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error {
				return s.catalog.Snapshots.In(tx).Put(id, found.InPhase(phase))
			}))

			got, err := s.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: id})
			rpccode.Require(t, err, want.get)

			if want.get == codes.OK {
				require.Equal(t, phase == record.PhaseReady, got.GetSnapshot().GetReadyToUse(), "want: only a ready one is ready to use")
			}

			_, release, err := s.copies.LockSnapshot(id)
			rpccode.Require(t, err, want.lock)

			if err == nil {
				release()
			}

			free, err := s.copies.Locks.TryLock(id)
			require.NoError(t, err, "want: a refused lock is released")
			free()

			listed, err := s.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: id})
			require.NoError(t, err)
			require.Equal(t, want.get == codes.OK, len(listed.GetEntries()) == 1, "want: only a visible one is listed")

			made, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: sourceID})
			rpccode.Require(t, err, want.again)

			if err == nil {
				require.True(t, made.GetSnapshot().GetReadyToUse(), "want: it is taken")
				require.Equal(t, phase != record.PhaseDeleting, made.GetSnapshot().GetSnapshotId() == id, "want: the one of that name")
			}

			_, err = s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: s.create("other")})
			rpccode.Require(t, err, codes.AlreadyExists)
		})
	}
}

// TestOnlyAChangeWaitsForOthers: what a volume has already is answered at once, and Drain makes the
// changes that wait.
func TestOnlyAChangeWaitsForOthers(t *testing.T) {
	t.Parallel()

	s := newSite(t, func(c *Config) { c.CoalesceWindow = time.Hour })
	id := s.create("volume", withMutable)

	limited, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	require.NoError(t, s.expand(limited, id, 4*mib), "its size")
	require.NoError(t, s.expand(limited, id, mib), "less than its size")
	require.NoError(t, s.modify(limited, id, "readIOPS", "100"), "its parameters")

	// What is wrong with a request alone keeps no other waiting.
	s.node.supportErr = errBroken
	rpccode.Require(t, s.modify(limited, id, "readIOPS", "1"), codes.InvalidArgument)

	s.node.supportErr = nil
	s.config.Admission.Capacities["default"] = 4 * mib
	rpccode.Require(t, s.expand(limited, id, 8*mib), codes.ResourceExhausted)
	clear(s.config.Admission.Capacities)

	short, end := context.WithTimeout(t.Context(), time.Second)
	defer end()

	rpccode.Require(t, s.expand(short, id, 8*mib), codes.DeadlineExceeded)
	require.NoError(t, s.changes.Drain(limited))

	found, err := s.catalog.FindVolume(id)
	require.NoError(t, err)
	require.Equal(t, int64(8*mib), found.CapacityBytes, "want: the change that waited is made")
}

// TestWhatIsMadeAlreadyIsNotMadeAgain: a modification does not enlarge, and a repetition records nothing.
func TestWhatIsMadeAlreadyIsNotMadeAgain(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("volume", withMutable)
	s.failing = operation.ImageExpanded

	require.NoError(t, s.modify(t.Context(), id, "readIOPS", "7"), "want: nothing is enlarged")
	s.disk.failAt(1)
	require.NoError(t, s.modify(t.Context(), id, "readIOPS", "7"))
	require.NoError(t, s.expand(t.Context(), id, 4*mib))
	require.False(t, s.disk.hasFailed(), "want: nothing is recorded")
}

// TestCopiesNeedTheirSourcesPool: a copy into another pool fails while that of its source does.
func TestCopiesNeedTheirSourcesPool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	source := s.create("source", with("pool", "fast"))
	snapshotID := s.snapshot("snapshot", source)
	records := s.allRecords()
	s.failPool("fast")

	for name, of := range map[string]func(*csi.CreateVolumeRequest){"clone": ofVolume(source), "restore": ofSnapshot(snapshotID)} {
		_, err := s.CreateVolume(t.Context(), createRequestOf("copy", of, with("pool", "default")))
		rpccode.Require(t, err, codes.Unavailable, name)
	}

	require.Equal(t, records, s.allRecords(), "want: nothing is made")
}

// TestReadonlyIsACapability: without it a CO must not ask for it.
func TestReadonlyIsACapability(t *testing.T) {
	t.Parallel()

	s := newSite(t, without("PUBLISH_READONLY"))
	request := &csi.ControllerPublishVolumeRequest{VolumeId: s.create("volume"), NodeId: ownNode, VolumeCapability: mountCapability(), Readonly: true}

	_, err := s.ControllerPublishVolume(t.Context(), request)
	rpccode.Require(t, err, codes.InvalidArgument)

	request.Readonly = false
	_, err = s.ControllerPublishVolume(t.Context(), request)
	require.NoError(t, err)
}
