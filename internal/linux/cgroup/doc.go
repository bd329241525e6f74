// Package cgroup is how fast a volume's device may be used, and how: the queue
// attributes of a loop device, and limits for one pod's use of it.
//
// Limits are rules for the device in the pod's cgroup. Where cgroup v2 rules
// the block devices, one rule holds for the whole pod. Version 1 of that
// controller does not pass rules on to children, so there the rule is put into
// every cgroup of the pod, also into those that its containers get later; each
// container then has the limit for itself.
//
// Everything is checked before anything is changed, and a change that fails
// half-way is taken back.
//
// What may enter: what sysfs and cgroupfs offer for a block device. Nothing
// here knows what a volume is, and no gRPC code is decided here.
package cgroup
