// Package embedded gives a pool a filesystem of its own that can reflink, where
// the one that the pool's directory is on cannot: copies of volumes are then
// instant on any machine.
//
//	<directory>/pool.img         one sparse image with an XFS or a btrfs in it
//	<directory>/pool.img.making  the same until its mkfs has ended
//	<directory>/mounted/         its mount point, with the pool's directories
//
// Ensure states what shall be so and is the same call at a first start, after a
// crash, after a reboot and in a new mount namespace. It holds a flock on the
// directory, so that a controller and a node that start at once do it one after
// the other.
//
// What differs between the two filesystems is in one table, imageTypes. A new image gets the one
// that Options name, and an existing image is recognized by its own.
//
// The package creates, checks, mounts, grows and unmounts the image. It does not know
// volumes; the content of the filesystem is internal/pool's.
package embedded
