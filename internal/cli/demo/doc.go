// Package demo implements `touchstone demo`, which shows the lifecycle of volumes on this
// machine. It starts the driver as a process, calls it through its socket as an
// orchestrator does, and verifies with the kernel, not with the driver, that each call had
// its effect.
//
// demo.go has the table of all steps in CSI's order, run.go runs and prints them. volume.go and
// snapshot.go contain the steps of volumes and snapshots, driver.go those of the driver's
// process, leftovers.go how leftovers are found and removed.
//
// It depends on internal/cli/csiclient for all calls, and on internal/cli/doctor for the
// requirements on the machine. Of the driver's packages it uses none that handles a call.
package demo
