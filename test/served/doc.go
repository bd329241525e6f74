// Package served provides servers for tests: a server on a socket with the services that a
// test registers, the socket of a server that has ended, the address of a future one, and what one answers.
//
// It contains sockets and their addresses, a GET, and a collector of traces. The test provides the services.
package served
