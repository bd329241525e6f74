package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
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
	// its image, and returns that size; OUT_OF_RANGE if it is not in the range, which may be nil.
	Expand(ctx context.Context, v *staged.Volume, path string, asked *csi.CapacityRange) (int64, error)
	// Stats returns the usage of the volume that is mounted at the directory; nil is the
	// staging path of a volume that is not mounted there.
	Stats(ctx context.Context, v *staged.Volume, at *mount.Target) (Stats, error)

	// Devices returns the numbers of the loop devices that the volume is used through.
	Devices(v *staged.Volume) ([]int, error)
	// DeviceOf returns the number of the loop device that a publication uses, NoDevice for
	// none.
	DeviceOf(v *staged.Volume, p staged.Publication) (int, error)
	// AddFreezeTargets adds what has to be frozen or synced for a copy of the volume.
	AddFreezeTargets(v *staged.Volume, targets *freeze.Targets) error
	// CheckStored returns NOT_FOUND unless the pool stores the volume.
	CheckStored(v *staged.Volume) error
}

// NoDevice is the number of no loop device.
const NoDevice = -1

// detachLimit bounds the wait for programs that have a device open.
const detachLimit = 10 * time.Second

// The modes of the paths that the driver creates.
const (
	stagingMode = 0o750
	// TargetDirectoryMode is the mode of target paths that are directories.
	TargetDirectoryMode = 0o750
	targetFileMode      = 0o600
)

// Config is what a Provider depends on.
type Config struct {
	// Pools store volumes, and Ephemeral inline ephemeral volumes.
	Pools, Ephemeral *pool.Set
	Dirs             *mount.AllowedDirs
	Loops            *loop.Loops
	// Volumes are the records of staged volumes, to find the devices of one again, and to
	// record how far its filesystem was grown.
	Volumes *staged.Records[*staged.Volume]
	Tuner   *tuning.Tuner
	Freezer *freeze.Freezer
	Checker Checker
	Prober  Prober
	Direct  kata.Runtimes
	// Run starts the tools of the filesystems; nil starts the real ones.
	Run filesystem.Runner
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
	Log   *slog.Logger
}

// Checker checks filesystems at staging (package fsck).
type Checker interface {
	// CheckAtStaging checks the filesystem on the device before it is mounted, and repairs
	// what is safe to repair. It calls replay where the log must be replayed first.
	CheckAtStaging(ctx context.Context, v *staged.Volume, fs filesystem.Filesystem, device string, replay func() error) error
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

// Prober learns about attachments and keeps out of volumes that are unmounted (package probe).
type Prober interface {
	// Attached reports a new attachment. Second means that it is the second device of a
	// volume, for read-only publications.
	Attached(v *staged.Volume, device *loop.Device, imageBytes int64, second bool)
	// Detached reports that the device is about to be detached.
	Detached(number int)
	// CloseGate keeps probes out of the volume until reopen is called.
	CloseGate(volumeID string) (reopen func())
	// MountBusy reports that the volume could not be unmounted from the path, because it is in
	// use; Unmounted that it was.
	MountBusy(v *staged.Volume, path string)
	Unmounted(v *staged.Volume, path string)
	// DeviceBusy reports that the device could not be detached, because it is in use.
	DeviceBusy(v *staged.Volume, number int, sequence uint64)
}

// Provider has the four implementations of Access and what they share. It is safe for
// concurrent use.
type Provider struct {
	config  Config
	observe *observe.Observer
	devices *heldDevices
	// templates make the filesystems of blank images.
	templates filesystem.Templates
	growths   growths
}

// New returns a Provider.
func New(config Config) *Provider {
	p := &Provider{config: config, observe: observe.New(config.Dirs, config.Loops)}
	p.devices = newHeldDevices(config.Loops, p.findAgain)

	return p
}

// For returns the access of a staged volume.
func (p *Provider) For(v *staged.Volume) Access {
	switch {
	case !v.IsImage():
		return directory{mounted{bound{p}}}
	case v.Capability.Block:
		return rawBlock{rawDevice{bound{p}}}
	case v.IsDirect():
		return directVolume{rawDevice{bound{p}}}
	default:
		return mountedImage{mounted{bound{p}}}
	}
}

// CanFreeze reports whether the volume has a filesystem on the host that can be frozen.
func CanFreeze(v *staged.Volume) bool { return v.IsImage() && !v.ExposesRawDevice() }

// Observer returns what the accesses observe mounts and devices with.
func (p *Provider) Observer() *observe.Observer { return p.observe }

// PoolOf returns the pool that stores a volume in use.
func (p *Provider) PoolOf(v *staged.Volume) (*pool.Pool, error) {
	if v.Ephemeral {
		return PoolIn(p.config.Ephemeral, v)
	}

	return PoolIn(p.config.Pools, v)
}

// PoolIn returns the pool of the set that stores a volume in use.
func PoolIn(pools *pool.Set, v *staged.Volume) (*pool.Pool, error) {
	found, err := pools.Get(v.Parameters.Pool)

	switch {
	case errors.Is(err, pool.ErrUnknown):
		return nil, errdefs.Errorf(errdefs.ErrFailedPrecondition, "volume %s is in pool %q, which this node does not have (--pool)",
			v.VolumeID, v.Parameters.Pool)
	case err != nil:
		return nil, fmt.Errorf("volume %s: %w", v.VolumeID, err)
	default:
		return found, nil
	}
}

// openImage opens the image of a volume in use.
func (p *Provider) openImage(v *staged.Volume, flag int) (*os.File, error) {
	stored, err := p.PoolOf(v)
	if err != nil {
		return nil, err
	}

	return stored.OpenImage(v.VolumeID, flag)
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
