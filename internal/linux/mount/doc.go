// Package mount observes the mount table and acts on it, by file descriptor and
// by syscall: no fork, no path that is looked up twice.
//
// A path from a request becomes a Target: a name in a directory that was opened
// beneath an allowed directory without following a symlink. Everything done to
// a Target is done through that descriptor, so whoever can rename directories in
// the meantime gains nothing. A mount is made detached, gets all its attributes
// while nobody can see it, and is then attached to a Target.
//
// What may enter: what the mount table says and what changes it. Nothing here
// knows volumes, formats a device, waits, retries or decides a gRPC code.
package mount
