// Command bench measures the built driver from outside: a child process behind
// its unix socket, with every acknowledgement durable on a real disk.
// docs/performance.md has its results and the targets.
//
// It contains measurements, one topic per file. It judges nothing: a machine
// that is busy with something else misses targets without any defect.
package main
