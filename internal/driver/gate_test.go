package driver_test

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestShutGateRefusesEveryCall: of a gate that is both open and shut, each call observes that it is
// shut.
func TestShutGateRefusesEveryCall(t *testing.T) {
	t.Parallel()

	pass := driver.ShutGate()
	for range 100 {
		for _, method := range []string{csi.Identity_Probe_FullMethodName, csi.Node_NodeStageVolume_FullMethodName} {
			err := pass(t.Context(), method)
			rpccode.Require(t, err, codes.Unavailable)
			errtext.Require(t, err, "shutting down")
		}
	}
}

// turnsAwayEveryCall calls each RPC that is no stream.
func turnsAwayEveryCall(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()

	services := csi.File_csi_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			method := services.Get(i).Methods().Get(j)
			if method.IsStreamingServer() {
				continue
			}

			err := conn.Invoke(t.Context(), fmt.Sprintf("/%s/%s", services.Get(i).FullName(), method.Name()),
				dynamicpb.NewMessage(method.Input()), dynamicpb.NewMessage(method.Output()))
			rpccode.Require(t, err, codes.Unavailable, "%s", method.Name())
			conformance.Shows(t, string(method.Name()), "the driver is shutting down", "Unavailable")
		}
	}
}
