// Package touchstonetest runs a Touchstone driver for a test, for the unit tests of sidecars, kubelets
// and other COs: a CSI driver that follows the spec, fails on command and records what it was asked.
//
//   - Start runs a driver until the test ends, with state, pool and socket in a directory of the
//     test. As root it mounts volumes; otherwise, and with SimulateNode, node calls are recorded and
//     nothing is mounted.
//   - Faults and Driver.AddFault have calls fail (docs/faults.md); Without takes capabilities away;
//     FailOnViolations fails the test if the CO violates the spec (docs/strict.md), NoLeaks if it
//     leaves volumes, snapshots or attachments behind.
//   - Driver has clients of all services, Calls and AwaitCalls, and Restart.
//
// The driver is the program touchstone of the PATH, or the one that the environment variable
// TOUCHSTONE_BINARY names. The package is a module of its own, which imports nothing of the driver:
// a test of a CO keeps its own versions of client-go, OpenTelemetry and Prometheus.
//
// The functions fail the test themselves; none returns an error.
package touchstonetest
