// Package loop attaches images as loop devices, by ioctl and without ever forking losetup.
//
// It contains loop device numbers and their device nodes, attaching, detaching, resizing and
// observing. The content of a device is internal/linux/filesystem's, mounting it is
// internal/linux/mount's.
//
// # Arbitration
//
// The kernel arbitrates numbers: LOOP_CONFIGURE returns EBUSY for a number that is taken, by any
// program, so that two drivers, or losetup beside one, cannot harm each other. What a Loops
// remembers about numbers only saves useless attempts.
//
// The kernel does not prevent one image from being attached twice. A loop device keeps the open
// file that it was given, and a flock belongs to an open file: so an image is locked just before
// it is attached, and the lock lasts exactly as long as the attachment, beyond the driver's death
// too. On a shared filesystem it also refuses a second node. An image on a filesystem without
// flock is not attached (ErrNoLocks).
package loop
