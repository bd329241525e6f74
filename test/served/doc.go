// Package served gives tests somebody to connect to: a server on a socket with what
// a test registers, the socket of one that has ended, and an address for one that is
// yet to come.
//
// What may enter: sockets and their addresses. What is served there is the test's.
package served
