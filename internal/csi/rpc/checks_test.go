package rpc_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestImpossibleFieldsAreRefused(t *testing.T) {
	t.Parallel()

	for id, want := range map[string]codes.Code{"": codes.InvalidArgument, "a/b": codes.InvalidArgument, "..": codes.InvalidArgument, "vol-1": codes.OK} {
		rpccode.Require(t, rpc.Status(rpc.CheckID("snapshot_id", id)), want, "id %q", id)
		rpccode.Require(t, rpc.Status(rpc.CheckVolumeID(id)), want, "id %q", id)
	}

	errtext.Require(t, rpc.CheckID("snapshot_id", ""), "snapshot_id")
	errtext.Require(t, rpc.CheckVolumeID("a/b"), "volume_id")

	for path, want := range map[string]codes.Code{"": codes.OK, "/": codes.OK, "/a": codes.OK, "a": codes.InvalidArgument, "./a": codes.InvalidArgument} {
		rpccode.Require(t, rpc.Status(rpc.CheckAbsolute("target_path", path)), want, "path %q", path)
	}

	rpccode.Require(t, rpc.Status(rpc.CheckCapacityRange(nil)), codes.OK)

	for sizes, want := range map[[2]int64]codes.Code{
		{0, 0}: codes.InvalidArgument, {-1, 0}: codes.InvalidArgument, {0, -1}: codes.InvalidArgument, {-1, 1}: codes.InvalidArgument,
		{1, -1}: codes.InvalidArgument, {1, 0}: codes.OK, {0, 1}: codes.OK, {1, 1}: codes.OK, {1, 2}: codes.OK, {2, 1}: codes.InvalidArgument,
	} {
		err := rpc.CheckCapacityRange(&csi.CapacityRange{RequiredBytes: sizes[0], LimitBytes: sizes[1]})
		rpccode.Require(t, rpc.Status(err), want, "required %d, limit %d", sizes[0], sizes[1])
	}
}
