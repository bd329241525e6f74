package operations_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// slowMkfs stands before mkfs.ext4: each run is counted, and waits until it is
// let go.
type slowMkfs struct{ dir string }

func newSlowMkfs(t *testing.T) slowMkfs {
	t.Helper()

	tool, err := exec.LookPath("mkfs.ext4")
	require.NoError(t, err)

	s := slowMkfs{dir: t.TempDir()}
	require.NoError(t, unix.Mkfifo(filepath.Join(s.dir, "gate"), 0o600))

	// Opening the fifo for reading waits for letGo.
	script := "#!/bin/sh\necho run >> " + s.dir + "/runs\nread word < " + s.dir + "/gate\nexec " + tool + ` "$@"` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "mkfs.ext4"), []byte(script), 0o700))
	t.Setenv("PATH", s.dir+":"+os.Getenv("PATH"))

	return s
}

func (s slowMkfs) runs() int {
	runs, _ := os.ReadFile(filepath.Join(s.dir, "runs"))

	return strings.Count(string(runs), "run")
}

func (s slowMkfs) awaitRun(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return s.runs() > 0 }, time.Minute, time.Millisecond, "want: mkfs runs")
}

func (s slowMkfs) letGo(t *testing.T) {
	t.Helper()

	await.WritePipe(t, filepath.Join(s.dir, "gate"), "go\n")
}

// TestStagingIsRetriedAfterItsDeadline: the staging takes longer than its deadline. These tests set
// PATH, and so cannot run beside others.
func TestStagingIsRetriedAfterItsDeadline(t *testing.T) {
	namespace.NeedRoot(t)

	mkfs := newSlowMkfs(t)
	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
	require.NoError(t, d.Attach(t.Context(), claim))

	stage := func(ctx context.Context) error { return d.Stage(ctx, claim) }

	for range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), harness.ImpatientDeadline)
		harness.RequireCode(t, stage(ctx), codes.DeadlineExceeded)
		cancel()
	}

	mkfs.awaitRun(t)
	mkfs.letGo(t)
	require.NoError(t, harness.Retry(t, stage))
	require.Equal(t, 1, mkfs.runs(), "want: the volume is formatted once")

	t.Cleanup(func() { harness.TakeDown(t, d, claim) })
	require.NoError(t, harness.Retry(t, func(ctx context.Context) error { return d.Publish(ctx, claim) }))
	harness.WriteBlock(t, claim)
	harness.RequireBlock(t, claim)
}

// TestCallsDuringAStaging, which waits in its mkfs.
func TestCallsDuringAStaging(t *testing.T) {
	namespace.NeedRoot(t)

	mkfs := newSlowMkfs(t)
	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
	require.NoError(t, d.Attach(t.Context(), claim))

	staged := make(chan error, 1)

	go func() { staged <- d.Stage(context.WithoutCancel(t.Context()), claim) }()

	mkfs.awaitRun(t)

	// The same call with other arguments is a conflict, at once.
	other := *claim
	other.Capability = csiclient.MountCapability(harness.Writer, "ext4", "noatime")
	harness.RequireCode(t, d.Stage(t.Context(), &other), codes.Aborted, "NodeStageVolume", claim.VolumeID)

	other = *claim
	other.StagingPath += "-elsewhere"
	harness.RequireCode(t, d.Stage(t.Context(), &other), codes.Aborted, claim.VolumeID)

	// Other volumes do not wait, nor does who only asks.
	request := harness.KindRequests(harness.Writer)["directory"]
	request.Name = "second"
	second := harness.NewVolume(t, d, request)
	harness.BringUp(t, d, second)
	require.NoError(t, harness.VolumeStats(t, d, second, second.TargetPath))
	require.ElementsMatch(t, []string{claim.VolumeID, second.VolumeID}, harness.ListAll(t, d))

	// Of the same volume, what comes later is done later, in order.
	published := make(chan error, 1)
	begun := make(chan struct{})

	go func() {
		close(begun)

		published <- d.Publish(context.WithoutCancel(t.Context()), claim)
	}()

	await.Receive(t, begun, "the publication to begin")

	ctx, cancel := context.WithTimeout(t.Context(), harness.ImpatientDeadline)
	harness.RequireCode(t, d.Unpublish(ctx, claim), codes.DeadlineExceeded)
	cancel()

	mkfs.letGo(t)
	require.NoError(t, await.Receive(t, staged, "NodeStageVolume to return"))

	if err := await.Receive(t, published, "NodePublishVolume to return"); err != nil {
		t.Fatalf("published after it was staged: %v", err)
	}

	// Whether the impatient Unpublish came before or after, its retry ends it.
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoDirExists(t, claim.TargetPath)
	require.Equal(t, 1, mkfs.runs(), "want: the volume is formatted once")
	harness.TakeDown(t, d, claim)
}

// TestDrainWaitsForAFormat stops the driver while mkfs runs: it ends in good
// order, and the next driver formats nothing again.
func TestDrainWaitsForAFormat(t *testing.T) {
	namespace.NeedRoot(t)

	mkfs := newSlowMkfs(t)
	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))

	staged := make(chan error, 1)

	go func() { staged <- d.Stage(context.WithoutCancel(t.Context()), claim) }()

	mkfs.awaitRun(t)

	stopped := make(chan struct{})

	go func() {
		d.Stop()
		close(stopped)
	}()

	require.Eventually(t, func() bool {
		_, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})

		return status.Code(err) == codes.Unavailable
	}, time.Minute, time.Millisecond, "want: the draining driver refuses calls")

	mkfs.letGo(t)
	require.NoError(t, await.Receive(t, staged, "NodeStageVolume to return"))
	await.Receive(t, stopped, "the driver to stop")

	d.Restart(t)
	require.NoError(t, d.Stage(t.Context(), claim))
	require.Equal(t, 1, mkfs.runs(), "want: the volume is formatted once")
	harness.TakeDown(t, d, claim)
}

// TestConcurrentPublishAndUnpublish are called hundreds of times: what it asked for last is what
// there is.
func TestConcurrentPublishAndUnpublish(t *testing.T) {
	namespace.NeedRoot(t)

	const rounds = 300

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
	require.NoError(t, d.Attach(t.Context(), claim))
	require.NoError(t, d.Stage(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })

	publish := func(ctx context.Context) error { return d.Publish(ctx, claim) }
	unpublish := func(ctx context.Context) error { return d.Unpublish(ctx, claim) }

	for round := range rounds {
		first, last := publish, unpublish
		if round%2 == 0 {
			first, last = unpublish, publish
		}

		var both sync.WaitGroup

		for _, call := range []func(context.Context) error{first, last, first} {
			both.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), harness.ImpatientDeadline)
				defer cancel()

				// Too late is fine; nothing else is.
				if err := call(ctx); err != nil && status.Code(err) != codes.DeadlineExceeded {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}

		await.Return(t, both.Wait, "both calls to return")
		require.NoError(t, harness.Retry(t, last))

		if round%2 == 0 {
			require.DirExists(t, claim.TargetPath)
			harness.WriteBlock(t, claim)
		} else {
			require.NoDirExists(t, claim.TargetPath)
		}
	}
}
