// Package audit compares pools with the state of their controller while no driver
// runs: it finds objects in a pool without a record, and records without an object.
//
// It implements the part of `touchstone state verify` and `state repair` that concerns
// pools, and `touchstone state forget-pool`. It removes no data, and nothing that Verify has not named.
package audit
