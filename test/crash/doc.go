// Package crash kills the driver with SIGKILL, again and again, while a CO
// works with it, and searches for lost or leftover objects: the guarantee is that a kill
// at any instruction costs nothing that was acknowledged and leaks nothing.
//
// The driver is the built binary, in the test's own mount namespace: as in
// reality its mounts and loop devices outlive it. The CO keeps the truth: of
// each call it knows that it was acknowledged, or that it does not know.
//
// Flags after -args: -kills, -seed; or TOUCHSTONE_CRASH_KILLS and
// TOUCHSTONE_CRASH_SEED in the environment.
//
// It contains the CO's model, the moments of the kills and the audit.
package crash
