package kata_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

func list(t *testing.T, register func(grpc.ServiceRegistrar), options ...grpc.ServerOption) ([]kata.AssignedVolume, error) {
	t.Helper()

	return kata.List(t.Context(), served.Connect(t, register, options...))
}

func TestListIsTransferredUnchanged(t *testing.T) {
	t.Parallel()

	for _, volumes := range []int{0, 1, 30000} {
		var intercepted []string

		want := make([]kata.AssignedVolume, volumes)
		for i := range want {
			want[i] = kata.AssignedVolume{
				VolumeID: fmt.Sprintf("volume-%d", i), TargetPath: target + strings.Repeat("x", 100), Device: "/dev/loop7",
				FSType: "ext4", Options: []string{"ro"}, ReadOnly: true, SizeBytes: 1 << 40, PendingBytes: 2 << 40, Sandbox: sandbox,
			}
		}

		service := &kata.Service{List: func(context.Context) ([]kata.AssignedVolume, error) { return want, nil }}
		got, err := list(t, service.Register, grpc.UnaryInterceptor(
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				intercepted = append(intercepted, info.FullMethod)

				return next(ctx, request)
			}))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, []string{"/touchstone.v1.DirectVolumes/List"}, intercepted)
	}
}

func TestNoVolumesAreAnEmptyList(t *testing.T) {
	t.Parallel()

	service := &kata.Service{List: func(context.Context) ([]kata.AssignedVolume, error) { return nil, nil }}

	got, err := list(t, service.Register)
	require.NoError(t, err)
	require.Equal(t, []kata.AssignedVolume{}, got)
}

func TestErrorKeepsItsCode(t *testing.T) {
	t.Parallel()

	service := &kata.Service{List: func(context.Context) ([]kata.AssignedVolume, error) {
		return nil, status.Error(codes.FailedPrecondition, "the root is unsafe")
	}}

	_, err := list(t, service.Register)
	rpccode.Require(t, err, codes.FailedPrecondition)

	_, err = list(t, func(grpc.ServiceRegistrar) {})
	rpccode.Require(t, err, codes.Unimplemented, "another driver")
}
