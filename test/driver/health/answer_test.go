package health_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestCallsForTheHealthOfAVolumeKeepItCurrent without events or relists. Each of the calls has to do
// so alone.
func TestCallsForTheHealthOfAVolumeKeepItCurrent(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	ofNode := func(t *testing.T, c *assert.CollectT, p *sufferer) {
		t.Helper()
		p.nodeOnly(t, c).requireReasons(c, []health.Reason{health.InodesExhausted}, nil)
	}
	ofController := func(t *testing.T, c *assert.CollectT, p *sufferer) {
		t.Helper()

		answer, err := p.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: p.claim.VolumeID})
		require.NoError(c, err)

		report := &viewReport{view: "controller", entries: answer.GetVolumeHealth().GetHealthStatuses()}
		report.requireReasons(c, []health.Reason{health.InodesExhausted}, nil)
	}

	for name, call := range map[string]func(*testing.T, *assert.CollectT, *sufferer){
		"NodeGetVolumeHealth": ofNode, "ControllerGetVolumeHealth": ofController,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			i := illness{volume: withFewInodes(), options: []harness.Option{func(c *driver.Config) { c.Health.AnswerAge = harness.Often }}}
			p := i.admit(t, harness.EventsOnly)

			awaitQuiet()
			useInodes(t, p)
			require.EventuallyWithT(t, func(c *assert.CollectT) { call(t, c, p) }, await.Limit, harness.Often, "want: the answer has the condition")
		})
	}
}
