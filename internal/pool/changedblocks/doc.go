// Package changedblocks finds the ranges of a snapshot that are allocated, or that differ from
// another snapshot of the same volume.
//
// Snapshots that share blocks are compared by their extents alone: blocks at the same physical
// offset are equal. Others are compared byte by byte. The package reads files that its caller has
// opened; it does not know pools.
package changedblocks
