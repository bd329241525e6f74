package driver_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestLogNamesTheRowsOfARefusal: the line of a refused call has the row of docs/spec.md for its code.
func TestLogNamesTheRowsOfARefusal(t *testing.T) {
	t.Parallel()

	for code, row := range map[codes.Code]string{
		codes.NotFound: "NSVE-4", codes.AlreadyExists: "NSVE-5", codes.InvalidArgument: `"ES-6 ES-7"`, codes.Internal: "",
	} {
		r := start(t, withStage(func(context.Context, *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
			return nil, status.Error(code, "refused")
		}))

		_, err := csi.NewNodeClient(r.conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
		rpccode.Require(t, err, code)

		if row == "" {
			require.NotContains(t, r.log.String(), "spec=")
		} else {
			require.Contains(t, r.log.String(), "spec="+row)
		}
	}
}
