// Package progress tells how far long work is: in the log, and through a gRPC
// service of Touchstone's own on the CSI socket, for which CSI has no call.
//
// What may enter: counting and telling. What is being done belongs to whoever
// does it.
package progress
