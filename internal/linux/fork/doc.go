// Package fork bounds retries of what fails only because this process is forking a child.
//
// Between fork and exec a child has copies of all descriptors of this process. A file that was
// closed meanwhile is still open in the child, so that a mount is busy or a lock is held although
// nothing uses it. How long that takes cannot be guessed on a loaded machine, but its end can be
// observed.
//
// It contains such retries and their limit; what is retried, and the error, are the caller's.
package fork
