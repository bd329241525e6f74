package health_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

// sample has something in each field.
func sample(volumes int) health.Report {
	at := time.Date(2026, 7, 1, 12, 0, 0, 5000, time.UTC)
	report := health.Report{
		Driver: "csi.example.org", Version: "v1", Node: "here", Mode: "all", At: at,
		Sources: map[string][]health.SourceStatus{"node": {{Name: "mounts", Problem: "no such file"}}},
		Storage: []health.StorageReport{{
			Name: "default", Kind: "pool", Path: "/pool", Bytes: &health.Amount{Total: 10, Used: 9, Available: 1},
			Conditions: []health.ConditionReport{{Entry: health.NewEntry(health.PoolNearlyFull, "full"), View: "storage", Since: at}},
		}},
		Changes: []health.Change{{At: at, View: "node", Subject: "volume-0", Status: health.DataLoss, Reason: health.FilesystemCorrupted}},
	}

	for i := range volumes {
		report.Volumes = append(report.Volumes, health.VolumeReport{
			ID: fmt.Sprintf("volume-%d", i), Name: "pvc", Pool: "default", FSType: "ext4", Backing: "image", CapacityBytes: 1 << 30,
			Staged: "/var/lib/kubelet/plugins/kubernetes.io/csi/csi.touchstone.dev/globalmount", Published: []string{"/target"},
			Usage: &health.Usage{Bytes: health.Amount{Total: 3, Used: 2, Available: 1}},
			Conditions: []health.ConditionReport{{
				Entry: health.NewEntry(health.FilesystemCorrupted, strings.Repeat("broken ", 10)), View: "node", Since: at,
			}},
			Check: &health.CheckReport{At: at, Verdict: "damaged", Took: time.Second, How: "online", Period: time.Hour},
		})
	}

	return report
}

func TestReportIsTransferredUnchanged(t *testing.T) {
	t.Parallel()

	for _, volumes := range []int{0, 1, 20000} {
		want := sample(volumes)
		service := &health.Service{Report: func(context.Context) (health.Report, error) { return want, nil }}

		got, err := health.NewClient(served.Connect(t, service.Register)).Report(t.Context())
		require.NoError(t, err)
		require.Equal(t, &want, got)
	}
}

func TestCheckFindingsAreTransferred(t *testing.T) {
	t.Parallel()

	var asked []string

	intercepted := 0
	service := &health.Service{Check: func(_ context.Context, id, how string) (health.CheckReport, error) {
		asked = append(asked, id+" "+how)

		if id == "raw" {
			return health.CheckReport{}, status.Error(codes.FailedPrecondition, "raw block")
		}

		return health.CheckReport{Verdict: "clean", How: how, Took: time.Minute}, nil
	}}
	client := health.NewClient(served.Connect(t, service.Register, grpc.UnaryInterceptor(
		func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			require.Equal(t, "/touchstone.v1.Health/Check", info.FullMethod)
			intercepted++

			return next(ctx, request)
		})))

	found, err := client.Check(t.Context(), health.CheckRequest{VolumeID: "volume", How: "online"})
	require.NoError(t, err)
	require.Equal(t, &health.VolumeCheck{
		VolumeID: "volume", CheckReport: health.CheckReport{Verdict: "clean", How: "online", Took: time.Minute},
	}, found)

	_, err = client.Check(t.Context(), health.CheckRequest{VolumeID: "raw", How: "offline"})
	rpccode.Require(t, err, codes.FailedPrecondition)
	require.Equal(t, []string{"volume online", "raw offline"}, asked)
	require.Equal(t, 2, intercepted, "want: both checks pass the interceptor")
}

func TestAProcessWithoutNodeChecksNothing(t *testing.T) {
	t.Parallel()

	_, err := health.NewClient(served.Connect(t, (&health.Service{}).Register)).Check(t.Context(), health.CheckRequest{VolumeID: "v"})
	rpccode.Require(t, err, codes.Unimplemented)
	errtext.Require(t, err, "no node service")
}

func TestOtherDriversHaveNoReport(t *testing.T) {
	t.Parallel()

	_, err := health.NewClient(served.Connect(t, func(grpc.ServiceRegistrar) {})).Report(t.Context())
	rpccode.Require(t, err, codes.Unimplemented)
}

func TestFailedReportFailsTheCall(t *testing.T) {
	t.Parallel()

	service := &health.Service{
		Report: func(context.Context) (health.Report, error) {
			return health.Report{}, status.Error(codes.Unavailable, "the driver is ending")
		},
		Check: func(context.Context, string, string) (health.CheckReport, error) { return health.CheckReport{}, nil },
	}
	connection := served.Connect(t, service.Register)

	_, err := health.NewClient(connection).Report(t.Context())
	rpccode.Require(t, err, codes.Unavailable)

	err = connection.Invoke(t.Context(), "/touchstone.v1.Health/Check", wrapperspb.Bytes([]byte("volume")), &wrapperspb.BytesValue{})
	rpccode.Require(t, err, codes.InvalidArgument)
}
