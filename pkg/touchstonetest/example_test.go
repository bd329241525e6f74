package touchstonetest_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/pkg/touchstonetest"
)

// provision is what is tested here: a provisioner that repeats a call until its outcome is certain.
// A final error ends it; after any other one the volume may exist (CSI v1.13, Timeouts).
func provision(ctx context.Context, driver csi.ControllerClient, request *csi.CreateVolumeRequest) (*csi.Volume, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		made, err := driver.CreateVolume(attempt, request)

		cancel()

		switch status.Code(err) {
		case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		default:
			return made.GetVolume(), err
		}

		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func request(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}
}

// TestProvisionerRetries: a provisioner repeats a call that was aborted, and does not repeat one that
// has failed for certain.
func TestProvisionerRetries(t *testing.T) {
	t.Parallel()

	driver := touchstonetest.Start(t, touchstonetest.FailOnViolations(), touchstonetest.Faults(
		`{match: {method: CreateVolume, volume: retried, calls: 1-2}, act: {before: {code: ABORTED, message: busy}}}`,
		`{match: {method: CreateVolume, volume: refused}, act: {before: {code: INVALID_ARGUMENT, message: never}}}`,
	))

	must(provision(t.Context(), driver, request("retried")))(t)
	wantf(t, len(driver.Calls(touchstonetest.Filter{Method: "CreateVolume"})) == 3, "CreateVolume is retried twice")

	_, err := provision(t.Context(), driver, request("refused"))
	wantf(t, status.Code(err) == codes.InvalidArgument, "the refusal: %v", err)
	wantf(t, len(driver.Calls(touchstonetest.Filter{Method: "CreateVolume"})) == 4, "a refused CreateVolume is not retried")
}

// TestNoVolumeIsLost: three responses are lost after the volume was created, and there is one volume.
func TestNoVolumeIsLost(t *testing.T) {
	t.Parallel()

	driver := touchstonetest.Start(t, touchstonetest.Faults(`{match: {method: CreateVolume, calls: 1-3}, act: {lose: reset}}`))

	made := must(provision(t.Context(), driver, request("data")))(t)
	listed := must(driver.ListVolumes(t.Context(), &csi.ListVolumesRequest{}))(t).GetEntries()
	wantf(t, len(listed) == 1, "the retries make one volume, not %d", len(listed))
	wantf(t, listed[0].GetVolume().GetVolumeId() == made.GetVolumeId(), "the provisioner has its id")
	wantf(t, len(driver.Hits()) == 3, "each failure is a hit")
}

// TestResizerRecovers: an expansion that the pool has no space for succeeds after a smaller request.
func TestResizerRecovers(t *testing.T) {
	t.Parallel()

	driver := touchstonetest.Start(t, touchstonetest.Capacity(1<<30))
	made := must(provision(t.Context(), driver, request("data")))(t)
	expand := func(bytes int64) error {
		_, err := driver.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: made.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		})

		return err
	}

	wantf(t, status.Code(expand(2<<30)) == codes.ResourceExhausted, "the pool has no space for the expansion")
	must(0, expand(512<<20))(t)
}
