// Package removal removes discarded objects in the background and retries until it succeeds.
//
// A Queue holds tasks. A task that fails is retried with exponential backoff; its error is logged
// when it changes, and Failures reports it while it lasts. Background tasks of one pool run one
// after another, those of different pools independently, so that a pool that does not answer delays
// only its own.
//
// The package contains the schedule and the outcome of tasks; what a task removes is defined by its
// creator (internal/pool, pkg/controller).
package removal
