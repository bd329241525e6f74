// Package coalesce merges requests with the same key that arrive within a window into
// one change.
//
// The first request of a key opens a window. Requests that arrive while it is open are
// merged into one, which is executed once when the window closes; all callers get its
// result. A request that contradicts the others is rejected and is no part of the
// change. If a caller's context ends, the change is executed all the same: for the
// other callers, and for the caller's retry.
//
// It contains the decision which requests become one, and when; it does not contain
// what a request means, nor any gRPC code.
package coalesce
