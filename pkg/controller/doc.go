// Package controller is the CSI Controller and GroupController services: it decides
// which volumes and snapshots exist, where they are stored and which nodes may attach
// them.
//
// Each handler validates the request, starts or joins the operation, uses the pool and
// the catalog of records, and responds. It needs no privilege and no device: it touches only the
// directories of the pools and its own records. What it needs of a node in the same process is the
// interface LocalNode.
//
// It contains the handlers, what reads requests (parse.go), recovery and the controller's view of health
// (watch.go). From the bottom: the form of the records is in record, what changes them in catalog, their
// objects and what uses these in objects, snapshots, clones and restores in copies, expansions and
// modifications in changes. The SnapshotMetadata service is in metadata.
package controller
