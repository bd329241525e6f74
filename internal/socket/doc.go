// Package socket creates the unix sockets that the driver serves: each is accessible
// to its owner only, served by one process at a time, and removed when that process
// ends. A stale socket is replaced.
//
// The package creates and removes sockets; the services and the directory are the
// caller's.
package socket
