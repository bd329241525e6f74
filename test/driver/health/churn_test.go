package health_test

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// churned are volumes of all kinds, some that grow and some that can't.
func churned() map[string]*csi.CreateVolumeRequest {
	kinds := harness.KindRequests(harness.Writer)
	kinds["thick"] = &csi.CreateVolumeRequest{
		CapacityRange: harness.RequiredBytes(16 * harness.MiB), Parameters: map[string]string{"provisioning": "thick"},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "ext4")},
	}

	for _, kind := range kinds {
		kind.GetVolumeCapabilities()[0].AccessMode = &csi.VolumeCapability_AccessMode{Mode: harness.MultiWriter}
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

			var heard harness.Alarms

			d := harness.Start(t, func(c *driver.Config) {
				heard = harness.NewAlarms(c.Log.Handler())
				c.Log, c.Health.PollingOnly = slog.New(heard), polling
				c.Health.RelistPeriod, c.Health.EventedRelistPeriod = 10*time.Millisecond, 10*time.Millisecond
			})

			var running sync.WaitGroup

			for name, request := range churned() {
				request.Name = name
				claim := harness.NewVolume(t, d, request)

				running.Go(func() { churn(t, d, claim, request.GetCapacityRange().GetRequiredBytes()) })
			}

			for _, attributes := range []map[string]string{harness.SmallInline(), harness.DirectoryBacked()} {
				attributes["size"] = "16Mi"

				running.Go(func() { churnInline(t, d, attributes) })
			}

			running.Wait()
			require.Empty(t, heard.All(), "want: no volume has a condition")
		})
	}
}

const rounds = 4

func churn(t *testing.T, d *harness.Driver, claim *csiclient.Publication, size int64) {
	t.Helper()

	ctx, second := t.Context(), harness.AnotherTarget(claim, "second")
	defer harness.TakeDown(t, d, claim)

	for round := range rounds {
		for _, step := range []func() error{
			func() error { return d.Attach(ctx, claim) },
			func() error { return d.Stage(ctx, claim) },
			func() error { return d.Publish(ctx, claim) },
			func() error { return d.Publish(ctx, second) },
			func() error { harness.WriteBlock(t, claim); return nil },
			func() error { return d.Unpublish(ctx, claim) },
			func() error { return d.Publish(ctx, claim) },
			func() error { return grow(t, d, claim, size+int64(round+1)*harness.MiB) },
			func() error { return snap(t, d, claim, round) },
			func() error { return harness.VolumeStats(t, d, claim, second.TargetPath) },
			func() error { return d.Unpublish(ctx, second) },
			func() error { return d.Unpublish(ctx, claim) },
			func() error { return d.Unstage(ctx, claim) },
			func() error { return d.Detach(ctx, claim) },
		} {
			if !harness.AssertNoError(t, step()) {
				return
			}
		}
	}
}

// grow also asks for more than the pool can have.
func grow(t *testing.T, d *harness.Driver, claim *csiclient.Publication, size int64) error {
	t.Helper()

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(size), VolumeCapability: claim.Capability,
	})
	if err != nil {
		return err
	}

	_, err = d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, StagingTargetPath: claim.StagingPath, CapacityRange: harness.RequiredBytes(size),
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
		claim := harness.InlineClaim(t, d, maps.Clone(attributes))

		if !harness.AssertNoError(t, d.Publish(t.Context(), claim)) || !harness.AssertNoError(t, harness.VolumeStats(t, d, claim, claim.TargetPath)) ||
			!harness.AssertNoError(t, d.Unpublish(t.Context(), claim)) {
			return
		}
	}
}
