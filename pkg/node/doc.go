// Package node is the CSI Node service: it makes volumes usable on this
// machine.
//
// What is staged and published is observed, in the mount table and at the loop
// devices; the node's own records only say what was asked for, and are written
// before anything is done, so that a kill -9 at any instruction leaves nothing
// that nobody knows. The controller's records are never read.
//
// What may enter: the RPCs of the service and the order in which pool, loop
// device, filesystem and mount are put together.
package node
