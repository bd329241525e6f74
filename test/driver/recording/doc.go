// Package recording tests the call log (--call-log) through the socket: what it has of calls and
// streams, that credentials are not in it, and that a wait misses no call.
package recording
