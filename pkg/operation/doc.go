// Package operation runs operations that outlive their callers.
//
// A CO's deadline ends the call, not the work: the operation goes on, and the
// CO's identical retry joins it and gets its result. The work of one key (a
// volume, or the name of one that is being created) is serial; different keys
// never wait for each other. The same call with other arguments, while the
// first is under way, is the one conflict there is.
//
// What may enter: the order and the fate of operations. Nothing here knows
// what an operation does, and no gRPC code is decided here.
package operation
