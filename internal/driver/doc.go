// Package driver composes the process: from the configuration it builds the services
// of a mode, serves them on one socket with the same interceptors for every call, and
// drains them at the end.
//
// docs/concurrency.md lists the goroutines, timers, retries and locks of the process.
package driver
