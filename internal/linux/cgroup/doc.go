// Package cgroup limits the I/O of a pod on a block device.
//
// Limits are rules for the device in the pod's cgroup. With cgroup v2's io controller one rule
// holds for the whole pod. The blkio controller of version 1 does not pass rules on to child
// cgroups, so there the rule is written to every cgroup of the pod, also to those that are created
// later; each container then has the limit for itself.
//
// A change is checked first, and reverted as a whole where one write fails.
//
// It contains what cgroupfs offers for a block device; it does not know volumes and decides no
// gRPC code.
package cgroup
