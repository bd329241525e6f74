// Package modify tests changes of volumes in use: ControllerModifyVolume, the attributes of
// the block device, the limits on pods' cgroups, and the coalescing of changes.
package modify
