// Package events tells what the kernel tells of its own accord about block
// devices, filesystems, mounts and files: each a source of pkg/health.
//
//	BlockErrors       requests that a block device did not complete (tracefs, block_rq_error)
//	FilesystemErrors  errors that a filesystem has reported (fanotify, FAN_FS_ERROR)
//	Mounts            changes of the mount table (POLLPRI of mountinfo)
//	Devices           loop devices that were attached, detached or resized (kobject uevents)
//	Files             what others do to the files of a directory (inotify)
//
// What may enter: how a source is connected, read and given back. What an event
// means for a volume is not known here.
package events
