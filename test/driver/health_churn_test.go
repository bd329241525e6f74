package driver_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// alarms is a log that keeps what conditions have appeared, and hands all on.
type alarms struct {
	slog.Handler

	mu      *sync.Mutex
	sounded *[]string
}

func newAlarms(behind slog.Handler) alarms {
	return alarms{Handler: behind, mu: &sync.Mutex{}, sounded: &[]string{}}
}

func (a alarms) Handle(ctx context.Context, record slog.Record) error {
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

func (a alarms) WithAttrs(attributes []slog.Attr) slog.Handler {
	return alarms{Handler: a.Handler.WithAttrs(attributes), mu: a.mu, sounded: a.sounded}
}

func (a alarms) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()

	return append([]string{}, *a.sounded...)
}

// of says whether a volume was said to have a condition.
func (a alarms) of(id string, reason health.Reason) bool {
	return slices.ContainsFunc(a.all(), func(reported string) bool {
		return strings.Contains(reported, "subject="+id+" ") && strings.Contains(reported, string(reason))
	})
}

// churned are volumes of all kinds, some that grow and some that can't.
func churned() map[string]*csi.CreateVolumeRequest {
	kinds := observedKinds()
	kinds["thick"] = &csi.CreateVolumeRequest{
		CapacityRange: required(16 * mib), Parameters: map[string]string{"provisioning": "thick"},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(multiWriter, "ext4")},
	}

	for _, kind := range kinds {
		kind.GetVolumeCapabilities()[0].AccessMode = &csi.VolumeCapability_AccessMode{Mode: multiWriter}
	}

	return kinds
}

// TestNoConditionUnderChurn probes volumes as often as it can while all is done
// to them that a CO does, and requires that no condition is reported.
func TestNoConditionUnderChurn(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, polling := range []bool{true, false} {
		t.Run(fmt.Sprintf("polling=%t", polling), func(t *testing.T) {
			t.Parallel()

			var heard alarms

			d := harness.Start(t, func(c *driver.Config) {
				heard = newAlarms(c.Log.Handler())
				c.Log, c.HealthPolling = slog.New(heard), polling
				c.HealthRelistPeriod, c.HealthEventedRelistPeriod = 10*time.Millisecond, 10*time.Millisecond
			})

			var running sync.WaitGroup

			for name, request := range churned() {
				request.Name = name
				claim := newVolume(t, d, request)

				running.Go(func() { churn(t, d, claim, request.GetCapacityRange().GetRequiredBytes()) })
			}

			for _, attributes := range []map[string]string{small(), directoryBacked()} {
				attributes["size"] = "16Mi"

				running.Go(func() { churnInline(t, d, attributes) })
			}

			running.Wait()
			require.Empty(t, heard.all())
		})
	}
}

const rounds = 4

func churn(t *testing.T, d *harness.Driver, claim *csiclient.Publication, size int64) {
	t.Helper()

	ctx, second := t.Context(), another(claim, "second")
	defer takeDown(t, d, claim)

	for round := range rounds {
		for _, step := range []func() error{
			func() error { return d.Attach(ctx, claim) },
			func() error { return d.Stage(ctx, claim) },
			func() error { return d.Publish(ctx, claim) },
			func() error { return d.Publish(ctx, second) },
			func() error { writeBlock(t, claim); return nil },
			func() error { return d.Unpublish(ctx, claim) },
			func() error { return d.Publish(ctx, claim) },
			func() error { return grow(t, d, claim, size+int64(round+1)*mib) },
			func() error { return snap(t, d, claim, round) },
			func() error { return stats(t, d, claim, second.TargetPath) },
			func() error { return d.Unpublish(ctx, second) },
			func() error { return d.Unpublish(ctx, claim) },
			func() error { return d.Unstage(ctx, claim) },
			func() error { return d.Detach(ctx, claim) },
		} {
			if !assertNo(t, step()) {
				return
			}
		}
	}
}

// assertNo is require.NoError for goroutines.
func assertNo(t *testing.T, err error) bool {
	t.Helper()

	if err != nil {
		t.Error(err)
	}

	return err == nil
}

// grow also asks for more than the pool can have.
func grow(t *testing.T, d *harness.Driver, claim *csiclient.Publication, size int64) error {
	t.Helper()

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: required(size), VolumeCapability: claim.Capability,
	})
	if err != nil {
		return err
	}

	_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, StagingTargetPath: claim.StagingPath, CapacityRange: required(size),
	})
	if code := status.Code(err); code == codes.FailedPrecondition {
		return nil // the kernel does not let a process grow a mounted ext4 without CAP_SYS_RESOURCE
	}

	return err
}

func snap(t *testing.T, d *harness.Driver, claim *csiclient.Publication, round int) error {
	t.Helper()

	_, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: fmt.Sprintf("%s-%d", claim.VolumeID, round), SourceVolumeId: claim.VolumeID,
	})
	if status.Code(err) == codes.FailedPrecondition {
		return nil // of what is written at that moment
	}

	return err
}

func churnInline(t *testing.T, d *harness.Driver, attributes map[string]string) {
	t.Helper()

	for range rounds {
		claim := inlineClaim(t, d, maps.Clone(attributes))

		if !assertNo(t, d.Publish(t.Context(), claim)) || !assertNo(t, stats(t, d, claim, claim.TargetPath)) ||
			!assertNo(t, d.Unpublish(t.Context(), claim)) {
			return
		}
	}
}
