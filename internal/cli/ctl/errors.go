package ctl

import "errors"

// Exit codes of every touchstone command.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
)

// UsageError says that the command line was wrong, rather than the driver
// unwilling.
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

// coded is an error of a command that asks whether something is well: such a
// command ends with 1 only when it is not, and with 2 when that can't be told.
type coded struct {
	error

	code int
}

// ExitCode is 1 or 2.
func (e *coded) ExitCode() int { return e.code }

// Unwrap returns the cause.
func (e *coded) Unwrap() error { return e.error }

func unhealthy(err error) error { return &coded{err, exitFailed} }

// undetermined leaves an error that says its code itself.
func undetermined(err error) error {
	if err == nil || errors.As(err, new(*coded)) || errors.As(err, new(*UsageError)) {
		return err
	}

	return &coded{err, exitUsage}
}

// ExitCode is what the process ends with after err: what the error itself says
// by a method ExitCode() int, else 1, and 0 for none.
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
