package health_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestHealthIsProbedAtTheStart: a driver ends while volumes are unhealthy, and others become
// unhealthy while it is down: the first answer of the next knows of all.
func TestHealthIsProbedAtTheStart(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	missing := []health.Reason{health.BackingFileMissing}
	begun := []illness{
		{
			name: "renamed", node: missing, controller: missing,
			strike: func(t *testing.T, p *sufferer) { require.NoError(t, os.Rename(p.image, p.aside(t, p.image)+".old")) },
			cure:   func(t *testing.T, p *sufferer) { require.NoError(t, os.Rename(p.aside(t, p.image)+".old", p.image)) },
		},
		{
			name: "renamed block", volume: rawBlock(), node: missing, controller: missing,
			strike: func(t *testing.T, p *sufferer) { require.NoError(t, os.Rename(p.image, p.aside(t, p.image)+".old")) },
			cure:   func(t *testing.T, p *sufferer) { require.NoError(t, os.Rename(p.aside(t, p.image)+".old", p.image)) },
		},
		{
			name: "moved", node: missing, controller: missing,
			strike: func(t *testing.T, p *sufferer) { require.NoError(t, os.Rename(p.image, p.aside(t, p.image))) },
			cure:   func(t *testing.T, p *sufferer) { require.NoError(t, os.Rename(p.aside(t, p.image), p.image)) },
		},
		{
			name: "unmounted", node: []health.Reason{health.VolumeUnmounted},
			strike: func(t *testing.T, p *sufferer) { harness.Unmount(t, p.claim.StagingPath) },
			cure:   func(t *testing.T, p *sufferer) { require.NoError(t, p.Stage(t.Context(), p.claim)) },
		},
		{
			name: "read-only", volume: harness.Formatted("ext4", "errors=remount-ro"), strike: triggerError, cure: restage,
			node: []health.Reason{health.ReadOnlyRemount, health.FilesystemCorrupted},
		},
		{
			name: "shut down", volume: harness.Formatted("xfs"), strike: goDown, cure: restage,
			node: []health.Reason{health.DiskFailure}, beside: []health.Reason{health.ReadOnlyRemount},
		},
	}

	for name, again := range map[string]func(*testing.T, *harness.Driver){
		"SIGKILL": func(t *testing.T, d *harness.Driver) { d.Kill(t) },
		"SIGTERM": func(t *testing.T, d *harness.Driver) { d.Restart(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t, harness.EventsOnly)
			sick := make([]*sufferer, len(begun))

			for n, each := range begun {
				request := each.request()
				request.Name = each.name
				sick[n] = &sufferer{Driver: d, claim: harness.NewVolume(t, d, request)}
				sick[n].image = harness.ImageOf(d, sick[n].claim.VolumeID)
				harness.BringUp(t, d, sick[n].claim)
			}

			for n, each := range begun {
				each.strike(t, sick[n])
			}

			again(t, d)

			for n, each := range begun {
				sick[n].isKnown(t.Context(), t, each.diagnosis())
				each.cure(t, sick[n])
				sick[n].awaitWell(t)
			}
		})
	}
}

// TestFrozenVolumeIsThawedAfterAKill: a driver is killed while the image of a volume gives no
// answer to an online check, which has the filesystem frozen until it is copied.
func TestFrozenVolumeIsThawedAfterAKill(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	p := &sufferer{served: faults.Serve(t)}
	p.Driver = harness.StartProcess(t, harness.EventsOnly, harness.PoolAt("default", filepath.Join(p.served.Path, "pool")))
	p.claim = harness.NewVolume(t, p.Driver, &csi.CreateVolumeRequest{})
	p.image = harness.ImageOf(p.Driver, p.claim.VolumeID)
	harness.BringUp(t, p.Driver, p.claim)
	t.Cleanup(func() {
		// Should the test have failed, no process waits for ever.
		p.served.Release(t)
		_ = harness.Thaw(p.claim.StagingPath)
	})

	p.fail(t, faults.Fault{Ops: faults.Reads, Hang: true})

	checked := make(chan error, 1)

	go func() {
		_, err := health.NewClient(p.Conn()).Check(t.Context(), health.CheckRequest{VolumeID: p.claim.VolumeID, How: "online"})
		checked <- err
	}()

	require.Eventually(t, func() bool { return p.served.Met(t) > 0 }, await.Limit, harness.Often, "want: the check hangs in the pool")

	written := harness.StartHeldWrite(t, filepath.Join(p.claim.TargetPath, "written"))

	p.Kill(t)
	require.Error(t, await.Receive(t, checked, "the check to return"), "a check whose driver was killed")

	p.served.Release(t)
	written.RequireDone(t)
	p.awaitWell(t)
	require.Equal(t, "clean", check(t, p, "online").Verdict)

	left, err := os.ReadDir(filepath.Join(p.Pool(), "scratch"))
	require.NoError(t, err)
	require.Empty(t, left, "want: no scratch file is left")
}
