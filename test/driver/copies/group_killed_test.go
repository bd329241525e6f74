package copies_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// TestAKilledGroupOfRawBlockIsForgotten kills the driver at each change that a group of raw block
// volumes in use makes in scratch: two images, the lock file and the snapshot of the subvolume are
// made, the latter two removed, and the images renamed.
func TestAKilledGroupOfRawBlockIsForgotten(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartProcess(t, harness.PoolAt("default", testpool.Btrfs(t, 4*harness.GiB)))
	members := rawMembers(t, d, 2, nil)

	for _, member := range members {
		harness.WriteBlock(t, member)
	}

	const changes = 8

	for last := range changes {
		request := &csi.CreateVolumeGroupSnapshotRequest{
			Name: fmt.Sprint("killed at change ", last), SourceVolumeIds: []string{members[0].VolumeID, members[1].VolumeID},
		}

		killAtChange(t, d, request, last)
		harness.RequireEntries(t, d, map[string]int{"scratch": 0})

		var made *csi.CreateVolumeGroupSnapshotResponse

		require.NoError(t, harness.Retry(t, func(ctx context.Context) (err error) {
			made, err = d.CreateVolumeGroupSnapshot(ctx, request)

			return err
		}))
		require.Len(t, made.GetGroupSnapshot().GetSnapshots(), len(members), "want: the group has a snapshot of each member")
		harness.RequireEntries(t, d, map[string]int{"snapshots": len(members), "scratch": 0})

		group := made.GetGroupSnapshot()
		require.NoError(t, deleteGroup(t.Context(), d, group.GetGroupSnapshotId(), membersOf(group)))
		harness.RequireEntries(t, d, map[string]int{"snapshots": 0, "scratch": 0})
	}
}

// killAtChange takes a group and kills the driver once so many changes in scratch came before.
func killAtChange(t *testing.T, d *harness.Driver, request *csi.CreateVolumeGroupSnapshotRequest, last int) {
	t.Helper()

	watcher, err := fsnotify.NewWatcher()
	require.NoError(t, err)

	defer watcher.Close()

	require.NoError(t, watcher.Add(filepath.Join(d.Pool(), "scratch")))

	client, left := d.Client, make(chan error, 1)

	go func() {
		_, err := client.CreateVolumeGroupSnapshot(context.WithoutCancel(t.Context()), request)
		left <- err
	}()

	for seen := 0; seen <= last; {
		event := await.Receive(t, watcher.Events, "a change in scratch")
		if event.Has(fsnotify.Create) || event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename) {
			seen++
		}
	}

	d.Kill(t)

	// It may have been answered just before.
	_ = await.Receive(t, left, "CreateVolumeGroupSnapshot to return")
}
