// Package ownership changes the group of a volume's files (CSI v1.13, VOLUME_MOUNT_GROUP).
//
// The files are a workload's, which may change them meanwhile with hostile intent: everything is
// done by descriptor, no symlink is followed, and mounts inside the volume are not entered.
//
// It contains owners and modes of a volume's files; which group, and whether it may, is decided by
// its caller.
package ownership
