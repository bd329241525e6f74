package copies

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestReadersBlockTheDeleter(t *testing.T) {
	t.Parallel()

	h := NewLocks()

	first, err := h.TryRLock("a")
	require.NoError(t, err)
	second, err := h.TryRLock("a")
	require.NoError(t, err)

	aborted := func() {
		t.Helper()

		_, err := h.TryLock("a")
		require.ErrorIs(t, err, ErrRead)
		rpccode.Require(t, err, codes.Aborted)
		errtext.Require(t, err, "snapshot a")
	}

	aborted()
	first()
	aborted()
	// What was released once is not released for another reader.
	first()
	aborted()
	second()

	unlock, err := h.TryLock("a")
	require.NoError(t, err)
	unlock()
	require.Empty(t, h.held, "want: no lock is left")
}

func TestDeleterBlocksReaders(t *testing.T) {
	t.Parallel()

	h := NewLocks()

	unlock, err := h.TryLock("a")
	require.NoError(t, err)

	_, err = h.TryRLock("a")
	require.ErrorIs(t, err, ErrDeleting)
	rpccode.Require(t, err, codes.Aborted)

	_, err = h.TryLock("a")
	require.ErrorIs(t, err, ErrDeleting)

	other, err := h.TryLock("b")
	require.NoError(t, err)
	other()

	unlock()

	second, err := h.TryLock("a")
	require.NoError(t, err)
	// What is over does not end what came after it.
	unlock()

	_, err = h.TryRLock("a")
	require.ErrorIs(t, err, ErrDeleting)
	second()

	release, err := h.TryRLock("a")
	require.NoError(t, err)
	release()
}

func TestReadersAndDeleterExcludeEachOther(t *testing.T) {
	t.Parallel()

	const rounds, workers = 2000, 4

	h := NewLocks()

	var (
		readers, deleters, met atomic.Int64
		wg                     sync.WaitGroup
	)

	for range workers {
		wg.Go(func() {
			for range rounds {
				if release, err := h.TryRLock("a"); err == nil {
					readers.Add(1)
					met.Add(deleters.Load())
					readers.Add(-1)
					release()
				}

				if unlock, err := h.TryLock("a"); err == nil {
					met.Add(deleters.Add(1) - 1)
					met.Add(readers.Load())
					deleters.Add(-1)
					unlock()
				}
			}
		})
	}

	await.Return(t, wg.Wait, "all holders to end")
	require.Zero(t, met.Load(), "want: no reader runs beside the deleter")
	require.Empty(t, h.held, "want: no lock is left")
}

// TestEachMemberIsLockedOrNone while a group is deleted.
func TestEachMemberIsLockedOrNone(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	source := b.create("source")
	members := []*record.Snapshot{b.snapshot("a", source, record.PhaseReady), b.snapshot("b", source, record.PhaseReady)}
	release, err := b.Locks.TryRLock(members[1].ID)
	require.NoError(t, err)

	rpccode.Require(t, b.Remove(t.Context(), nil, members...), codes.Aborted)
	require.Len(t, b.Locks.held, 1, "want: only the reader has a lock")
	release()

	_, end := b.Running.Start(t.Context(), members[1].ID, "b")
	removed := make(chan error, 1)

	go func() { removed <- b.Remove(t.Context(), nil, members...) }()

	held := func() int {
		b.Locks.mu.Lock()
		defer b.Locks.mu.Unlock()

		return len(b.Locks.held)
	}
	require.Eventually(t, func() bool { return held() == 2 }, await.Limit, time.Millisecond, "want: both are locked")
	end()
	require.NoError(t, <-removed)
	require.Zero(t, held(), "want: no lock is left")
}
