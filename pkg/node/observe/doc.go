// Package observe finds out from the mount table and the loop devices where a volume is
// mounted and attached.
//
// Observations decide whether a volume may be unstaged, detached or deleted. What could
// not be observed is not absent: then the functions return an error (UNAVAILABLE), and
// the call fails.
//
// It contains the comparison of mounts and devices with volumes. It does not change
// anything, and does not judge whether a volume is healthy (package probe).
package observe
