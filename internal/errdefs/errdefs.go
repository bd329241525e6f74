// Package errdefs defines the categories of errors that callers react to. The
// package in which an error arises gives it a category; internal/csi/rpc turns the
// category into a gRPC code without importing that package.
//
//	var ErrInUse = errdefs.New(errdefs.ErrFailedPrecondition, "the device is in use")
//
//	errors.Is(err, loop.ErrInUse)                  // this error
//	errors.Is(err, errdefs.ErrFailedPrecondition)  // any error of its category
//
// It contains the categories and the constructor; it does not import any other
// package of Touchstone, so that every layer can use it. An error without a
// category is an internal error.
package errdefs

import "errors"

// The categories. Each corresponds to the gRPC code of the same name.
var (
	// ErrUnavailable: the call fails for a temporary reason; retrying it later may help.
	ErrUnavailable = errors.New("unavailable")
	// ErrInvalidArgument: the request is wrong in any state of the system.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrResourceExhausted: there is no free space, capacity or device number.
	ErrResourceExhausted = errors.New("resource exhausted")
	// ErrNotFound: the object of the request does not exist.
	ErrNotFound = errors.New("not found")
	// ErrOutOfRange: a requested size is below or above what is supported.
	ErrOutOfRange = errors.New("out of range")
	// ErrFailedPrecondition: the state of the system has to change before a retry can
	// succeed, such as a device that is in use.
	ErrFailedPrecondition = errors.New("failed precondition")
	// ErrAborted: a concurrent operation got in the way; retry.
	ErrAborted = errors.New("aborted")
)

// New returns an error of the category, to be compared by errors.Is like one of
// errors.New. Its text is the message alone, without the category's.
func New(category error, message string) error {
	return &categorized{category: category, message: message}
}

type categorized struct {
	category error
	message  string
}

// Error implements error.
func (e *categorized) Error() string { return e.message }

// Unwrap returns the category.
func (e *categorized) Unwrap() error { return e.category }
