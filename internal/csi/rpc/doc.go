// Package rpc is what the CSI services do the same way in every handler: it checks
// the ids of requests. Status is for the interceptors: it makes the gRPC status of a handler's
// error, with the code that the CSI spec asks for.
//
// It contains what every service needs; what a request means is decided by the
// services. The code of an error follows from its category (internal/errdefs),
// so the package imports internal/csi/volume, whose types it handles, and no other component.
package rpc
