// Package metadata tests the SnapshotMetadata service: the allocated and changed blocks
// that it reports are those of the images, and its streams end whatever their readers do.
package metadata
