// Package inflight tracks which snapshots are being read, deleted or copied in the
// background, so that the calls about a snapshot exclude or wait for each other.
//
// It contains in-memory bookkeeping alone: after a crash nothing is in flight. It
// does not read records and does no I/O.
package inflight
