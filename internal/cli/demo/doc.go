// Package demo implements `touchstone demo`, which shows the lifecycle of volumes on this
// machine. It starts the driver as a process, calls it through its socket as an
// orchestrator does, and verifies with the kernel, not with the driver, that each call had
// its effect.
//
// sections.go lists the calls in CSI's order; copy_sections.go does so for snapshots,
// groups and the volumes created from them. The volume*.go files contain the steps,
// driver.go the driver's process, payload.go the data that must survive, undo.go how calls
// are reversed, leftovers.go how leftovers are found and removed, report.go the output.
//
// It depends on internal/cli/csiclient for all calls, and on no package of the driver but
// the pool's directory layout.
package demo
