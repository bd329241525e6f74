// Package removal tests what the driver removes from its pools: volumes, snapshots and
// ephemeral volumes in the background, however deep, protected or in use they are, and
// orphans at the start. It removes nothing else.
package removal
