package copies

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// scripted is a taking whose phases are recorded, of which one fails.
type scripted struct {
	failing string
	passed  []string
}

func (s *scripted) pass(phase string) error {
	s.passed = append(s.passed, phase)

	if phase == s.failing {
		return errBroken
	}

	return nil
}

func (s *scripted) reserve(context.Context) error { return s.pass("reserve") }

func (s *scripted) hold(ctx context.Context, within func(context.Context) error) error {
	return within(ctx)
}

func (s *scripted) prepare(context.Context) error { return s.pass("prepare") }
func (s *scripted) take(context.Context) error    { return s.pass("take") }
func (s *scripted) commit(context.Context) error  { return s.pass("commit") }
func (s *scripted) accept(context.Context) error  { return s.pass("accept") }
func (s *scripted) prepared() []*pendingCopy      { return nil }

func (s *scripted) undo(_ context.Context, cause error) error {
	return errors.Join(s.pass("undo"), cause)
}

// TestPhases: one follows the other, and each that fails behind reserve is undone.
func TestPhases(t *testing.T) {
	t.Parallel()

	for failing, want := range map[string][]string{
		"":        {"reserve", "prepare", "take", "commit", "accept"},
		"reserve": {"reserve"},
		"prepare": {"reserve", "prepare", "undo"},
		"take":    {"reserve", "prepare", "take", "undo"},
		"commit":  {"reserve", "prepare", "take", "commit", "undo"},
		"accept":  {"reserve", "prepare", "take", "commit", "accept", "undo"},
	} {
		s := &scripted{failing: failing}
		err := New(Config{}).run(t.Context(), s)
		require.Equal(t, failing != "", err != nil, "want: the error of %q: %v", failing, err)
		require.Equal(t, want, s.passed, failing)
	}
}

// TestFailuresOfEachPhase leave neither a record nor an object, and the repetition succeeds.
func TestFailuresOfEachPhase(t *testing.T) {
	t.Parallel()

	script := func(change func(n *fakeNode)) func(b *bench, source *record.Volume) (mend func()) {
		return func(b *bench, source *record.Volume) func() {
			b.node.used[source.ID] = true
			change(b.node)

			return func() { *b.node = fakeNode{used: map[string]bool{}, canFreeze: true} }
		}
	}

	for name, fail := range map[string]func(b *bench, source *record.Volume) (mend func()){
		"prepare: the use is unknown": script(func(n *fakeNode) { n.useErr = errBroken }),
		"prepare: not frozen":         script(func(n *fakeNode) { n.canFreeze = false }),
		"take: freezing fails":        script(func(n *fakeNode) { n.freezeErr = errBroken }),
		"commit: a point fails":       script(func(n *fakeNode) { n.pointErr = errBroken }),
		"prepare: no image": func(b *bench, source *record.Volume) func() {
			require.NoError(b.t, os.Remove(b.served().ObjectPath(source.Object())))

			return func() { require.NoError(b.t, b.served().Images.Create(source.ID, source.CapacityBytes, false)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			source := b.create("source")
			fresh := b.wanted("taken", source)
			mend := fail(b, source)

			require.Error(t, b.TakeSnapshot(t.Context(), source, fresh), "want: %s", name)
			mend()
			require.Equal(t, map[string]record.Phase{"volume source": record.PhaseReady}, b.phases())
			require.Empty(t, b.stored("snapshots"), "want: no snapshot is left")
			require.Empty(t, b.stored("scratch"), "want: no copy is left")
			require.Zero(t, b.Remover.Queue.Len(), "want: nothing is left to be removed")

			require.NoError(t, b.TakeSnapshot(t.Context(), source, b.wanted("taken", source)))
			require.Equal(t, record.PhaseReady, b.phases()["snapshot taken"])
		})
	}
}

// TestCancelledCopiesLeaveNothing, of each kind, and can be repeated.
func TestCancelledCopiesLeaveNothing(t *testing.T) {
	t.Parallel()

	for kind, take := range map[string]func(b *bench, source *record.Volume) error{
		"snapshot": func(b *bench, source *record.Volume) error {
			return b.TakeSnapshot(b.t.Context(), source, b.wanted("taken", source))
		},
		"clone": func(b *bench, source *record.Volume) error {
			return b.Clone(b.t.Context(), b.describe("taken"), b.served(), source.ID, volume.ConsistencyFilesystem)
		},
		"group snapshot": func(b *bench, source *record.Volume) error {
			_, err := b.TakeGroup(b.t.Context(), &record.Group{
				ID: b.newID(), Name: "taken", SourceVolumeIDs: []string{source.ID}, Consistency: volume.ConsistencyFilesystem,
				Phase: record.PhaseCreating,
			})

			return err
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			source := b.create("source")
			b.node.used[source.ID] = true

			cancelled, running := make(chan error, 1), false
			cancel := func(ctx context.Context) {
				for id := range b.Catalog.Snapshots.Ascend("") {
					running = running || b.Running.Has(id)
				}

				go func() {
					ended, err := b.Progress.Cancel(t.Context(), "taken")
					if err == nil && (len(ended) != 1 || ended[0].Kind != kind) {
						err = errBroken
					}

					cancelled <- err
				}()

				await.Receive(t, ctx.Done(), "the copy to be cancelled")
			}

			for name, from := range map[string]fakeNode{
				"frozen": {canFreeze: true, used: b.node.used, copying: cancel}, "used": {canFreeze: true, used: b.node.used, committing: cancel},
				"unused": {committing: cancel},
			} {
				if name == "unused" && kind == "snapshot" || name != "frozen" && kind == "clone" {
					continue
				}

				*b.node = from
				err := take(b, source)
				require.ErrorIs(t, err, progress.ErrCancelled, name)
				require.False(t, running, "want: what is frozen, or of a group, is not acknowledged before it is taken")
				rpccode.Require(t, err, codes.Aborted, name)
				require.NoError(t, await.Receive(t, cancelled, "the end of the cancellation"))
				require.Equal(t, map[string]record.Phase{"volume source": record.PhaseReady}, b.phases(), name)
				require.Empty(t, b.stored("snapshots"), "want: no snapshot is left, %s", name)
				require.Empty(t, b.stored("scratch"), "want: no copy is left, %s", name)
				require.Empty(t, b.Progress.List(), "want: no copy is listed, %s", name)
			}

			*b.node = fakeNode{}
			require.NoError(t, take(b, source))
		})
	}
}

// TestAcceptIsRefusedAfterADeletion: what was deleted while it was copied is undone.
func TestAcceptIsRefusedAfterADeletion(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	fresh := b.wanted("taken", source)
	taking := b.taking(nil, fresh)
	taking.sources = []*record.Volume{source}

	require.NoError(t, taking.reserve(t.Context()))
	require.Equal(t, record.PhaseCreating, b.phases()["snapshot taken"])
	require.NoError(t, taking.prepare(t.Context()))
	require.NoError(t, taking.take(t.Context()))
	require.NoError(t, taking.commit(t.Context()))
	require.NoError(t, b.Catalog.DeleteSnapshots(t.Context(), nil, []*record.Snapshot{fresh}))

	err := taking.accept(t.Context())
	rpccode.Require(t, err, codes.Aborted)
	require.ErrorIs(t, taking.undo(t.Context(), err), catalog.ErrDeleted)
	require.Empty(t, b.stored("snapshots"), "want: no snapshot is left")
	require.Equal(t, record.PhaseDeleting, b.phases()["snapshot taken"], "its deletion forgets it")
}

// TestADeletedSnapshotIsNotTakenAgain, although a start has begun to.
func TestADeletedSnapshotIsNotTakenAgain(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	deleted := b.wanted("deleted", b.create("source")).InPhase(record.PhaseCopying)

	err := b.Catalog.ReserveSnapshots(t.Context(), nil, deleted)
	rpccode.Require(t, err, codes.Aborted)
	require.ErrorIs(t, err, catalog.ErrDeleted)
	require.NotContains(t, b.phases(), "snapshot deleted", "want: no record comes back")
}

// TestADeletionEndsCommit of the copy that it stops.
func TestADeletionEndsCommit(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	fresh := b.wanted("taken", source)
	taking := b.taking(nil, fresh)
	taking.sources = []*record.Volume{source}
	taking.Point = func(ctx context.Context, _ operation.Point, _ ...string) error { return context.Cause(ctx) }

	require.NoError(t, taking.reserve(t.Context()))
	require.NoError(t, taking.prepare(t.Context()))
	require.NoError(t, taking.take(t.Context()))

	stopped, stop := context.WithCancelCause(t.Context())
	stop(catalog.ErrDeleted)

	taking.copying = stopped
	err := taking.commit(t.Context())
	require.ErrorIs(t, err, catalog.ErrDeleted)
	rpccode.Require(t, err, codes.Aborted)
	require.ErrorIs(t, taking.undo(t.Context(), err), catalog.ErrDeleted)
	require.Empty(t, b.stored("snapshots"), "want: no snapshot is left")
}

// TestOnlyACopyThatRunsIsAcknowledged: the next copy of the name has a grace of its own.
func TestOnlyACopyThatRunsIsAcknowledged(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.Grace = grace
		taken := b.snapshot("taken", b.create("source"), record.PhaseCreating)

		found, err := b.Await(t.Context(), "taken", func(ctx context.Context) (*record.Snapshot, error) {
			for _, id := range []string{"another", taken.ID} {
				require.NoError(t, ctx.Err(), "want: the call waits")
				require.Equal(t, record.PhaseCreating, b.phases()["snapshot taken"], "want: it is not acknowledged yet")

				_, end := b.Running.Start(t.Context(), id, "taken")

				pass(grace)
				end()
			}

			return nil, ctx.Err()
		})
		require.NoError(t, err)
		require.Equal(t, taken.ID, found.ID)
		require.Equal(t, record.PhaseCopying, found.Phase)
		require.Equal(t, record.PhaseCopying, b.phases()["snapshot taken"], "want: it is recorded")
	})
}

// TestEachPhaseOfACopiedVolumeIsRecorded, and a failed one leaves nothing.
func TestEachPhaseOfACopiedVolumeIsRecorded(t *testing.T) {
	t.Parallel()

	for name, copyInto := range map[string]func(b *bench, source, fresh *record.Volume) error{
		"clone": func(b *bench, source, fresh *record.Volume) error {
			return b.Clone(b.t.Context(), fresh, b.served(), source.ID, volume.ConsistencyFilesystem)
		},
		"restore": func(b *bench, source, fresh *record.Volume) error {
			return b.Restore(b.t.Context(), fresh, b.served(), b.served(), b.snapshot("taken", source, record.PhaseReady))
		},
	} {
		b := newBench(t)
		source := b.create("source")
		path := b.served().ObjectPath(source.Object())

		require.NoError(t, copyInto(b, source, b.describe("copy")), name)
		require.Equal(t, record.PhaseReady, b.phases()["volume copy"], name)
		require.Len(t, b.stored("images"), 2, "want: the %s has an image", name)

		require.NoError(t, os.Rename(path, path+".aside"))

		failed := b.Clone(t.Context(), b.describe("failed"), b.served(), source.ID, volume.ConsistencyNone)
		rpccode.Require(t, failed, codes.NotFound, name)
		require.NotContains(t, b.phases(), "volume failed", "the failed copy is forgotten")
		require.NoError(t, os.Rename(path+".aside", path))

		smaller := b.describe("smaller")
		smaller.CapacityBytes = source.CapacityBytes - 1
		rpccode.Require(t, b.Clone(t.Context(), smaller, b.served(), source.ID, volume.ConsistencyNone), codes.Aborted,
			"the source was expanded")
	}
}

// TestTheObjectOfAFailedSnapshotIsRemovedLater if it cannot be removed now. Its name is free.
func TestTheObjectOfAFailedSnapshotIsRemovedLater(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	taken := b.snapshot("taken", b.create("source"), record.PhaseCreating)
	require.NoError(t, b.served().Close())

	err := b.taking(nil, taken).undo(t.Context(), errBroken)
	require.ErrorIs(t, err, errBroken)
	require.ErrorIs(t, err, fs.ErrClosed, "what cannot be removed is reported")
	require.Equal(t, 1, b.Remover.Queue.Len(), "want: it is removed later")
	require.Equal(t, record.PhaseDeleting, b.phases()["snapshot taken"])

	_, _, found := b.Catalog.Snapshots.Lookup(record.NameIndex, "taken")
	require.False(t, found, "want: the name of the snapshot is free")
}

// TestFailedCopyOfAnAcknowledgedSnapshot stays failed, at the end of the driver as one that is
// copied again.
func TestFailedCopyOfAnAcknowledgedSnapshot(t *testing.T) {
	t.Parallel()

	draining, drain := context.WithCancelCause(t.Context())
	drain(operation.ErrDraining)

	for want, ctx := range map[record.Phase]context.Context{record.PhaseFailed: t.Context(), record.PhaseCopying: draining} {
		b := newBench(t)
		source := b.create("source")
		copying := b.snapshot("copying", source, record.PhaseCopying)
		creating := b.snapshot("creating", source, record.PhaseCreating)
		gone := &record.Snapshot{ID: b.newID(), Parameters: copying.Parameters}

		require.ErrorIs(t, b.taking(nil, gone, creating, copying).undo(ctx, errBroken), errBroken)
		require.Equal(t, map[string]record.Phase{"volume source": record.PhaseReady, "snapshot copying": want}, b.phases(),
			"want: only what was acknowledged stays")
		require.Empty(t, b.stored("snapshots"), "want: no copy is left")
		require.NoError(t, b.recordFailed(t.Context(), errBroken, gone), "there is nothing to record")
	}
}

// TestAcknowledgementDuringUndo finds a snapshot that is forgotten, or one that has failed: without an
// object none stays "copying", which the next start would take of a later state of its source.
func TestAcknowledgementDuringUndo(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")

	for range 20 {
		taken := b.snapshot("taken", source, record.PhaseCreating)
		acknowledged := make(chan error)

		go func() {
			_, err := b.Catalog.AcknowledgeSnapshot(context.WithoutCancel(t.Context()), taken.ID)
			acknowledged <- err
		}()

		require.ErrorIs(t, b.taking(nil, taken).undo(t.Context(), errBroken), errBroken)
		require.NoError(t, <-acknowledged)
		require.Contains(t, []record.Phase{"", record.PhaseFailed}, b.phases()["snapshot taken"], "want: none stays copying")
		require.NoError(t, b.Catalog.ForgetSnapshots(nil, []*record.Snapshot{taken}))
	}
}

// TestFailuresOfTheState fail undo.
func TestFailuresOfTheState(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	copying := b.snapshot("copying", source, record.PhaseCopying)
	creating := b.snapshot("creating", source, record.PhaseCreating)
	kept := b.snapshot("kept", source, record.PhaseReady)
	require.NoError(t, b.store.Close())

	require.ErrorIs(t, b.taking(nil, copying).undo(t.Context(), errBroken), state.ErrNotOpen)
	require.ErrorIs(t, b.taking(nil, creating).undo(t.Context(), errBroken), state.ErrNotOpen)
	require.ErrorIs(t, b.Recover(), state.ErrNotOpen)
	require.ErrorIs(t, b.recordFailed(t.Context(), errBroken, copying), state.ErrNotOpen)
	require.ErrorIs(t, b.takeAgain(t.Context(), b.served(), copying), state.ErrNotOpen)

	unserved := b.taking(nil, creating)
	unserved.pool = func(string, string) (*pool.Pool, error) { return nil, errBroken }
	unserved.sources = []*record.Volume{source}
	require.ErrorIs(t, unserved.prepare(t.Context()), errBroken)
	require.ErrorIs(t, b.Remove(t.Context(), nil, kept), state.ErrNotOpen)
	require.Equal(t, []string{kept.ID + ".img"}, b.stored("snapshots"), "want: nothing is removed whose deletion is not recorded")
}

// TestRecoveryFromEachRecord: what a start, and then the pool that it opens, make of the records.
func TestRecoveryFromEachRecord(t *testing.T) {
	t.Parallel()

	for phase, want := range map[record.Phase]struct {
		recovered, resumed record.Phase
		removals           int
	}{
		record.PhaseCreating: {record.PhaseDeleting, record.PhaseDeleting, 1},
		record.PhaseDeleting: {record.PhaseDeleting, record.PhaseDeleting, 1},
		record.PhaseCopying:  {record.PhaseCopying, record.PhaseReady, 0},
		record.PhaseFailed:   {record.PhaseFailed, record.PhaseFailed, 0},
		record.PhaseReady:    {record.PhaseReady, record.PhaseReady, 0},
	} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			taken := b.snapshot("taken", b.create("source"), phase)

			require.NoError(t, b.Recover())
			require.Equal(t, want.recovered, b.phases()["snapshot taken"])
			require.Equal(t, want.removals, b.Remover.Queue.Len(), "want: what is unfinished is removed")

			require.NoError(t, b.Resume(t.Context(), b.served()))
			require.Eventually(t, func() bool { return b.Operations.Len() == 0 }, await.Limit, 1, "want: the copies end")
			require.Equal(t, want.resumed, b.phases()["snapshot taken"])

			// A copy that is over is not taken again.
			require.NoError(t, b.takeAgain(t.Context(), b.served(), taken.InPhase(record.PhaseCopying)))
			require.Equal(t, want.resumed, b.phases()["snapshot taken"])
			require.NoError(t, b.takeAgain(t.Context(), b.served(), &record.Snapshot{ID: b.newID()}), "one that is gone is not taken again")
		})
	}
}

// TestMembersAreRemovedWithTheirGroup, of which the start finds a half-made record.
func TestMembersAreRemovedWithTheirGroup(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	made, err := b.TakeGroup(t.Context(), &record.Group{
		ID: b.newID(), Name: "all", SourceVolumeIDs: []string{source.ID}, Consistency: volume.ConsistencyFilesystem, Phase: record.PhaseCreating,
	})
	require.NoError(t, err)
	require.Equal(t, record.PhaseReady, b.phases()["group all"])

	require.NoError(t, b.Recover())
	require.Zero(t, b.Remover.Queue.Len(), "want: a group that is ready stays")

	member, err := b.Catalog.FindSnapshot(made.SnapshotIDs[0])
	require.NoError(t, err)
	require.NoError(t, b.store.Update(t.Context(), func(tx *state.Tx) error {
		return errors.Join(
			b.Catalog.Groups.In(tx).Put(made.ID, made.InPhase(record.PhaseCreating)),
			b.Catalog.Snapshots.In(tx).Put(member.ID, member.InPhase(record.PhaseCreating)),
		)
	}))

	require.NoError(t, b.Recover())
	require.Equal(t, 1, b.Remover.Queue.Len(), "want: its member goes with it, and not by itself")
	require.Equal(t, record.PhaseDeleting, b.phases()["group all"])
	require.Equal(t, record.PhaseDeleting, b.phases()["snapshot "])
}

// TestCopiesWaitForOperations: a copy is not resumed beside an operation on it or on its source.
func TestCopiesWaitForOperations(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	snapshot := &record.Snapshot{ID: "s", SourceVolumeID: "v"}

	for key, want := range map[string]bool{"snapshot s": true, "volume v": true, "volume s": false} {
		released := make(chan struct{})
		require.NoError(t, operation.Start(t.Context(), b.Operations, operation.Call{Key: key}, func(context.Context) { <-released }))
		require.Equal(t, want, b.busyWith(snapshot), "want: %s is an operation on it", key)
		close(released)
		require.Eventually(t, func() bool { return b.Operations.Len() == 0 }, await.Limit, 1, "want: the operation ends")
	}
}
