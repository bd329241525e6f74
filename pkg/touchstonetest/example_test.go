package touchstonetest_test

import (
	"context"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
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

	_, err := provision(t.Context(), driver, request("retried"))
	require.NoError(t, err)
	require.Len(t, driver.Calls(touchstonetest.Filter{Method: "CreateVolume"}), 3, "want: CreateVolume is retried twice")

	_, err = provision(t.Context(), driver, request("refused"))
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.Len(t, driver.Calls(touchstonetest.Filter{Method: "CreateVolume"}), 4, "want: a refused CreateVolume is not retried")
}

// TestNoVolumeIsLost: three responses are lost after the volume was created, and there is one volume.
func TestNoVolumeIsLost(t *testing.T) {
	t.Parallel()

	driver := touchstonetest.Start(t, touchstonetest.Faults(`{match: {method: CreateVolume, calls: 1-3}, act: {lose: reset}}`))

	made, err := provision(t.Context(), driver, request("data"))
	require.NoError(t, err)

	listed, err := driver.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 1, "want: the retries make one volume")
	require.Equal(t, made.GetVolumeId(), listed.GetEntries()[0].GetVolume().GetVolumeId())
	require.Len(t, driver.Hits(), 3, "want: each failure is a hit")
}

// TestResizerRecovers: an expansion that the pool has no space for succeeds after a smaller request.
func TestResizerRecovers(t *testing.T) {
	t.Parallel()

	driver := touchstonetest.Start(t, touchstonetest.Capacity(1<<30))
	made, err := provision(t.Context(), driver, request("data"))
	require.NoError(t, err)

	expand := func(bytes int64) error {
		_, err := driver.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: made.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
		})

		return err
	}

	require.Equal(t, codes.ResourceExhausted, status.Code(expand(2<<30)), "want: the pool has no space for the expansion")
	require.NoError(t, expand(512<<20))
}
