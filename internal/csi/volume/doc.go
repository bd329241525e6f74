// Package volume defines what the controller and the node share about a volume: its
// ID, its backing, the StorageClass parameters it was created with, the context that
// the controller hands to the node, and the capability it is used with.
//
// It contains plain values and their parsing; it does no I/O, keeps no state and
// decides no gRPC code.
package volume
