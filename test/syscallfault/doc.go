// Package syscallfault runs a process of which chosen system calls can be made to
// fail, by seccomp user notification: the kernel reports each call of interest to
// this process, which lets it continue or answers with an errno instead.
//
// Unlike a FUSE directory it covers all system calls, also mount, ioctl and the
// calls on devices and on /proc, and the driver under test needs no changes. The
// tests of this package use it to fail the calls of a volume's lifecycle, one in
// each run (docs/testing.md, "The system call fault test").
//
// EachCallFailsOnce does the same for one operation of a package, without a driver: each of its calls
// beneath a directory fails once, and whatever the operation then acknowledges must be durable.
//
// Content of this package: installing the filter, receiving and decoding calls,
// and the process that runs operations.
package syscallfault
