package harness

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
)

// ReportOf is what the driver reports about a volume to `touchstone ctl`.
func ReportOf(t *testing.T, d *Driver, id string) health.VolumeReport {
	t.Helper()

	report, err := health.NewClient(d.Conn()).Report(t.Context())
	require.NoError(t, err)

	at := slices.IndexFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == id })
	require.GreaterOrEqual(t, at, 0, "the report lacks the volume")

	return report.Volumes[at]
}

// AwaitReason waits until the node says that this is wrong with a volume, or that
// nothing is, for "".
func AwaitReason(t *testing.T, d *Driver, id string, want health.Reason) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		answer, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
		require.NoError(c, err)

		var reasons []string
		for _, each := range answer.GetVolumeHealth().GetHealthStatuses() {
			reasons = append(reasons, each.GetReason())
		}

		if want == "" {
			require.Empty(c, reasons, "want: the volume has no condition")
		} else {
			require.Contains(c, reasons, string(want))
		}
	}, await.Limit, 10*time.Millisecond, "want: the volume reports the condition")
}

// Alarms is a log that keeps what conditions have appeared, and hands all on.
type Alarms struct {
	slog.Handler

	mu      *sync.Mutex
	sounded *[]string
}

// NewAlarms returns such a log before another one.
func NewAlarms(behind slog.Handler) Alarms {
	return Alarms{Handler: behind, mu: &sync.Mutex{}, sounded: &[]string{}}
}

// Handle implements [slog.Handler].
func (a Alarms) Handle(ctx context.Context, record slog.Record) error {
	if record.Message == "a condition has appeared" {
		reported := ""

		record.Attrs(func(each slog.Attr) bool {
			reported += fmt.Sprintf("%s=%v ", each.Key, each.Value)

			return true
		})

		a.mu.Lock()
		*a.sounded = append(*a.sounded, reported)
		a.mu.Unlock()
	}

	return a.Handler.Handle(ctx, record)
}

// WithAttrs implements [slog.Handler].
func (a Alarms) WithAttrs(attributes []slog.Attr) slog.Handler {
	return Alarms{Handler: a.Handler.WithAttrs(attributes), mu: a.mu, sounded: a.sounded}
}

// All returns the conditions that have appeared.
func (a Alarms) All() []string {
	a.mu.Lock()
	defer a.mu.Unlock()

	return append([]string{}, *a.sounded...)
}

// Of says whether a volume was said to have a condition.
func (a Alarms) Of(id string, reason health.Reason) bool {
	return slices.ContainsFunc(a.All(), func(reported string) bool {
		return strings.Contains(reported, "subject="+id+" ") && strings.Contains(reported, string(reason))
	})
}

// RequireAbnormal requires that NodeGetVolumeStats answers for an unhealthy volume: with a
// usage, and with a condition that names the reason.
func RequireAbnormal(t *testing.T, d *Driver, claim *csiclient.Publication, path string, reason health.Reason) {
	t.Helper()

	answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: path})
	require.NoError(t, err)
	require.NotEmpty(t, answer.GetUsage(), "want: an abnormal volume has its usage")

	sick, message := ConditionIn(t, answer)
	require.True(t, sick, message)
	require.Contains(t, message, string(reason))
}

// ConditionIn decodes the VolumeCondition that CSI had until v1.12.
func ConditionIn(t *testing.T, answer *csi.NodeGetVolumeStatsResponse) (sick bool, message string) {
	t.Helper()

	number, kind, size := protowire.ConsumeTag(answer.ProtoReflect().GetUnknown())
	require.Equal(t, protowire.Number(2), number, "want: the condition is field 2")
	require.Equal(t, protowire.BytesType, kind, "want: the condition is a message")

	condition, _ := protowire.ConsumeBytes(answer.ProtoReflect().GetUnknown()[size:])

	for len(condition) > 0 {
		number, kind, size := protowire.ConsumeTag(condition)
		require.Positive(t, size, "want: the field has a tag")

		condition = condition[size:]

		if number == 1 {
			value, _ := protowire.ConsumeVarint(condition)
			sick = value != 0
		} else {
			text, _ := protowire.ConsumeString(condition)
			message = text
		}

		size = protowire.ConsumeFieldValue(number, kind, condition)
		require.Positive(t, size, "want: the field has a value")

		condition = condition[size:]
	}

	return sick, message
}

// ReasonsOf are what the node has to say about a volume.
func ReasonsOf(t *testing.T, d *Driver, id string) []health.Reason {
	t.Helper()

	answer, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
	require.NoError(t, err)
	require.Equal(t, id, answer.GetVolumeHealth().GetVolumeId())

	var reasons []health.Reason
	for _, entry := range answer.GetVolumeHealth().GetHealthStatuses() {
		reasons = append(reasons, health.Reason(entry.GetReason()))
	}

	return reasons
}

// AwaitStorage waits until the node reports exactly these reasons for its pools and its
// state, as "<status> <reason>", whose message names what it is about.
func AwaitStorage(t *testing.T, d *Driver, named string, reasons ...health.Reason) {
	t.Helper()

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		answer, err := d.NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		require.NoError(c, err)

		var found, wanted []string

		for _, each := range answer.GetBackendHealth() {
			found = append(found, each.GetStatus().String()+" "+each.GetReason())
			require.Contains(c, each.GetMessage(), named)
		}

		for _, reason := range reasons {
			wanted = append(wanted, reason.Status().String()+" "+string(reason))
		}

		require.ElementsMatch(c, wanted, found, "%v", answer)
	}, await.Limit, 10*time.Millisecond, "want: the storage reports the conditions")
}
