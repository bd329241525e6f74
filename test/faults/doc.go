// Package faults serves a directory that fails on demand: a FUSE filesystem in a
// process of its own, which hands everything on to another directory except for
// the requests that a test makes it fail, delay, or leave unanswered.
//
// A driver's pool or state can be in it, so that its images are attached, and its
// filesystems mounted, as they always are, and their I/O errors are real.
//
// It is a child process because of what happens to a process that serves a
// filesystem and uses it: when it dies, its own threads wait, unkillable, for
// answers that only it could give. The child uses nothing of what it serves. When
// it ends, however it does, the kernel aborts the connection and each request
// that is under way fails, as by the abort file of fusectl. It ends by itself
// when its parent has ended or has stopped saying that it is alive.
//
// It contains the kinds of faults and the control of the child. What a fault does
// to a volume is for the tests of the driver.
package faults
