package freeze_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// attempts are when the root of a frozen filesystem was asked for. It cannot be opened, or then not be thawed.
type attempts struct {
	mutex sync.Mutex
	times []time.Time
	// takes is how long the next ones take, and ended counts those that have.
	takes time.Duration
	ended int
}

func (a *attempts) openRoot(string) (*os.File, error) {
	a.mutex.Lock()
	a.times = append(a.times, time.Now())
	takes, isOpened := a.takes, len(a.times)%2 == 0
	a.mutex.Unlock()

	time.Sleep(takes)

	a.mutex.Lock()
	defer a.mutex.Unlock()

	a.ended++

	if !isOpened {
		return nil, errors.New("the pool does not respond")
	}

	closed, err := os.Open(os.DevNull)

	return closed, errors.Join(err, closed.Close())
}

// pauses returns those between the attempts.
func (a *attempts) pauses() []time.Duration {
	a.mutex.Lock()
	defer a.mutex.Unlock()

	var all []time.Duration

	for i := 1; i < len(a.times); i++ {
		all = append(all, a.times[i].Sub(a.times[i-1]))
	}

	return all
}

// TestThawsKeepTheirBackOff has the thaw of a filesystem fail for an hour that a killed driver has left
// frozen: the pauses double up to a limit and keep it, also while calls ask for the volume.
func TestThawsKeepTheirBackOff(t *testing.T) {
	directory := t.TempDir()
	recordLeft(t, directory, onceID)

	synctest.Test(t, func(t *testing.T) {
		failing := &attempts{}
		log := slog.New(slog.DiscardHandler)
		store := state.New(directory, state.Options{Log: log})
		f := freeze.New(freeze.Config{Loops: loop.NewLoops(loop.LoopsOptions{First: firstLoop}), Log: log, OpenRoot: failing.openRoot}, store)

		require.NoError(t, store.Open(t.Context()))
		f.Load()
		f.ThawRecorded()

		for range 60 {
			time.Sleep(time.Minute)

			root, err := os.Open(directory)
			require.NoError(t, err)

			err = f.WithFrozen(t.Context(), freeze.Targets{Filesystems: []freeze.Filesystem{
				{VolumeID: onceID, FSType: filesystem.Ext4, Root: root},
			}}, func(context.Context) error { return nil })
			require.Equal(t, codes.Unavailable, status.Code(rpc.Status(err)), "a volume that is still frozen is not copied: %v", err)
		}

		failing.mutex.Lock()
		failing.takes = time.Minute
		failing.mutex.Unlock()
		time.Sleep(time.Minute)
		f.Close()
		require.Len(t, failing.times, failing.ended, "want: Close waits for the attempt that runs")
		require.True(t, f.IsFrozen(onceID), "the record stays until the filesystem is thawed")
		require.NoError(t, store.Close())

		pauses := failing.pauses()
		longest := pauses[len(pauses)-1]

		require.Greater(t, len(pauses), 60, "it is retried all the time")
		require.Less(t, pauses[0], time.Second, "the first pause")
		require.Greater(t, longest, 5*time.Second, "the longest pause")

		for i, pause := range pauses[1:] {
			require.Equal(t, min(2*pauses[i], longest), pause, "the pause after one of %s", pauses[i])
		}
	})
}

// recordLeft has a store with the record that a killed driver leaves.
func recordLeft(t *testing.T, directory, id string) {
	t.Helper()

	store := state.New(directory, state.Options{})
	records := freeze.NewRecords(store)

	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, records.Put(t.Context(), &freeze.Frozen{VolumeID: id, FSType: filesystem.Ext4}))
	require.NoError(t, store.Close())
}
