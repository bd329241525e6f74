package stats

import (
	"context"
	"errors"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/direct"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Config configures a Reader.
type Config struct {
	Ways         *access.Ways
	Assignments  *direct.Assignments
	Observer     *observe.Observer
	Prober       *probe.Prober
	Dirs         *mount.AllowedDirs
	Capabilities capability.Set
	Volumes      Volumes
}

// Volumes are the volumes in use (package staged).
type Volumes interface {
	// At returns the volume that is staged or published at the path. Error: NOT_FOUND.
	At(id, path string) (*staged.Volume, error)
}

// Reader reads the usage of volumes. It is safe for concurrent use.
type Reader struct {
	config Config
	// walks limits the walks that count the files of directories.
	walks *pool.Limiter
}

// New returns a reader.
func New(config Config) *Reader { return &Reader{config: config, walks: pool.NewLimiter()} }

// Read returns the usage of the volume at the path and its condition, nil where it is not known.
// Of an unhealthy volume it returns the last known usage. Errors: NOT_FOUND if the volume is not
// at the path; INTERNAL and UNAVAILABLE if its usage cannot be read although it is healthy.
func (r *Reader) Read(
	ctx context.Context, id, path string,
) (usages []*csi.VolumeUsage, record *health.Record, err error) {
	v, err := r.config.Volumes.At(id, path)
	if err != nil {
		return nil, nil, err
	}

	// Read before the usage: the condition must not be newer than it.
	record, _ = r.config.Prober.Monitor().Answer(id)
	if v.IsDirect() {
		usages, record, err = r.guestUsage(ctx, v, path, record)
	} else if !isSilent(record) {
		var now measured

		now, err = r.measure(ctx, v, path)
		usages = now.answer

		// No event reports that a filesystem became full, or that files were deleted.
		if err == nil && now.filesystem != nil && probe.Contradicts(*now.filesystem, record) {
			if fresh, failure := r.config.Prober.ProbeNow(ctx, id); failure == nil {
				record = fresh
			}
		}
	}

	if err != nil {
		record, err = r.explain(ctx, id, path, err)
	}

	if err != nil {
		return nil, nil, err
	}

	if len(usages) == 0 {
		usages = r.lastUsage(id)
	}

	return usages, record, nil
}

// isSilent reports whether the volume's filesystem is known not to respond in time.
func isSilent(record *health.Record) bool {
	return record.Has(health.ProbeTimedOut) || record.Has(health.DiskFailure)
}

// measured is the usage of a volume as the answer has it, and the one of the filesystem that
// it is made of, nil for raw block.
type measured struct {
	answer     []*csi.VolumeUsage
	filesystem *mount.Usage
}

// measure reads the usage of the volume's filesystem, bounded by ResponseTimeout. The walk of
// a directory's files is not bounded; the number of walks in each pool is.
func (r *Reader) measure(ctx context.Context, v *staged.Volume, path string) (measured, error) {
	enter := func() (func(), error) { return r.walks.Acquire(ctx, v.Parameters.Pool) }

	if v.Parameters.Backing.HasFilesystem() {
		shortened, cancel := context.WithTimeoutCause(ctx, probe.ResponseTimeout, probe.ErrNoResponse)
		defer cancel()

		ctx, enter = shortened, func() (func(), error) { return r.config.Prober.Observations().BeginQuery(v.VolumeID) }
	}

	leave, err := enter()
	if err != nil {
		return measured{}, err
	}

	return operation.Await(ctx, func() (measured, error) {
		defer leave()

		return r.usage(ctx, v, path)
	})
}

// explain returns the condition of a volume whose usage could not be read, or the failure if
// the volume is healthy.
func (r *Reader) explain(ctx context.Context, id, path string, failure error) (*health.Record, error) {
	if errors.Is(failure, probe.ErrNoResponse) {
		r.config.Prober.Monitor().Suspect(id)

		record, ok := r.config.Prober.Monitor().Get(id)
		if !ok {
			return probe.NewRecord(id, probe.TimedOut()), nil
		}

		return probe.NewRecord(id, append(slices.Clone(record.Entries), probe.TimedOut())...), nil
	}

	// Without a condition in the answer, an old usage would pass for the current one.
	if ctx.Err() != nil || !r.config.Capabilities.HasNode(capability.VolumeCondition) {
		return nil, failure
	}

	record, err := r.config.Prober.ProbeNow(ctx, id)
	if err != nil {
		return nil, failure
	}

	if _, err := r.config.Volumes.At(id, path); err != nil || record.Healthy() {
		return nil, failure
	}

	return record, nil
}

// lastUsage returns the last known usage, at least the size of the device: COs ignore an
// answer without any number.
func (r *Reader) lastUsage(id string) []*csi.VolumeUsage {
	last := r.config.Prober.Observations().LastUsage(id)
	if record, ok := r.config.Prober.Monitor().Get(id); ok && record.Usage != nil {
		last = *record.Usage
	}

	return volumeUsages(mount.Usage{Bytes: mount.Amount(last.Bytes), Inodes: mount.Amount(last.Inodes)})
}

// usage reads the usage of the volume at the path.
func (r *Reader) usage(ctx context.Context, v *staged.Volume, path string) (measured, error) {
	var at *mount.Target

	// Nothing is mounted at the staging path of a raw device.
	if !v.ExposesRawDevice() || path != v.StagingPath {
		var err error
		if at, err = r.mountedTarget(v, path); err != nil {
			return measured{}, err
		}
		defer at.Close()
	}

	stats, err := r.config.Ways.For(v).Stats(ctx, v, at)
	if err != nil {
		return measured{}, err
	}

	if stats.Filesystem != nil {
		r.config.Prober.Observations().SetUsage(v.VolumeID, *probe.UsageFrom(stats.Usage))
	}

	return measured{answer: volumeUsages(stats.Usage), filesystem: stats.Filesystem}, nil
}

// mountedTarget returns the directory at which the volume is mounted. Error: NOT_FOUND, also
// where another mount covers it, whose usage is not the volume's.
func (r *Reader) mountedTarget(v *staged.Volume, path string) (*mount.Target, error) {
	target, err := r.config.Dirs.Target(path)
	if observe.IsNoMountTarget(err) {
		return nil, errdefs.Errorf(errdefs.ErrNotFound, "volume %s: %w", v.VolumeID, err)
	}

	if err != nil {
		return nil, observe.Unknown(err, v, "mounted at "+path)
	}

	point, mounted, err := target.Mounted()
	if err == nil && mounted {
		if r.config.Prober.Observations().IsVolumesMount(v.VolumeID, path, point.ID) {
			return target, nil
		}

		mounted, err = r.config.Observer.IsMountOf(v, point)
	}

	if err == nil && mounted {
		return target, nil
	}

	target.Close()

	if err != nil {
		return nil, observe.Unknown(err, v, "mounted at "+path)
	}

	return nil, errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not mounted at %s any more", v.VolumeID, path)
}

func volumeUsages(usage mount.Usage) []*csi.VolumeUsage {
	amounts := []*csi.VolumeUsage{volumeUsage(csi.VolumeUsage_BYTES, usage.Bytes)}
	if usage.Inodes.Total > 0 {
		amounts = append(amounts, volumeUsage(csi.VolumeUsage_INODES, usage.Inodes))
	}

	return amounts
}

func volumeUsage(unit csi.VolumeUsage_Unit, amount mount.Amount) *csi.VolumeUsage {
	return &csi.VolumeUsage{Unit: unit, Total: amount.Total, Used: amount.Used, Available: amount.Available}
}
