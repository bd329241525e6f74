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
