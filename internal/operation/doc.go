// Package operation runs operations that continue when their callers' deadlines pass.
//
// A CO's deadline ends the call, not the work: the operation continues, and the CO's
// identical retry joins it and gets its result. Operations with the same key (a
// volume, or the name of one that is being created) run one after another; different
// keys never wait for each other. The only conflict is a call with other arguments
// while a call of the same method for the same object is queued or running, unless one
// of both is exclusive.
//
// It contains the order and the lifetime of operations; it does not contain what an
// operation does, nor any gRPC code.
package operation
