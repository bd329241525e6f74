// Package probe finds out whether the volumes in use on this node are healthy.
//
// Events of the kernel and a periodic relist trigger probes (package health). A probe
// reads the mount table, the volume's loop device, its filesystem and its image, compares
// that with the node's records and with its last observation, and returns findings. It
// starts no tools, reads no data and writes nothing.
//
// It contains the probes, their last observations, and the answers that are made of them.
// It does not decide when a volume is probed (package health), does not check filesystems
// (package fsck) and does not mount or attach anything; it revokes the publication of a
// direct volume whose device is gone, by Config.Revoke.
package probe
