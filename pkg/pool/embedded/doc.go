// Package embedded gives a pool a filesystem of its own that can reflink, where
// the one that the pool's directory is on cannot: copies of volumes are then
// instant on any machine.
//
//	<directory>/pool.img         one sparse image with an XFS in it
//	<directory>/pool.img.making  the same until its mkfs has ended
//	<directory>/mounted/         where it is mounted: the pool's rooms are in there
//
// Ensure states what shall be so and is the same call at a first start, after a
// crash, after a reboot and in a new mount namespace. It holds a flock on the
// directory, so that a controller and a node that start at once do it one after
// the other.
//
// What may enter: the image from nothing to its mount, its growth and its end.
// Nothing here knows a volume; what is in the filesystem is pkg/pool's.
package embedded
