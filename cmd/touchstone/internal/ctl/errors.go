package ctl

import "errors"

// Exit codes of every touchstone command.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usage returns an error of the command line, not of the driver.
func usage(err error) error {
	if err != nil {
		return &coded{err, exitUsage}
	}

	return nil
}

// coded is an error with an exit code. That of a command that checks health is 1 only for an
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
	if errors.As(err, new(*coded)) {
		return err
	}

	return usage(err)
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
