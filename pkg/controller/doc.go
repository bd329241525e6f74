// Package controller is the CSI Controller, GroupController and SnapshotMetadata
// services: it decides which volumes and snapshots exist, where they are and who
// may attach them.
//
// A method reads: validate, join or start the operation, ask the pool and the
// store, answer. It needs no privilege and no device: all it touches is the
// pool's directory and its own collections of the store.
//
// What may enter: the RPCs of the service and the records that they keep.
package controller
