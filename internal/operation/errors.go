package operation

import (
	"errors"
	"fmt"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// ErrDraining is returned for an operation that was not begun because the
// process is about to end.
var ErrDraining = errdefs.New(errdefs.ErrUnavailable, "the driver is shutting down and takes no new operations")

// errResult is a defect of the caller: one method, two types of result.
var errResult = errors.New("wrong type of result")

// ConflictError says that the same call is under way with other arguments.
type ConflictError struct {
	// Key and Object name what both calls are about.
	Key, Object string
	// Method is the call that is under way.
	Method string
}

// Error implements error.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("%s for %s %s is under way with other arguments; wait for it, then call again",
		e.Method, e.Key, e.Object)
}

// Unwrap returns the category of the error.
func (e *ConflictError) Unwrap() error { return errdefs.ErrAborted }

// PanicError is the result of an operation that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error. The stack is kept out of it: it belongs in the log.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }
