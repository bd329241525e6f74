package pool

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestADiscardWaitsForItsRemoval for a limited time, and no longer than its caller.
func TestADiscardWaitsForItsRemoval(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		queue := removal.New(slog.New(slog.DiscardHandler))

		p, err := Open("a", t.TempDir(), Options{Removals: queue})
		require.NoError(t, err)

		running, stop := context.WithCancel(t.Context())
		stopped := make(chan struct{})

		go func() {
			defer close(stopped)
			queue.Run(running)
		}()

		discarded := filepath.Join(p.Path(), layout.Removing, quotaID)
		complete := func(ctx context.Context) time.Duration {
			start := time.Now()

			synctest.Wait()
			require.NoError(t, p.complete(ctx, quotaID))

			return time.Since(start)
		}

		require.NoError(t, os.Mkdir(discarded, directoryMode))

		held, err := p.purging.acquire(t.Context(), quotaID)
		require.NoError(t, err)
		require.Equal(t, discardWait, complete(t.Context()), "want: a removal that takes longer continues in the background")

		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Zero(t, complete(ended), "want: a caller that has left is not kept")
		require.DirExists(t, discarded)

		held()
		require.Zero(t, complete(t.Context()), "want: the removal is awaited")
		require.NoDirExists(t, discarded)

		// What fails is reported by the queue.
		require.NoError(t, p.removing.Close())
		require.Zero(t, complete(t.Context()), "want: an attempt that has failed is awaited")

		failures := queue.Failures("a")
		require.Len(t, failures, 1, "want: the failed removal is reported")
		require.Equal(t, "discarded files of "+quotaID, failures[0].Object)
		require.ErrorIs(t, failures[0].Cause, os.ErrClosed)
		errtext.Require(t, failures[0].Cause, "discarded files of "+quotaID+` from pool "a"`)

		stop()
		<-stopped
		require.NoError(t, p.Close())
	})
}

// TestWhatIsDiscardedIsDurable: the directories in which names were removed are synced before it returns.
func TestWhatIsDiscardedIsDurable(t *testing.T) {
	t.Parallel()

	p, f := newQuotaPool(t)
	synced := func() bool {
		for _, unsynced := range p.unsynced {
			if unsynced.Load() {
				return false
			}
		}

		return true
	}

	object := Object{ID: quotaID, Backing: volume.BackingDirectory}

	_, err := p.unlinkObject(t.Context(), object)
	require.NoError(t, err)
	require.False(t, synced(), "want: a removed name is noted as not durable")
	require.NoError(t, p.Discard(t.Context(), object))
	require.True(t, synced(), "want: what an earlier attempt has removed is durable, too")

	f.failing = "Remove"
	err = p.Discard(t.Context(), object)
	require.ErrorIs(t, err, errQuota)
	errtext.Require(t, err, "discard "+object.String())
}
