package operation

import "context"

// Point is a named point in the operation of an RPC. docs/faults.md says what is done there and what is
// not.
type Point string

// The points.
const (
	VolumeAllocated     Point = "volume-allocated"
	VolumeRecorded      Point = "volume-recorded"
	VolumeRemoved       Point = "volume-removed"
	AttachmentAllowed   Point = "attachment-allowed"
	AttachmentRecorded  Point = "attachment-recorded"
	ImageExpanded       Point = "image-expanded"
	SnapshotCopied      Point = "snapshot-copied"
	SnapshotRecorded    Point = "snapshot-recorded"
	StagingRecorded     Point = "staging-recorded"
	ImageFormatted      Point = "image-formatted"
	DeviceAttached      Point = "device-attached"
	VolumeStaged        Point = "volume-staged"
	PublicationRecorded Point = "publication-recorded"
	VolumePublished     Point = "volume-published"
	VolumeUnstaged      Point = "volume-unstaged"
)

// Hook is called by operations at their points, about objects with these ids and names. Its error fails the
// operation. A nil Hook is not called.
type Hook func(ctx context.Context, point Point, objects ...string) error

// At calls the hook.
func (h Hook) At(ctx context.Context, point Point, objects ...string) error {
	if h == nil {
		return nil
	}

	return h(ctx, point, objects...)
}
