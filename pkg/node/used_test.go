package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// deviceOf returns what device does.
func (n *onceNode) deviceOf(t *testing.T) int {
	t.Helper()

	number, err := n.device()
	require.NoError(t, err)

	return number
}

// TestChecksSeeTheVolumesOfTheNode while they are staged.
func TestChecksSeeTheVolumesOfTheNode(t *testing.T) {
	for _, kind := range []string{"image", "block", "directory", "inline"} {
		t.Run(kind, func(t *testing.T) {
			n := newNode(t, kind)
			volumes, id := n.Local(), n.kind.id()

			seen := func(at string) {
				t.Helper()

				_, isStaged := volumes.Staged(id)
				require.Equal(t, at != "" && kind != "inline", isStaged, "want: the record of a staged volume")
				require.Equal(t, at != "" && kind == "inline", n.Used().IsInline(id), "want: the record of an inline volume")

				path, used, err := volumes.InUse(id)
				require.NoError(t, err)
				require.Equal(t, isStaged, used, "want: a staged volume is in use")

				if used {
					require.Equal(t, n.in("kubelet/"+at), path)
				}

				// A raw-block volume is not checked.
				if kind != "block" {
					count, err := volumes.ErrorCount(id)
					require.NoError(t, err)
					require.Zero(t, count, "want: no error is counted")
				}

				require.NoError(t, n.Direct().Guard.CheckNoGuest(&staged.Volume{VolumeID: id}))
			}

			seen("")
			require.NoError(t, n.stage(t.Context()))
			require.NoError(t, n.publish(t.Context()))
			seen("target")

			within := errors.New("within")
			err := volumes.WithFrozen(t.Context(), []string{id}, func(context.Context) error {
				require.Equal(t, kind == "image", volumes.IsFrozen(id), "want: a mounted image is frozen")

				return within
			})
			require.ErrorIs(t, err, within)
			require.False(t, volumes.IsFrozen(id), "want: it is thawed")
			require.ErrorIs(t, n.Do(t.Context(), id, func(context.Context) error { return within }), within)

			if kind == "image" {
				n.countError(t)

				count, err := volumes.ErrorCount(id)
				require.NoError(t, err)
				require.EqualValues(t, 1, count, "want: the kernel's count")
			}

			require.NoError(t, n.Checker().Forget(id))
			require.NoError(t, n.restart(t.Context()))
			require.Equal(t, kind == "image", n.Checker().Get(id) != nil, "want: the start knows that it is to be checked")

			require.NoError(t, n.unpublish(t.Context()))
			require.NoError(t, n.unstage(t.Context()))
		})
	}
}

// countError has the kernel count an error of the volume's ext4.
func (n *onceNode) countError(t *testing.T) {
	t.Helper()

	attribute := func(name string) string { return fmt.Sprintf("/sys/fs/ext4/loop%d/%s", n.deviceOf(t), name) }
	require.NoError(t, os.WriteFile(attribute("trigger_fs_error"), []byte("test"), 0))
	require.Eventually(t, func() bool {
		count, err := os.ReadFile(attribute("errors_count"))

		return err == nil && string(count) == "1\n"
	}, time.Minute, time.Millisecond, "want: the error is counted, which the kernel does later")
}

// TestChecksSeeTheConditions of the monitor, and end those of volumes that are not in use.
func TestChecksSeeTheConditions(t *testing.T) {
	n := newNode(t, "image")
	prober, id, monitor := n.Prober(), n.kind.id(), n.Prober().Monitor()

	require.False(t, prober.IsHanging(id), "want: nothing is known of the volume")
	require.True(t, monitor.Set(id, health.Observation{Entries: []health.Entry{health.NewEntry(health.IOErrors, "errors")}}, time.Now()), "want: the record is new")
	require.False(t, prober.IsHanging(id), "want: a volume with errors responds")
	require.True(t, monitor.Set(id, health.Observation{Entries: []health.Entry{health.NewEntry(health.ProbeTimedOut, "hangs")}}, time.Now()), "want: the record is newer")
	require.True(t, prober.IsHanging(id), "want: a volume whose probe timed out hangs")
	require.Zero(t, prober.Observations().CheckPeriod(id), "want: no probe has read the period")

	prober.ProbeAfterOperation(id)

	_, known := monitor.Get(id)
	require.False(t, known, "want: a volume that is not in use has no condition")
}

// TestALostDeviceOfAGuestIsRevoked: the next image at the number is not the guest's.
func TestALostDeviceOfAGuestIsRevoked(t *testing.T) {
	n := newNode(t, "direct")
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.publish(t.Context()))

	volumes := n.Used()
	record, _, used := volumes.Get(n.kind.id())
	require.True(t, used, "want: the volume is in use")
	require.Equal(t, []string{n.kind.id()}, volumes.IDs())
	require.NoError(t, n.RevokeLost(t.Context(), record))

	assigned := func() []string {
		found, err := filepath.Glob(n.in("kata/*"))
		require.NoError(t, err)

		return found
	}
	require.Len(t, assigned(), 1, "want: an assignment whose device is attached stays")
	require.Error(t, n.Direct().Guard.CheckNoGuest(&staged.Volume{VolumeID: n.kind.id()}), "want: a guest may have it")

	devices, err := n.Raw().Found(n.kind.id())
	require.NoError(t, err)
	require.True(t, n.Raw().Had(n.kind.id(), devices.Staged), "want: the device is the volume's")

	device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", devices.Staged), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0))
	require.NoError(t, device.Close())
	require.NoError(t, n.RevokeLost(t.Context(), record))
	require.Empty(t, assigned(), "want: the assignment of a lost device is removed")

	require.NoError(t, n.unpublish(t.Context()))
	require.NoError(t, n.unstage(t.Context()))
	require.NoError(t, n.RevokeLost(t.Context(), record), "want: a volume that is not in use has nothing to revoke")
}

// storedRecords are the records of a node that is not running.
type storedRecords struct {
	frozen *staged.Records[*freeze.Frozen]
	tuned  *staged.Records[*tuning.ChangedScheduler]
}

// withRecords opens the records while the node is not running.
func (n *onceNode) withRecords(t *testing.T, use func(records storedRecords)) {
	t.Helper()
	require.NoError(t, n.close())

	store := state.New(n.in("state"), state.Options{Log: slog.New(slog.DiscardHandler)})
	records := storedRecords{frozen: freeze.NewRecords(store), tuned: tuning.NewSchedulerRecords(store)}

	staged.NewVolumes(store)
	staged.NewInlineRecords(store)
	tuning.NewLimitedRecords(store)
	fsck.NewRecords(store)
	require.NoError(t, store.Open(t.Context()))
	records.frozen.Load()
	records.tuned.Load()
	use(records)
	require.NoError(t, store.Close())
	require.NoError(t, n.open(t.Context()))
}

// TestStartThawsFrozenFilesystems where they are mounted.
func TestStartThawsFrozenFilesystems(t *testing.T) {
	n := newNode(t, "image")
	require.NoError(t, n.stage(t.Context()))

	root, err := os.Open(n.in("kubelet/staging"))
	require.NoError(t, err)

	require.NoError(t, filesystem.Freeze(root))
	t.Cleanup(func() {
		_ = filesystem.Thaw(root) // the start has thawed it where the test has passed
		_ = root.Close()
	})
	n.withRecords(t, func(records storedRecords) {
		require.NoError(t, records.frozen.PutAll(t.Context(), []*freeze.Frozen{
			{VolumeID: n.kind.id(), FSType: filesystem.Ext4}, {VolumeID: missingID, FSType: filesystem.Ext4},
		}))
	})
	require.ErrorIs(t, filesystem.Thaw(root), filesystem.ErrNotFrozen)
	require.False(t, n.Local().IsFrozen(n.kind.id()), "want: the record is dropped")
	require.False(t, n.Local().IsFrozen(missingID), "want: the record of a volume that is not staged is dropped")
	require.NoError(t, root.Close())
	require.NoError(t, n.unstage(t.Context()))
}

// TestStartDropsStaleTuning: the scheduler of a device that is detached.
func TestStartDropsStaleTuning(t *testing.T) {
	n := newNode(t, "block")
	require.NoError(t, n.stage(t.Context()))

	attached := n.deviceOf(t)

	n.withRecords(t, func(records storedRecords) {
		require.NoError(t, records.tuned.PutAll(t.Context(), []*tuning.ChangedScheduler{
			{Number: attached, VolumeID: n.kind.id(), Scheduler: "none"}, {Number: 1<<20 - 1, VolumeID: n.kind.id(), Scheduler: "none"},
		}))
	})
	n.withRecords(t, func(records storedRecords) {
		left := records.tuned.All()
		require.Len(t, left, 1, "want: the record of the attached device stays")
		require.Equal(t, attached, left[0].Number)
	})
	require.NoError(t, n.unstage(t.Context()))
}

// TestModificationsByOthersAreApplied to the devices of volumes in use.
func TestModificationsByOthersAreApplied(t *testing.T) {
	n := newNode(t, "image")
	require.NoError(t, n.stage(t.Context()))

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		n.WatchMutable(ctx)
	}()

	t.Cleanup(func() {
		stop()
		<-ended
	})

	stored, err := n.pools.Get("default")
	require.NoError(t, err)
	require.NoError(t, stored.SetMutable(n.kind.id(), volume.Mutable{volume.KeyReadAheadKiB: "256"}))

	readAhead := fmt.Sprintf("/sys/block/loop%d/queue/read_ahead_kb", n.deviceOf(t))
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(readAhead)

		return err == nil && string(text) == "256\n"
	}, time.Minute, time.Millisecond, "want: the modification is applied")
	stop()
	<-ended
	require.NoError(t, n.unstage(t.Context()))
}

// TestCallsNeedThePool of the volume.
func TestCallsNeedThePool(t *testing.T) {
	n := newNode(t, "block")
	require.NoError(t, n.stage(t.Context()))

	failed := errors.New("broken")
	require.NoError(t, n.pools.Fail("default", failed))

	unavailable := answer{codes.Unavailable, "broken"}
	unavailable.require(t, n.publish(t.Context()), "publish")
	unavailable.require(t, n.expand(t.Context()), "expand")
	require.NoError(t, n.mounted("staging"))
	require.NoError(t, n.unstage(t.Context()))
	unavailable.require(t, n.stage(t.Context()), "stage")
	require.NoError(t, n.restart(t.Context()))
	require.NoError(t, n.stage(t.Context()))
	require.NoError(t, n.unstage(t.Context()))
}

// TestUnrecoverablePoolIsNotServed, as one whose directory for inline volumes is a file.
func TestUnrecoverablePoolIsNotServed(t *testing.T) {
	n := newNode(t, "image")
	other := t.TempDir()
	opened, err := pool.Open("other", other, pool.Options{})
	require.NoError(t, err)

	defer opened.Close()

	require.NoError(t, os.RemoveAll(filepath.Join(other, "ephemeral")))
	require.NoError(t, os.WriteFile(filepath.Join(other, "ephemeral"), nil, 0o600))
	require.Error(t, n.RecoverPool(t.Context(), opened), "want: the pool is not as its volumes need it")
}

// TestObservingEndsWithItsCaller: nothing runs the monitor.
func TestObservingEndsWithItsCaller(t *testing.T) {
	n := newNode(t, "image")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, n.Observe(ctx), context.Canceled)
}

func TestOnlyKnownSchedulersAreSupported(t *testing.T) {
	n := newNode(t, "image")
	require.NoError(t, n.Local().CheckSupported(volume.Mutable{}))
	require.Error(t, n.Local().CheckSupported(volume.Mutable{volume.KeyIOScheduler: "unknown"}), "want: no device has it")
}
