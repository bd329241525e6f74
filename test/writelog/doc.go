// Package writelog records the writes and flushes of a disk in a file, and makes of them the disk
// as a power failure leaves it.
//
// A Writer appends entries in the order in which the disk got them. A power failure happens at a
// point, which is a number of entries. What it leaves are the entries up to the last flush before
// the point, and any of the writes after it up to the point: a disk may reorder these, and may
// write a part of one, in whole blocks. A write with FUA arrives as a write and a flush, because
// the recorded disk is a loop device, which has no FUA.
//
// This is the information that device-mapper's log-writes target records, without device-mapper.
//
// It contains the format of the file and the replay; package faults records.
package writelog
