// Package loop attaches images as loop devices, by ioctl and without ever
// forking losetup.
//
// What may enter: loop device numbers and their nodes, attaching, detaching,
// resizing and observing. What is on a device is internal/linux/filesystem's, where it is
// mounted is internal/linux/mount's.
//
// # Who arbitrates
//
// The kernel: LOOP_CONFIGURE answers EBUSY where a number is taken, whoever
// took it, so that two drivers or a losetup beside one cannot harm each other.
// What a Loops remembers about numbers only spares it useless attempts.
//
// The kernel does not stop one image from being attached twice. A loop device
// keeps the open file that it was given, and a flock belongs to an open file:
// so an image is locked just before it is attached, and the lock lasts exactly
// as long as the attachment, beyond the death of the driver too. On a shared
// filesystem it also refuses a second node. An image on a filesystem without flock
// is not attached (ErrNoLocks).
package loop
