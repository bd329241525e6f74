// Package ctl implements `touchstone ctl` and `touchstone check`: command-line clients of any
// CSI driver through its socket. They print tables or, with -o json, the driver's answers.
//
// It contains commands, flags and output. It depends on internal/csiclient, the CSI spec
// and gRPC, and of the driver only on the clients of internal/operation/progress, internal/health,
// internal/kata and internal/lab, which use the socket too. Of these services only `check`, `ctl
// direct-volumes`, `calls`, `violations` and `fault` require an answer. `ctl doctor` checks the machine by means of
// cmd/touchstone/internal/doctor.
package ctl
