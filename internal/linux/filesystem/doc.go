// Package filesystem makes, checks, grows and detects ext4, xfs and btrfs behind one interface, with
// one file per filesystem and one table of all of them (types.go).
//
// A mounted filesystem is grown by an ioctl; making, checking, and growing an unmounted one is left
// to the filesystem's own tools, which a Runner starts.
//
// It contains what differs between filesystems; mounting is internal/linux/mount's, devices are
// internal/linux/loop's.
package filesystem
