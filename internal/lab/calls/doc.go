// Package calls records the CSI calls that a driver serves: requests, responses, times, deadline,
// metadata and status, without credentials unless asked for.
//
// It contains the recorder, whose memory is bounded, the file to which it can append a line for
// each call, and the gRPC service by which tests list, count, follow and await calls. It does not
// know what a call does; the interceptors that report the calls are the driver's.
package calls
