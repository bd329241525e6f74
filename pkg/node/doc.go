// Package node is the CSI Node service: it makes volumes usable on this machine.
//
// Its records state what the CO has requested, and are written before anything is done, so
// that a restart after a kill at any instruction finds what has to be completed or undone.
// What is mounted and attached is always observed (package observe). The controller's
// records are never read.
//
// It contains the handlers of the service, the records of staged and published volumes,
// and recovery. What is done with a volume is in packages below it: access makes a volume
// usable, probe finds out whether it is healthy, fsck checks filesystems, freeze freezes
// them for a copy, and tuning applies mutable parameters. These do not import package node;
// where they depend on it, they define an interface.
package node
