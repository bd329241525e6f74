package access

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Access makes a volume usable on this node in one of the ways that CSI defines. The caller
// is in an operation on the volume and has stored its record before it calls Stage or
// Publish. All methods may be repeated after a failure or a crash.
type Access interface {
	// Stage makes the volume usable on the node: it mounts it at the staging path, or attaches
	// its device.
	Stage(ctx context.Context, v *staged.Volume, staging *mount.Target) error
	// Unstage undoes Stage. A volume that is not staged is no error.
	Unstage(ctx context.Context, v *staged.Volume) error
	// IsStaged reports whether the volume is staged now.
	IsStaged(v *staged.Volume) (bool, error)
	// IsInUse reports whether the volume is staged, or a program still has a device open that
	// is detached with its last user.
	IsInUse(v *staged.Volume) (bool, error)

	// Publish makes the staged volume usable at the target path.
	Publish(ctx context.Context, v *staged.Volume, p staged.Publication, target *mount.Target) error
	// Republish repairs an existing publication, or returns FAILED_PRECONDITION where a pod
	// would find another mount at its target path.
	Republish(ctx context.Context, v *staged.Volume, p staged.Publication) error
	// IsPublished reports whether the publication exists, also beneath a foreign mount on top
	// of it: a publication whose record is deleted could never be unmounted.
	IsPublished(v *staged.Volume, p staged.Publication) (bool, error)
	// Unpublish unmounts the volume from the target path, which is nil where nothing can be
	// mounted, and removes what Publish made beside the mount: limits, assignment and path.
	Unpublish(v *staged.Volume, p staged.Publication, target *mount.Target) error

	// Expand grows the device and the filesystem of a volume in use at the path to the size of
	// its image, and returns that size, or the size limit of its directory; OUT_OF_RANGE if it is
	// not in the range, which may be nil.
	Expand(ctx context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error)
	// Stats returns the usage of the volume that is mounted at the directory; nil is the
	// staging path of a volume that is not mounted there.
	Stats(ctx context.Context, v *staged.Volume, at *mount.Target) (Stats, error)

	// Devices returns the numbers of the loop devices that the volume is used through.
	Devices(v *staged.Volume) ([]int, error)
	// DeviceOf returns the number of the loop device that a publication uses, device.None for
	// none.
	DeviceOf(v *staged.Volume, p staged.Publication) (int, error)
	// AddFreezeTargets adds what has to be frozen or synced for a copy of the volume.
	AddFreezeTargets(v *staged.Volume, targets *freeze.Targets) error
}

// The modes of the paths that the driver creates.
const (
	stagingMode = 0o750
	// TargetDirectoryMode is the mode of target paths that are directories.
	TargetDirectoryMode = 0o750
	targetFileMode      = 0o600
)

// Config is what the accesses depend on.
type Config struct {
	// Config is what Devices depend on.
	device.Config

	Devices *device.Devices
	Dirs    *mount.AllowedDirs
	Checker Checker
	// Gate and MountEvents are about mounts.
	Gate        Gate
	MountEvents Events
	// Run starts the tools of the filesystems; nil starts the real ones.
	Run filesystem.Runner
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
}

// Checker checks filesystems at staging (package fsck).
type Checker interface {
	// CheckAtStaging checks the filesystem on the device before it is mounted, and repairs
	// what is safe to repair. It returns true if the log has to be replayed first. After that, since is
	// when the first check began, zero before.
	CheckAtStaging(ctx context.Context, v *staged.Volume, fs filesystem.Filesystem, devicePath string, since time.Time) (bool, error)
	// RecordFormatted records that the filesystem was just made.
	RecordFormatted(ctx context.Context, v *staged.Volume)
	// RecordFailure records the damage that made a staging fail.
	RecordFailure(ctx context.Context, v *staged.Volume, failure error)
	// HasRecord reports whether the volume has had a filesystem on this node.
	HasRecord(volumeID string) bool
	// SetErrorCount records the kernel's error count of a filesystem that was found clean.
	SetErrorCount(volumeID string, count uint64)
	// Forget deletes the record of a volume that is no filesystem any more.
	Forget(volumeID string) error
	// Cancel stops a running check of the volume.
	Cancel(ctx context.Context, volumeID string) error
}

// Gate keeps probes out of volumes that are unmounted (package probe).
type Gate interface {
	// Close keeps probes out of the volume until reopen is called.
	Close(volumeID string) (reopen func())
}

// Events is what unmounts are reported to.
type Events interface {
	// MountBusy reports that the volume could not be unmounted from the path, because it is in
	// use; Unmounted that it was.
	MountBusy(v *staged.Volume, path string)
	Unmounted(v *staged.Volume, path string)
}

// Shared is what the ways of access share.
type Shared struct {
	Targets     *Targets
	RawDevice   RawDevice
	Filesystems *Filesystems

	image *Image
	block *Block
}

// NewShared returns it.
func NewShared(config Config) Shared {
	targets := &Targets{
		dirs: config.Dirs, observer: config.Observer, devices: config.Devices, pools: config.Pools, tuner: config.Tuner,
		gate: config.Gate, events: config.MountEvents, log: config.Log,
	}

	raw := RawDevice{targets, config.Loops}
	filesystems := &Filesystems{
		pools: config.Pools, devices: config.Devices, loops: config.Loops, checker: config.Checker, run: config.Run, point: config.Point,
	}

	return Shared{
		Targets: targets, RawDevice: raw, Filesystems: filesystems, block: &Block{raw, config.Checker},
		image: &Image{
			Targets: targets, filesystems: filesystems, checker: config.Checker, freezer: config.Freezer, point: config.Point,
		},
	}
}

// Ways are the ways of access to the volumes of a node. They are safe for concurrent use.
type Ways struct {
	Shared

	directory *Directory
	direct    Access
}

// New returns the ways. Direct is that of package direct.
func New(shared Shared, direct Access) *Ways {
	return &Ways{Shared: shared, directory: &Directory{shared.Targets}, direct: direct}
}

// For returns the access of a staged volume.
func (w *Ways) For(v *staged.Volume) Access {
	switch {
	case !v.Parameters.Backing.HasDevice():
		return w.directory
	case v.Capability.Block:
		return w.block
	case v.IsDirect():
		return w.direct
	default:
		return w.image
	}
}

// InUse returns where a recorded volume is published, or else staged. An error means that this is unknown.
func (w *Ways) InUse(v *staged.Volume) (path string, used bool, err error) {
	way := w.For(v)

	for _, publication := range v.Publications {
		used, err := way.IsPublished(v, publication)
		if used || err != nil {
			return publication.TargetPath, used, err
		}
	}

	used, err = way.IsInUse(v)

	return v.StagingPath, used, err
}

// CheckLength returns pool.ErrTruncated while the image of a volume in use is shorter than one of its
// devices.
func (w *Ways) CheckLength(v *staged.Volume) error {
	numbers, err := w.For(v).Devices(v)
	if err != nil {
		return err
	}

	return w.Targets.devices.CheckLength(v, numbers)
}

// Tree returns a detached mount of the volume: of the filesystem on its image, or of its
// directory.
func (w *Ways) Tree(ctx context.Context, v *staged.Volume, options mount.Options) (*mount.Detached, error) {
	if v.Parameters.Backing.HasFilesystem() {
		return w.image.tree(ctx, v, options)
	}

	return w.directory.tree(v, options)
}

// UnmountAndDetach unmounts the volume. A mounted image is thawed before, and waited for until the kernel has
// detached its device with the last mount.
func (w *Ways) UnmountAndDetach(ctx context.Context, v *staged.Volume, at *mount.Target) error {
	if v.IsMountedImage() {
		return w.image.unmountAndDetach(ctx, v, at)
	}

	return w.Targets.UnmountAllLayers(v, at)
}

// UnrecordedVolumes returns the volumes of that id that may be mounted without a record.
func UnrecordedVolumes(id string) []*staged.Volume {
	return []*staged.Volume{
		{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage}},
		{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingDirectory}},
		{VolumeID: id, Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}},
	}
}

// Stats is the usage of a volume.
type Stats struct {
	Usage mount.Usage
	// Filesystem is the usage of the filesystem that the volume is in, nil for a raw device.
	Filesystem *mount.Usage
}
