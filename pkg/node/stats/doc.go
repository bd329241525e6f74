// Package stats reads what NodeGetVolumeStats returns: the usage of a volume's filesystem, device,
// directory or guest, and the condition that belongs to it. A filesystem on an image that hangs
// delays an answer for probe.ResponseTimeout at most. The walk of a directory's files is not bounded;
// the number of walks in each pool is.
package stats
