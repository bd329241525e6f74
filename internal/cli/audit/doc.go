// Package audit compares pools with the state of their controller while no
// driver runs: what lies in a pool that no record tells of, and records whose
// bytes are gone.
//
// What may enter: what `touchstone state verify` and `state repair` say and do
// beyond the state's own files. Nothing here removes data, or anything that
// Verify has not named.
package audit
