// Package record is the controller's durable state: the records of volumes, snapshots
// and group snapshots, and the indexes over them that are kept in memory.
//
// It contains the types, their JSON form and decisions that need one record alone,
// such as whether a volume may be attached to a node; it does no I/O.
package record
