package direct_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/harness"
)

const callers = 8

// crowd makes the same call several times at once, and requires each of them to
// do it, or fail with a request to retry.
func crowd(t *testing.T, calls ...func() error) {
	t.Helper()

	var running sync.WaitGroup

	for n := range callers {
		running.Go(func() {
			if err := calls[n%len(calls)](); status.Code(err) != codes.Aborted {
				harness.AssertNoError(t, err)
			}
		})
	}

	running.Wait()
}

// TestConcurrentDirectCallsSucceed: each call is repeated at the same time.
func TestConcurrentDirectCallsSucceed(t *testing.T) {
	d := directDriver(t)
	claim := harness.NewVolume(t, d, harness.DirectRequest("ext4"))
	require.NoError(t, d.Attach(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })

	stage := func() error { return d.Stage(t.Context(), claim) }
	publish := func() error { return d.Publish(t.Context(), claim) }
	unpublish := func() error { return d.Unpublish(t.Context(), claim) }
	unstage := func() error { return d.Unstage(t.Context(), claim) }
	list := func() error {
		_, err := kata.List(t.Context(), d.Conn())

		return err
	}
	usage := func() error {
		if err := harness.VolumeStats(t, d, claim, claim.StagingPath); status.Code(err) != codes.NotFound {
			return err
		}

		return nil
	}

	for range 3 {
		crowd(t, stage)
		require.NoError(t, stage())

		device := deviceOf(t, d, claim)

		crowd(t, publish, list, usage)
		require.NoError(t, publish())
		require.Equal(t, device, deviceOf(t, d, claim))
		require.Len(t, mountsAt(t, claim.TargetPath), 1, "want: the target has one mount")
		take(t, d, claim, sandbox)

		reported, err := os.Stat(harness.MountInfoPath(d, claim))
		require.NoError(t, err)
		crowd(t, publish, list, usage)

		// Not even written again.
		now, err := os.Stat(harness.MountInfoPath(d, claim))
		require.NoError(t, err)
		require.True(t, os.SameFile(reported, now), "want: the file is the one that was there before")
		taken(t, d, claim, sandbox)

		crowd(t, unpublish, list, usage)
		require.NoError(t, unpublish())
		require.NoDirExists(t, claim.TargetPath)
		require.Empty(t, entriesIn(t, d.Config.Node.Direct.Root), "want: the assignment is removed")

		crowd(t, publish, unpublish, list, usage)
		require.NoError(t, publish())
		require.Len(t, mountsAt(t, claim.TargetPath), 1, "want: the target has one mount")
		require.Equal(t, []string{"mountInfo.json"}, entriesIn(t, harness.DirectEntry(d, claim)))
		require.NoError(t, unpublish())

		crowd(t, unstage, list, usage)
		require.NoError(t, unstage())
		require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
	}
}

// TestDirectVolumesAreIndependent: several of them come and go beside each other.
func TestDirectVolumesAreIndependent(t *testing.T) {
	d := directDriver(t)

	var running sync.WaitGroup

	for n := range callers {
		request := harness.DirectRequest("ext4")
		request.Name = fmt.Sprint("volume ", n)
		claim := harness.NewVolume(t, d, request)
		require.NoError(t, d.Attach(t.Context(), claim))
		t.Cleanup(func() { harness.TakeDown(t, d, claim) })

		running.Go(func() {
			for range 3 {
				if !comesAndGoes(t, d, claim) {
					return
				}
			}
		})
	}

	running.Wait()
	require.Empty(t, entriesIn(t, d.Config.Node.Direct.Root), "want: all assignments are removed")
}

// comesAndGoes is for goroutines.
func comesAndGoes(t *testing.T, d *harness.Driver, claim *csiclient.Publication) bool {
	t.Helper()

	ctx := t.Context()

	for _, step := range []func() error{
		func() error { return d.Stage(ctx, claim) },
		func() error { return d.Publish(ctx, claim) },
		func() error { return os.WriteFile(filepath.Join(harness.DirectEntry(d, claim), sandbox), nil, 0o600) },
		func() error { return d.Publish(ctx, claim) },
		func() error {
			_, err := os.Stat(filepath.Join(harness.DirectEntry(d, claim), sandbox))

			return err
		},
		func() error { return harness.VolumeStats(t, d, claim, claim.TargetPath) },
		func() error { return d.Unpublish(ctx, claim) },
		func() error { return d.Unstage(ctx, claim) },
	} {
		if !harness.AssertNoError(t, step()) {
			return false
		}
	}

	return true
}

// mountsAt are those that lie on top of each other there.
func mountsAt(t *testing.T, path string) []mount.Point {
	t.Helper()

	points, err := mount.List()
	require.NoError(t, err)

	return slices.DeleteFunc(points, func(point mount.Point) bool { return point.Path != path })
}
