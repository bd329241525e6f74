// Package access makes volumes usable on a node. There are four ways, one implementation of
// Access each:
//
//   - Image: the image is attached to a loop device and its filesystem mounted;
//   - Block: the node of the image's loop device is bound to the target path;
//   - Directory: the volume's directory is bound to the target path;
//   - package direct: the image's loop device is assigned to a virtual machine.
//
// Targets is what they have in common at target paths, Filesystems what makes, checks and grows the
// filesystem of an image before it is mounted, Volumes answers by the id of a volume.
//
// The result is always observed: whether a volume is staged or published follows from the
// mount table and the loop devices (package observe), never from a record. An observation
// that fails is an error, and the call fails, because the answer decides whether a volume is
// unmounted, detached or deleted.
//
// It contains the order in which pool, loop device, filesystem and mount are put together
// and taken apart, and when a filesystem is checked at staging. It does not parse requests or keep
// the records of publications (package node), probe volumes (probe), or check filesystems (fsck).
package access
