package ctl

import "errors"

// Exit codes of every touchstone command.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
)

// UsageError is an error of the command line, not of the driver.
type UsageError struct{ err error }

func (e *UsageError) Error() string { return e.err.Error() }

func (e *UsageError) Unwrap() error { return e.err }

// ExitCode is 2.
func (e *UsageError) ExitCode() int { return exitUsage }

func usage(err error) error {
	if err == nil {
		return nil
	}

	return &UsageError{err}
}

// coded is an error of a command that checks health: its exit code is 1 only for an
// unhealthy result, and 2 if there is no result.
type coded struct {
	error

	code int
}

// ExitCode is 1 or 2.
func (e *coded) ExitCode() int { return e.code }

// Unwrap returns the cause.
func (e *coded) Unwrap() error { return e.error }

func unhealthy(err error) error { return &coded{err, exitFailed} }

// undetermined gives an error exit code 2, unless it has an exit code of its own.
func undetermined(err error) error {
	if err == nil || errors.As(err, new(*coded)) || errors.As(err, new(*UsageError)) {
		return err
	}

	return &coded{err, exitUsage}
}

// ExitCode returns the process's exit code for err: 0 for nil, the result of the error's
// method ExitCode() int if it has one, else 1.
func ExitCode(err error) int {
	var coded interface{ ExitCode() int }

	switch {
	case err == nil:
		return exitGood
	case errors.As(err, &coded):
		return coded.ExitCode()
	default:
		return exitFailed
	}
}
