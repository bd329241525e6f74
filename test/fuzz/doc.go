// Package fuzz sends what no CO would send: every request message of the
// Identity, Controller, GroupController, SnapshotMetadata and Node services as
// arbitrary bytes, and as a valid request with some of its fields made strange.
// All of it goes through the real driver, behind its socket and interceptors, on
// real volumes, snapshots and a group of them.
//
// What has to hold: no panic, always a gRPC code, never UNKNOWN or INTERNAL for
// bad input; a refused call changes nothing, no call changes a snapshot but
// the one that deletes it, and none what is outside of the driver's directories.
//
// It contains requests, and what is observed before and after them.
package fuzz
