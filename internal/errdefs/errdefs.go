// Package errdefs defines the categories of errors that callers react to. The
// package in which an error arises gives it a category; internal/csi/rpc turns the
// category into a gRPC code without importing that package.
//
//	var ErrInUse = errdefs.New(errdefs.ErrFailedPrecondition, "the device is in use")
//
//	errors.Is(err, loop.ErrInUse)                 // this error
//	errors.Is(err, errdefs.ErrFailedPrecondition) // it, or one of its causes, is of the category
//	errdefs.Category(err)                         // the category of the whole
//
// Where a comment below the services names a gRPC code, such as NOT_FOUND, it means the
// category of that name.
//
// It contains the categories, the constructors and Wrap; it does not import any other
// package of Touchstone, so that every layer can use it. An error without a
// category is an internal error.
package errdefs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// The categories. Each corresponds to the gRPC code of the same name.
var (
	// ErrUnavailable: the call fails for a temporary reason; retrying it later may help.
	ErrUnavailable = errors.New("unavailable")
	// ErrInvalidArgument: the request is wrong in any state of the system.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrAlreadyExists: an object or its use exists with other properties.
	ErrAlreadyExists = errors.New("already exists")
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
	// ErrUnimplemented: this process does not serve the call.
	ErrUnimplemented = errors.New("unimplemented")
	// ErrInternal: something is broken that neither a retry nor another request mends.
	ErrInternal = errors.New("internal")
)

// ranked are the categories, and the context's errors, which are categories of their own. Of several
// joined errors the first here is the category of all.
var ranked = []error{
	// Before the context's errors: if the Kubernetes API did not answer within its
	// own timeout, the deadline of the call has not passed.
	ErrUnavailable, context.DeadlineExceeded, context.Canceled,
	ErrInvalidArgument, ErrAlreadyExists, ErrResourceExhausted, ErrNotFound, ErrOutOfRange, ErrFailedPrecondition, ErrAborted,
	ErrUnimplemented, ErrInternal,
}

// foreign are errors of the standard library and the kernel that have a category.
var foreign = map[error]error{
	// A pool that failed is closed while operations still use its files.
	fs.ErrClosed: ErrUnavailable,
	// An NFS server does not have the pool's filesystem any more, or, in a soft mount, is away.
	unix.ESTALE: ErrUnavailable,
	// The filesystem of the pool does not support a file of the requested size.
	unix.EFBIG: ErrOutOfRange,
}

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

// Error is an error to which its caller gave a category, whatever that of its cause is.
type Error struct{ category, cause error }

// Errorf returns an Error; format may wrap causes with %w.
func Errorf(category error, format string, args ...any) error {
	return &Error{category: category, cause: fmt.Errorf(format, args...)} //nolint:err113 // the caller's format is the message
}

// Ignore returns nil for an error of a kind that says that nothing has to be done, and others as they are.
func Ignore(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}

	return err
}

// Wrapf puts the message before *err, unless that is nil. It is deferred where the errors of several steps
// get the same message:
//
//	defer errdefs.Wrapf(&err, "capacity of pool %q", name)
func Wrapf(err *error, format string, args ...any) { //nolint:gocritic // a deferred call changes the result
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...) //nolint:err113 // the caller's format is the message
	}
}

// Error implements error.
func (e *Error) Error() string { return e.cause.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether the target is the category.
func (e *Error) Is(target error) bool { return target == e.category }

// Category returns the category of an error: the one that the outermost caller gave it, or that of its
// cause. Of several joined errors those to which a caller gave one decide, and of several of these the
// order of the categories above, not that of the errors. An error of a context is its own category; nil is
// none.
func Category(err error) error {
	_, category := categoryOf(err)

	return category
}

// categoryOf is Category. given means that a caller gave it.
func categoryOf(err error) (given bool, category error) {
	switch e := err.(type) { //nolint:errorlint // each level is read by itself
	case *Error:
		return true, e.category
	case interface{ Unwrap() []error }:
		for _, cause := range e.Unwrap() {
			isGiven, one := categoryOf(cause)
			if one != nil && (category == nil || isGiven && !given || isGiven == given && rank(one) < rank(category)) {
				category, given = one, isGiven
			}
		}

		return given, category
	case interface{ Unwrap() error }:
		return categoryOf(e.Unwrap())
	}

	if rank(err) >= 0 {
		return false, err
	}

	for cause, category := range foreign {
		if errors.Is(err, cause) {
			return false, category
		}
	}

	return false, nil
}

func rank(category error) int { return slices.Index(ranked, category) }
