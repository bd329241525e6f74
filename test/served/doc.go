// Package served provides servers for tests: a server on a socket with the services that a
// test registers, the socket of a server that has ended, and the address of a future one.
//
// It contains sockets and their addresses, and a collector of traces. The test provides the services.
package served
