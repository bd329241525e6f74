package volume

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Consistency says what a snapshot, or a clone, must be of.
type Consistency string

// The two kinds of consistency.
const (
	// ConsistencyFilesystem refuses a copy that would not be point-in-time.
	ConsistencyFilesystem Consistency = "filesystem"
	// ConsistencyNone takes what is there, while it may be written.
	ConsistencyNone Consistency = "none"
)

// KeyConsistency is the only parameter of a SnapshotClass that is not the
// snapshotter's own. In a StorageClass it is about the clones that are made with it.
const KeyConsistency = "consistency"

// keyDeletionPolicy is a field of a class, and no parameter. Kubernetes' own
// storage suite writes it among the parameters of a VolumeGroupSnapshotClass as
// well, and the snapshotter passes it on: refusing it would fail each spec of
// group snapshots. What it says is for the snapshotter to do.
const keyDeletionPolicy = "deletionPolicy"

// KeyCopy is "true" in the volume_context of a volume that was made from another
// or from a snapshot: its filesystem needs a UUID of its own before the first
// mount.
const KeyCopy = "copy"

// ParseSnapshotParameters reads CreateSnapshotRequest.parameters and those of a
// group (CSI v1.13, CreateSnapshot, CreateVolumeGroupSnapshot). Errors:
// ErrParameter.
func ParseSnapshotParameters(given map[string]string) (Consistency, error) {
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if key != KeyConsistency && key != keyDeletionPolicy && !strings.HasPrefix(key, ReservedPrefix) {
			return "", fmt.Errorf("%w: unknown parameter %q; known is %s", ErrParameter, key, KeyConsistency)
		}
	}

	wanted := CloneConsistency(given)

	return wanted, wanted.Check()
}

// CloneConsistency returns, of the parameters of a StorageClass that ParseParameters
// has accepted, what a volume must be of that is made of another one (CSI v1.13,
// CreateVolume). It is about the making, and no property of the volume.
func CloneConsistency(given map[string]string) Consistency {
	return Consistency(cmp.Or(given[KeyConsistency], string(ConsistencyFilesystem)))
}

// Check refuses any other value than the two, with ErrParameter.
func (c Consistency) Check() error {
	if c != ConsistencyFilesystem && c != ConsistencyNone {
		return badValue(KeyConsistency, string(c), "filesystem or none")
	}

	return nil
}
