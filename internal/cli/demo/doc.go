// Package demo implements `touchstone demo`, which shows the lifecycle of volumes on this
// machine. It starts the driver as a process, calls it through its socket as an
// orchestrator does, and verifies with the kernel, not with the driver, that each call had
// its effect.
//
// steps.go is the table of all steps in CSI's order. volume.go and snapshot.go contain the
// steps of volumes and snapshots, driver.go the driver's process, payload.go the data that
// must survive, leftovers.go how leftovers are found and removed, report.go the output.
//
// It depends on internal/cli/csiclient for all calls, and on no package of the driver but
// the pool's directory layout.
package demo
