// Package syscallfault runs a process of which chosen system calls can be made to
// fail, by seccomp user notification: the kernel reports each call of interest to
// this process, which lets it continue or answers with an errno instead.
//
// Unlike a FUSE directory it covers all system calls, also mount, ioctl and the
// calls on devices and on /proc, and the driver under test needs no changes. The
// tests of this package use it to fail the calls of a volume's lifecycle, one in
// each run (docs/testing.md, "The system call fault test").
//
// Content of this package: installing the filter, receiving and decoding calls.
// Which calls fail is up to the caller.
package syscallfault
