// Package ctl is the CSI client for people: `touchstone ctl …`. It speaks to
// any CSI driver through its socket, prints tables for people and, with
// -o json, the answers themselves for programs.
//
// What may enter: commands, flags and output. It imports internal/cli/csiclient, the
// CSI spec and gRPC, and of the driver only the clients of pkg/operation/progress,
// pkg/health and internal/kata, which speak through the socket too. Of these
// only `check` and `ctl direct-volumes` can't do without an answer. `ctl doctor` is
// the one command that looks at the machine, which it leaves to internal/cli/doctor.
package ctl
