// Package record is the controller's durable state: the records of volumes, snapshots
// and group snapshots.
//
// It contains the types, their JSON form and decisions that need one record alone,
// such as whether a volume may be attached to a node; it does no I/O.
package record
