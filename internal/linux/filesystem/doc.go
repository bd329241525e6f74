// Package filesystem makes, checks, grows and recognizes ext4, xfs and btrfs
// behind one small interface, a file for each of them.
//
// What may enter: what differs from filesystem to filesystem. Growing a mounted
// one is an ioctl on its mount point; making, checking and growing an unmounted
// one is left to the filesystem's own tools, which a Runner starts. Mounting is
// internal/linux/mount's, devices are internal/linux/loop's.
package filesystem
