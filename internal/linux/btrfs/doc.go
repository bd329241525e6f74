// Package btrfs makes, copies and removes subvolumes and limits their sizes by quota groups, with
// the ioctls of include/uapi/linux/btrfs.h and sysfs, without a child process.
//
// A quota group has an id of a level and a number. Each subvolume has the group 0/<subvolume id>,
// which counts the space of the subvolume. A group of a higher level counts that of its members. The
// kernel removes the group of a subvolume with the subvolume, unless space that the subvolume has
// allocated is still in use by a snapshot (Linux 6.11 and newer).
//
// Under simple quotas an extent is counted for the subvolume that allocated it, as long as the extent
// exists; a subvolume that is made inside of another one becomes a member of the same groups. Under
// full quotas an extent is counted for each subvolume that refers to it.
//
// The package contains system calls only; internal/pool/quota decides which subvolumes are made.
package btrfs
