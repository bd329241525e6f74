// Package ownership gives the files of a volume to a group (CSI v1.13,
// VOLUME_MOUNT_GROUP).
//
// The files are those of a workload, which may change them meanwhile and means
// no good: everything is done by descriptor, no symlink is followed, and what is
// mounted inside the volume is not entered.
//
// What may enter: owners and modes of the files of a volume. Who asks, and
// whether it may, is decided elsewhere.
package ownership
