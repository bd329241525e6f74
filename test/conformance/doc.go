// Package conformance compares the driver with the text of CSI v1.13.
//
// Observe checks each response of a client, and records what it shows: the harness gives it to every
// test. docs/spec.md refers to these observations. The
// package's own test is the table of the spec's errors: for each RPC and condition, the code.
// Readings of the spec that are a choice are in docs/decisions/0033.
package conformance
