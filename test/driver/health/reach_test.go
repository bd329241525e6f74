package health_test

import (
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestRecoveredPoolHasItsVolumesProbed: there is no relist of the volumes: that their pool hangs,
// and no more, is known of them because it is known of the pool.
func TestRecoveredPoolHasItsVolumesProbed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, harness.EventsOnly, harness.PoolAt("slow", filepath.Join(served.Path, "pool")))

	volume := &sufferer{Driver: d, claim: harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Parameters: map[string]string{"pool": "slow", "backing": "directory"},
	})}
	harness.BringUp(t, d, volume.claim)
	volume.awaitWell(t)

	hang(t, served, faults.Fault{Hang: true})
	harness.AwaitStorage(t, d, "slow", health.PoolUnreachable)
	volume.await(t, diagnosis{
		node: []health.Reason{health.ProbeTimedOut}, controller: []health.Reason{health.ProbeTimedOut},
	})

	served.Release(t)
	harness.AwaitStorage(t, d, "")
	volume.awaitWell(t)
}
