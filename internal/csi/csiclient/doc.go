// Package csiclient is a client of CSI drivers that does a container
// orchestrator's (CO's) part of the spec: the order of the calls, the contexts that
// one call passes to the next, and the directories that the CO has to make (the
// staging path and the parent of the target path).
//
// It serves touchstone ctl (cmd/touchstone/internal/ctl), touchstone demo (cmd/touchstone/internal/demo)
// and tests, and works with any CSI driver.
//
// It depends on the CSI spec, gRPC and internal/csi/rpc, and on no other package of the
// driver: all that it does goes through the socket.
package csiclient
