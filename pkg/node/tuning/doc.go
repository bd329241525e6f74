// Package tuning applies the mutable parameters of volumes on a node: the request queue
// of a volume's loop device (read-ahead, I/O scheduler), and the I/O limits of the pods
// that the volume is published to.
//
// It contains the order in which they are recorded, set and reset. It does not know how a
// volume is used: callers pass the numbers of its loop devices. The kernel interfaces are
// in internal/linux/cgroup.
package tuning
