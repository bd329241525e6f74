// Package progress reports the progress of long-running work: in the log, and by a
// gRPC service of Touchstone's own on the CSI socket, because CSI has no such call.
//
// It contains the counting and the reporting; it does not contain the work.
package progress
