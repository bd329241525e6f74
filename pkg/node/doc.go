// Package node is the CSI Node service: it makes volumes usable on this machine.
//
// Its records state what the CO has requested, and are written before anything is done, so
// that a restart after a kill at any instruction finds what has to be completed or undone.
// What is mounted and attached is always observed (package observe). The controller's
// records are never read.
//
// It contains the handlers (Service), what they run as an operation on the volume (lifecycle), and recovery. How
// a volume is made usable is in packages below it: staged has the records, device attaches images, access mounts
// and publishes, direct has the assignments to virtual machines, ephemeral creates and removes inline volumes,
// remount makes persistent mounts again, observe reads mounts and devices, probe finds out whether a volume is healthy, stats reads
// its usage, fsck checks filesystems, freeze freezes them for a copy, tuning applies mutable
// parameters, and ownership changes the group of files. These do not import package node; where they
// depend on it, they define an interface.
package node
