// Package strict checks whether a CO keeps its part of the CSI spec: the order of calls, the values
// that it has to pass on unchanged, what it may request of the advertised capabilities, and how it
// retries.
//
// It contains the table of violations, the monitor that finds them by requests and by the responses
// to them, and the gRPC service that lists them. It reads no state of the driver: what happened
// before its start, or in another process, is unknown, and unknown is no violation. The
// interceptors that report calls to it are the driver's.
package strict
