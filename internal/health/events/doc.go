// Package events has the sources of internal/health: kernel notifications about block
// devices, filesystems, mounts and files.
//
//	BlockErrors       failed requests of a block device (tracefs, block_rq_error)
//	FilesystemErrors  errors that a filesystem has reported (fanotify, FAN_FS_ERROR)
//	Mounts            changes of the mount table (POLLPRI of mountinfo)
//	Devices           loop devices that were attached, detached or resized (kobject uevents)
//	Files             changes that other programs make in a directory (inotify)
//
// The package connects, reads and closes the sources. The effect of an event on a
// volume is decided by pkg/node and pkg/controller.
package events
