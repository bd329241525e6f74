// Package faults tests fault rules through the socket: each act on each RPC to which it applies, the
// points of operations, the service and its files, and the examples.
package faults
