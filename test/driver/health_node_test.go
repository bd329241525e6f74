package driver_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/orchestrator"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// abnormal requires that NodeGetVolumeStats answers for a sick volume: with a
// usage, and with a condition that names the reason.
func abnormal(t *testing.T, d *harness.Driver, claim *orchestrator.Claim, path string, reason health.Reason) {
	t.Helper()

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: path})
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetUsage())

	sick, message := conditionIn(t, answer)
	require.True(t, sick, message)
	require.Contains(t, message, string(reason))
}

// conditionIn decodes the VolumeCondition that CSI had until v1.12.
func conditionIn(t *testing.T, answer *csi.NodeGetVolumeStatsResponse) (sick bool, message string) {
	t.Helper()

	number, kind, size := protowire.ConsumeTag(answer.ProtoReflect().GetUnknown())
	require.Equal(t, protowire.Number(2), number)
	require.Equal(t, protowire.BytesType, kind)

	condition, _ := protowire.ConsumeBytes(answer.ProtoReflect().GetUnknown()[size:])

	for len(condition) > 0 {
		number, kind, size := protowire.ConsumeTag(condition)
		require.Positive(t, size)

		condition = condition[size:]

		if number == 1 {
			value, _ := protowire.ConsumeVarint(condition)
			sick = value != 0
		} else {
			text, _ := protowire.ConsumeString(condition)
			message = text
		}

		size = protowire.ConsumeFieldValue(number, kind, condition)
		require.Positive(t, size)

		condition = condition[size:]
	}

	return sick, message
}
