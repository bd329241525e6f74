// Package socket makes the unix sockets that the driver serves on: each is its
// owner's alone, served by one process at a time, and gone when that process
// ends. One that nobody serves any more is replaced.
//
// What may enter: how a socket comes to its path and goes from it. What is served
// there, and whether its directory may be made, is the caller's.
package socket
