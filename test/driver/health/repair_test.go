package health_test

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// fullness are conditions of which the kernel reports neither the begin nor the end.
func fullness() []illness {
	return []illness{
		{name: "ext4 full", strike: useSpace, cure: empty, node: []health.Reason{health.OutOfCapacity}},
		{name: "xfs full", volume: harness.Formatted("xfs"), strike: useSpace, cure: empty, node: []health.Reason{health.OutOfCapacity}},
		{name: "inodes gone", volume: withFewInodes(), strike: useInodes, cure: empty, node: []health.Reason{health.InodesExhausted}},
	}
}

// TestUsageAndConditionAgree has no relist: what NodeGetVolumeStats measures, and the
// condition that it answers with, are of the same moment nevertheless.
func TestUsageAndConditionAgree(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, each := range fullness() {
		t.Run(each.name, func(t *testing.T) {
			t.Parallel()

			p := each.admit(t, harness.EventsOnly)
			p.awaitWell(t)

			for range 3 {
				each.strike(t, p)
				harness.RequireAbnormal(t, p.Driver, p.claim, p.claim.TargetPath, each.node[0])
				each.cure(t, p)

				answer, err := p.NodeGetVolumeStats(t.Context(),
					&csi.NodeGetVolumeStatsRequest{VolumeId: p.claim.VolumeID, VolumePath: p.claim.TargetPath})
				require.NoError(t, err)

				unhealthy, message := harness.ConditionIn(t, answer)
				require.False(t, unhealthy, "the usage says that there is space again, and the condition: %s", message)
			}
		})
	}
}

// TestRepairIsFoundWithoutRelist: a condition ends of which no event reports, and no call has the
// volume probed. It logs how long that took (docs/volume-health.md), which is no verdict.
func TestRepairIsFoundWithoutRelist(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, each := range fullness() {
		t.Run(each.name, func(t *testing.T) {
			t.Parallel()

			p := each.admit(t, harness.EventsOnly)
			p.awaitWell(t)
			each.strike(t, p)
			harness.RequireAbnormal(t, p.Driver, p.claim, p.claim.TargetPath, each.node[0])
			time.Sleep(2 * time.Second) // for a call's further probes to end, the last of which begins after 1 s
			each.cure(t, p)

			began := time.Now()

			require.Eventually(t, func() bool {
				answer, err := p.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: p.claim.VolumeID})

				return err == nil && len(answer.GetVolumeHealth().GetHealthStatuses()) == 0
			}, await.Limit, 10*time.Millisecond, "the volume was repaired, and %s stays without a relist", each.node[0])
			t.Logf("healthy %d ms after the repair", time.Since(began).Milliseconds())
		})
	}
}
