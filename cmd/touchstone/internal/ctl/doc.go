// Package ctl implements `touchstone ctl` and `touchstone check`: command-line clients of any
// CSI driver through its socket. They print tables or, with -o json, the driver's answers.
//
// It contains commands, flags and output. Of the driver's own services, which use the socket too, only
// `check` and `ctl direct-volumes`, `calls`, `violations`, `leaks` and `fault` require an answer. `ctl doctor`
// checks the machine by means of cmd/touchstone/internal/doctor.
package ctl
