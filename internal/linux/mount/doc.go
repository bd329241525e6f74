// Package mount observes and changes the mount table by file descriptor and syscall: it forks no
// tool and never resolves a path twice.
//
// A path from a request becomes a Target: a name in a directory that was opened beneath an allowed
// directory without following a symlink. Every operation on a Target uses that descriptor, so
// renaming directories in the meantime has no effect. A mount is made detached, gets all its
// attributes while it is invisible, and is then attached to a Target.
//
// It contains what reads the mount table and what changes it; it does not know volumes, formats no
// device, and decides no gRPC code.
package mount
