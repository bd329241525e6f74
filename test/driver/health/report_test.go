package health_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
)

// diagnosis is what is reported for a volume.
type diagnosis struct{ node, controller, beside []health.Reason }

// await waits until both views report the expected conditions, in both
// dialects.
func (p *sufferer) await(t *testing.T, want diagnosis) {
	t.Helper()

	require.EventuallyWithT(t, func(c *assert.CollectT) { p.isKnown(t.Context(), c, want) }, await.Limit, 10*time.Millisecond, "want: all calls report the conditions")
}

// isKnown requires that both views report it now, and that the controller reports beside its
// own conditions those of the node in the same process that are about the volume.
func (p *sufferer) isKnown(ctx context.Context, c require.TestingT, want diagnosis) {
	node := p.ofNode(ctx, c)
	node.requireReasons(c, want.node, want.beside)

	controller := p.ofController(ctx, c)
	controller.requireReasons(c, slices.Concat(want.controller, aboutVolume(want.node)), aboutVolume(want.beside))
}

// aboutVolume returns the reasons of the node that the controller reports too.
func aboutVolume(reasons []health.Reason) []health.Reason {
	return slices.DeleteFunc(slices.Clone(reasons), func(reason health.Reason) bool {
		return slices.Contains([]health.Reason{
			health.VolumeUnmounted, health.DeviceMissing, health.GuestStatsUnavailable, health.StagingFailed,
		}, reason)
	})
}

func (p *sufferer) awaitWell(t *testing.T) {
	t.Helper()
	p.await(t, diagnosis{})
}

// viewReport is what one view reports for a volume.
type viewReport struct {
	view    string
	entries []*csi.VolumeHealth_VolumeHealthEntry
	// legacy are the VolumeConditions that the calls of the view carry.
	legacy []condition
}

// condition is VolumeCondition, which CSI v1.13 has no message for.
type condition struct {
	abnormal bool
	message  string
}

// requireReasons fails unless the view names all of wanted, nothing but those and beside,
// each once and with its status, and the same in both dialects.
func (s *viewReport) requireReasons(c require.TestingT, wanted, beside []health.Reason) {
	reasons := make([]health.Reason, 0, len(s.entries))
	for _, entry := range s.entries {
		reasons = append(reasons, health.Reason(entry.GetReason()))
	}

	for _, reason := range wanted {
		require.Contains(c, reasons, reason, "%s", s)
	}

	for n, entry := range s.entries {
		reason := reasons[n]
		require.Contains(c, slices.Concat(wanted, beside), reason, "%s", s)
		require.NotContains(c, reasons[n+1:], reason, "%s", s)
		require.Equal(c, reason.Status().String(), entry.GetStatus().String(), "%s", s)
		require.NotEmpty(c, entry.GetMessage(), "%s", s)
	}

	for _, each := range s.legacy {
		require.Equal(c, len(s.entries) > 0, each.abnormal, "%s", s)
		require.NotEmpty(c, each.message, "%s", s)

		for _, reason := range reasons {
			require.Contains(c, each.message, string(reason), "%s", s)
		}
	}
}

func (s *viewReport) String() string {
	return fmt.Sprintf("%s: %v, legacy %+v", s.view, s.entries, s.legacy)
}

func (p *sufferer) ofNode(ctx context.Context, c require.TestingT) *viewReport {
	answer, err := p.NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: p.claim.VolumeID})
	require.NoError(c, err)
	require.Equal(c, p.claim.VolumeID, answer.GetVolumeHealth().GetVolumeId())

	found := &viewReport{view: "node", entries: answer.GetVolumeHealth().GetHealthStatuses()}

	for _, path := range []string{p.claim.StagingPath, p.claim.TargetPath} {
		stats, err := p.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: p.claim.VolumeID, VolumePath: path})
		if err != nil {
			// It may be said only where a volume is not to be had.
			require.True(c, found.inaccessible(), "%s: %v", found, err)

			continue
		}

		found.legacy = append(found.legacy, conditionOf(c, stats))
	}

	return found
}

func (s *viewReport) inaccessible() bool {
	return slices.ContainsFunc(s.entries, func(e *csi.VolumeHealth_VolumeHealthEntry) bool {
		return e.GetStatus() != csi.VolumeHealthErrorType_DEGRADED
	})
}

func (p *sufferer) ofController(ctx context.Context, c require.TestingT) *viewReport {
	answer, err := p.ControllerGetVolumeHealth(ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: p.claim.VolumeID})
	require.NoError(c, err)
	require.Equal(c, p.claim.VolumeID, answer.GetVolumeHealth().GetVolumeId())

	found := &viewReport{view: "controller", entries: answer.GetVolumeHealth().GetHealthStatuses()}

	listed, err := p.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{})
	require.NoError(c, err)

	at := slices.IndexFunc(listed.GetEntries(), func(v *csi.VolumeHealth) bool { return v.GetVolumeId() == p.claim.VolumeID })
	require.Equal(c, len(found.entries) > 0, at >= 0, "%s", found)

	if at >= 0 {
		require.True(c, proto.Equal(answer.GetVolumeHealth(), listed.GetEntries()[at]), "%s", found)
	}

	got, err := p.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: p.claim.VolumeID})
	require.NoError(c, err)

	found.legacy = append(found.legacy, conditionOf(c, got.GetStatus()))

	list, err := p.ListVolumes(ctx, &csi.ListVolumesRequest{})
	require.NoError(c, err)

	for _, entry := range list.GetEntries() {
		if entry.GetVolume().GetVolumeId() == p.claim.VolumeID {
			found.legacy = append(found.legacy, conditionOf(c, entry.GetStatus()))
		}
	}

	require.Len(c, found.legacy, 2, "want: the controller has both legacy conditions")

	return found
}

// conditionOf reads field 2, which a client of CSI v1.12 knows as
// VolumeCondition{abnormal = 1, message = 2}.
func conditionOf(c require.TestingT, carrier proto.Message) condition {
	const (
		itself   protowire.Number = 2
		abnormal protowire.Number = 1
		text     protowire.Number = 2
	)

	var found condition

	fields := fieldsOf(c, carrier.ProtoReflect().GetUnknown())
	require.Contains(c, fields, itself)

	encoded, size := protowire.ConsumeBytes(fields[itself])
	require.Positive(c, size, "want: the field has a message")

	inner := fieldsOf(c, encoded)
	if value, there := inner[abnormal]; there {
		number, _ := protowire.ConsumeVarint(value)
		found.abnormal = protowire.DecodeBool(number)
	}

	require.Contains(c, inner, text)

	message, size := protowire.ConsumeString(inner[text])
	require.Positive(c, size, "want: the message has its text")

	found.message = message

	return found
}

func fieldsOf(c require.TestingT, encoded []byte) map[protowire.Number][]byte {
	found := map[protowire.Number][]byte{}

	for len(encoded) > 0 {
		number, kind, tag := protowire.ConsumeTag(encoded)
		require.Positive(c, tag, "want: the field has a tag")
		require.NotContains(c, found, number)

		size := protowire.ConsumeFieldValue(number, kind, encoded[tag:])
		require.Positive(c, size, "want: the field has a value")

		found[number] = encoded[tag : tag+size]
		encoded = encoded[tag+size:]
	}

	return found
}
