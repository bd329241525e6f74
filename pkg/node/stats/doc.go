// Package stats reads what NodeGetVolumeStats returns: the usage of a volume's filesystem, device,
// directory or guest, and the condition that belongs to it. A filesystem that hangs delays no
// answer for longer than probe.ResponseTimeout.
package stats
