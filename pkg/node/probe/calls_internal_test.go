package probe

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/await"
)

// TestCallsRecordDevices of a volume, whose pool object has another name.
func TestCallsRecordDevices(t *testing.T) {
	t.Parallel()

	f := newFixture(t)

	record := &staged.Volume{VolumeID: f.id, Content: "content", Ephemeral: true}
	at := func(number int) []string { return f.observations.atDevice(unix.Mkdev(loop.Major, uint32(number))) }

	f.Attached(record, &loop.Device{Status: loop.Status{Number: 3, Sequence: 12}}, 4096, false)
	f.Attached(record, &loop.Device{Status: loop.Status{Number: 4, Sequence: 13}}, 4096, true)
	require.Equal(t, []string{f.id}, at(3))
	require.Equal(t, []string{f.id}, at(4))

	last := f.observations.last(f.id)
	require.Equal(t, &Attachment{Number: 3, Sequence: 12}, last.attached, "want: the second device is not the one of the staging")
	require.EqualValues(t, 4096, last.imageBytes, "want: the size of the image is known")
	require.True(t, last.growth.covers(time.Now()), "want: an ephemeral volume was just formatted")

	f.Detached(3)
	require.Empty(t, at(3), "want: no event of the device is the volume's")
	require.Equal(t, []string{f.id}, at(4))
}

func TestEventsAreRequestedOfTheErrorsOfAnExt4(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		fsType      string
		unsupported bool
		want        int
	}{
		"ext4":      {fsType: filesystem.Ext4, want: 1},
		"another":   {fsType: filesystem.XFS},
		"no source": {fsType: filesystem.Ext4, unsupported: true},
	} {
		marked := 0
		f := newFixture(t, func(c *Config) {
			if !test.unsupported {
				c.Monitoring.MarkFilesystem = func(*os.File) error { marked++; return unix.ENOSPC }
			}
		})
		used := f.image()
		used.Capability.FSType = test.fsType
		err := f.config.Monitoring.requestErrorEvents(used, nil)
		require.Equal(t, test.want, marked, name)
		require.Equal(t, test.want > 0, errors.Is(err, unix.ENOSPC), "want: the failure is known: %s", name)
	}
}

// TestVolumeWithoutAReasonIsNotProbed, although a pool has it.
func TestVolumeWithoutAReasonIsNotProbed(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, f.first.Images.Create(f.id, 1<<20, false))
	f.observations.SetUsage(f.id, health.Usage{Bytes: health.Amount{Total: 7}})
	f.during(func() { f.forgetUnneeded(f.id) })
	require.NotZero(t, f.observations.LastUsage(f.id), "want: an operation that is running needs what is remembered")

	observed, err := f.probe(t.Context(), f.id)
	require.ErrorIs(t, err, health.ErrGone)
	require.Equal(t, health.Observation{}, observed)
	require.Zero(t, f.observations.LastUsage(f.id), "want: nothing is remembered of it")
}

// awaitRecord waits for the record of a probe that began after that time.
func (f *fixture) awaitRecord(began time.Time) []health.Reason {
	f.t.Helper()

	record, err := f.monitor.Await(f.t.Context(), f.id, began)
	require.NoError(f.t, err)

	return reasons(record.Entries)
}

func TestAFailedStagingRequestsAProbe(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	require.NoError(t, f.first.Images.Create(f.id, 1<<20, false))
	f.run()
	require.NoError(t, f.monitor.AwaitRelist(t.Context()))

	began := time.Now()
	f.StagingFailed(f.image(), errors.New("broken"))
	require.Equal(t, []health.Reason{health.StagingFailed}, f.awaitRecord(began))
}

// TestAProbeNowIsRequested: the answer is not the one of the probe before.
func TestAProbeNowIsRequested(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	used := f.image()
	used.Parameters.Backing, used.Ephemeral = volume.BackingDirectory, true
	f.node.pool, f.node.inUse[f.id] = f.first, used
	require.NoError(t, f.first.Directories.Create(f.id, 0, false))
	f.run()
	require.NoError(t, f.monitor.AwaitRelist(t.Context()))
	require.NoError(t, os.Remove(f.first.ObjectPath(pool.Object{ID: f.id, Backing: volume.BackingDirectory})))

	// A probe that takes long is answered by the one before.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		record, err := f.ProbeNow(t.Context(), f.id)
		require.NoError(c, err)
		require.Equal(c, []health.Reason{health.VolumeNotFound}, reasons(record.Entries))
	}, await.Limit, 10*time.Millisecond, "want: the answer is that of a new probe")
}

func TestAnOperationRequestsAProbe(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.run()
	require.NoError(t, f.monitor.AwaitRelist(t.Context()))

	began := time.Now()
	f.node.pool, f.node.inUse[f.id] = f.first, f.raw()
	f.ProbeAfterOperation(f.id)
	require.Equal(t, []health.Reason{health.BackingFileMissing, health.DeviceMissing}, f.awaitRecord(began))
}

// byPool counts the probes of volumes in pools.
type byPool struct {
	*node

	probed chan string
}

func (b *byPool) Of(used *staged.Volume) (*pool.Pool, error) {
	b.probed <- used.Parameters.Pool

	return b.node.Of(used)
}

// TestChangedPoolHasItsVolumesProbed, and no others.
func TestChangedPoolHasItsVolumesProbed(t *testing.T) {
	t.Parallel()

	probed := make(chan string, 100)
	f := newFixture(t, func(c *Config) {
		used, ok := c.Volumes.(*node)
		require.True(t, ok, "want: the node is the test's")

		c.Stored = &byPool{node: used, probed: probed}
	})
	other := f.raw()
	other.VolumeID, other.Parameters.Pool = "other", "second"
	f.node.pool, f.node.inUse[f.id], f.node.inUse["other"] = f.first, f.raw(), other
	f.run()
	require.NoError(t, f.monitor.AwaitRelist(t.Context()))

	for len(probed) > 0 {
		<-probed
	}

	began := time.Now()
	f.SuspectPool("first")
	f.awaitRecord(began)
	require.Equal(t, "first", <-probed)
	require.Empty(t, probed, "want: the volumes of another pool are not probed")
}

// TestARelistHasEachVolumeOnce, of several with several reasons.
func TestARelistHasEachVolumeOnce(t *testing.T) {
	t.Parallel()

	f := newFixture(t)

	for _, id := range []string{"a", "b"} {
		used := f.image()
		used.VolumeID, f.node.inUse[id] = id, used
		f.StagingFailed(used, errors.New("broken"))
	}

	require.Equal(t, []string{"a", "b"}, f.relist())
}

// TestProbesOfUnwantedVolumes: what could not be staged, and is in no pool, is forgotten.
func TestProbesOfUnwantedVolumes(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	unwanted := f.image()
	unwanted.Parameters.Pool = "third"
	f.StagingFailed(unwanted, errors.New("broken"))
	f.observations.SetUsage(f.id, health.Usage{Bytes: health.Amount{Total: 7}})

	_, err := f.probe(t.Context(), f.id)
	require.ErrorIs(t, err, health.ErrGone)
	require.Empty(t, f.failures.ids(), "want: the staging that failed is forgotten")
	require.Zero(t, f.observations.LastUsage(f.id), "want: nothing is remembered of it")
}

// TestChecksArePlannedAgain at a change of an image or a pool, and at each relist.
func TestChecksArePlannedAgain(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(f *fixture){
		"image":  func(f *fixture) { f.volumesAffectedBy(health.Event{Kind: health.FileChanged, Path: f.path()}) },
		"pool":   func(f *fixture) { f.SuspectPool("first") },
		"relist": func(f *fixture) { f.relist() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t)
			f.checked(fsck.Result{CleanAt: time.Now()})
			change(f)

			ctx, cancel := context.WithCancel(t.Context())

			var running sync.WaitGroup

			running.Go(func() { f.config.Checker.Run(ctx) })
			defer running.Wait()
			defer cancel()

			require.Equal(t, f.id, await.Receive(t, f.planned, "its check, which is planned again"))
		})
	}
}
