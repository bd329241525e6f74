// Package demo shows a volume's whole life on this machine: `touchstone demo`.
// It starts the driver as its own process, plays the orchestrator on the other
// side of the socket, and checks with the kernel rather than with the driver
// that each call did what it says.
//
// Read life.go first: it is CSI's order of calls, as a list; copies.go is the
// same for snapshots, groups and the volumes made of them. The driver's process
// is in driver.go, the data that must survive in payload.go, how calls are
// reversed in undo.go, what may be left behind and how it is taken away in
// remains.go, the printing in report.go.
//
// What may enter: steps and what they need. It talks to the driver through
// internal/cli/csiclient alone and imports no room of it.
package demo
