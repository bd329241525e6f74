// Package rpc is what the CSI services do the same way in every handler: it checks
// the ids of requests, starts or joins the operation, and converts errors to gRPC
// status errors with the codes that the CSI spec asks for.
//
// It contains what every service needs; what a request means is decided by the
// services. The code of an error follows from its category (internal/errdefs),
// so the package imports internal/csi/volume and internal/operation, whose types it handles, and no
// other component.
package rpc
