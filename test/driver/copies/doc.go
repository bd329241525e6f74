// Package copies tests snapshots, groups of snapshots, restored volumes and clones: they
// have the source's content of one point in time, are idempotent by name, may take long,
// and survive a restart or leave nothing.
package copies
