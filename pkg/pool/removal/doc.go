// Package removal removes what is no longer used, in the background and until it
// has succeeded.
//
// A Queue holds tasks. A task that fails is retried with exponential backoff; its
// cause is logged when it changes, and Failures reports it for as long as it lasts.
// Tasks of one pool run one after another in the background, those of different
// pools independently, so that a pool that does not answer delays only its own.
//
// What may enter: when a task runs, and its outcome. How something is removed is
// the task's own knowledge (pkg/pool, pkg/controller).
package removal
