// Package demo implements `touchstone demo`, which shows the lifecycle of volumes on this
// machine. It starts the driver as a process, calls it through its socket as an
// orchestrator does, and verifies with the kernel, not with the driver, that each call had
// its effect.
//
// steps.go has the table of all steps in CSI's order, run.go runs and prints them. volume.go
// and snapshot.go contain the calls for volumes and snapshots, driver.go the driver's process,
// leftovers.go how leftovers are found and removed.
//
// It depends on internal/cli/csiclient for all calls, on internal/cli/doctor for the
// requirements on the machine, and on internal/linux to list and detach loop devices and to
// read UUIDs. It depends on no service of the driver.
package demo
