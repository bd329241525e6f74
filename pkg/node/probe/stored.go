package probe

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// healthNotInUse returns the condition of a volume that is not in use here.
func (p *Prober) healthNotInUse(ctx context.Context, id string) (*health.Record, error) {
	view, _ := p.view(id)
	s := p.newState(view)
	exists, err := s.probeStored(ctx)

	if inject := p.config.Monitoring.Health.Inject; inject != nil {
		s.entries = append(s.entries, inject(monitorName, id)...)
	}

	switch {
	case exists && err == nil:
		return NewRecord(id, s.entries...), nil
	case err == nil:
		return nil, errdefs.Errorf(errdefs.ErrNotFound, "volume %s is not in a pool of this node", id)
	case exists || view.check != nil:
		return NewRecord(id, append(s.entries, TimedOut())...), nil
	default:
		return nil, errdefs.Errorf(errdefs.ErrUnavailable, "volume %s is not in use here and may be in a pool that does not answer: %w", id, err)
	}
}

// IsStored reports whether a pool has the volume. An error means that this is unknown.
func (p *Prober) IsStored(ctx context.Context, id string) (bool, error) {
	view, _ := p.view(id)
	stored, err := storedSearch{p, view}.inPools(ctx, p.config.Pools.Names())
	if stored.found {
		return true, nil
	}

	return false, err
}

// probeStored probes the pool object of a volume that is not in use here, adds the remembered
// findings, and reports whether the volume exists, also without its object. An error means that
// its object could not be probed.
func (s *probeState) probeStored(ctx context.Context) (exists bool, err error) {
	search := storedSearch{s.prober, s.view}
	expected, exists := search.expected(s.registered)

	names := s.prober.config.Pools.Names()
	if exists {
		names = []string{expected.Pool}
	}

	stored, err := search.inPools(ctx, names)

	switch {
	case stored.found:
		s.checkPeriod = stored.checkPeriod

		if stored.missingBytes(expected.CapacityBytes) {
			s.addTruncated("the volume")
		}
	case exists && err == nil:
		// It may have been deleted since its record was read: only the record that is still there
		// shows that the object is missing.
		s.registered = s.prober.config.registered(s.view.id)

		if _, exists = search.expected(s.registered); exists {
			s.addLostBacking(expected.Backing, movedOrDeleted, putBack)
		}
	}

	s.addRememberedFindings()

	return exists || stored.found, err
}

// storedSearch finds a volume that is not in use here in the pools.
type storedSearch struct {
	prober *Prober
	view   volumeView
}

// expected returns what a pool has to have of the volume, false where nothing says that the volume
// exists: neither the controller of this process nor, without one, a CO that wants to stage it.
func (s storedSearch) expected(registered volume.Registered) (volume.Registered, bool) {
	if s.prober.config.Registered != nil {
		return registered, registered.Pool != ""
	}

	failed, ok := s.prober.failures.get(s.view.id)
	if !ok || !s.prober.config.Pools.Has(failed.volume.Parameters.Pool) {
		return volume.Registered{}, false
	}

	return volume.Registered{Pool: failed.volume.Parameters.Pool, Backing: failed.volume.Parameters.Backing}, true
}

// storedVolume is what a pool has of a volume.
type storedVolume struct {
	found bool
	// isImage means that it is an image, and not a directory.
	isImage bool
	// imageBytes is the size of the image, and filesystemBytes that of the filesystem on it, 0
	// where there is none or it is unknown.
	imageBytes, filesystemBytes int64
	checkPeriod                 time.Duration
}

// missingBytes reports whether the image is shorter than what has to be in it.
func (v storedVolume) missingBytes(capacityBytes int64) bool {
	return v.isImage && v.imageBytes < max(capacityBytes, v.filesystemBytes)
}

// inPools returns what the first of the pools has of the volume. An error means that this is
// unknown, or for a volume that was found, what its image holds.
func (s storedSearch) inPools(ctx context.Context, names []string) (storedVolume, error) {
	if !volume.IsID(s.view.id) {
		return storedVolume{}, nil
	}

	ctx, cancel := context.WithTimeout(ctx, ResponseTimeout)
	defer cancel()

	var failures []error

	for _, name := range names {
		stored, err := s.inPool(ctx, name)
		if stored.found {
			return stored, err
		}

		failures = append(failures, err)
	}

	return storedVolume{}, errors.Join(failures...)
}

func (s storedSearch) inPool(ctx context.Context, name string) (storedVolume, error) {
	if err := s.prober.config.Stored.CheckReachable(name); err != nil {
		return storedVolume{}, err
	}

	stored, err := s.prober.config.Pools.Get(name)
	if err != nil {
		return storedVolume{}, err
	}

	release, err := s.prober.pools.Acquire(ctx, name)
	if err != nil {
		return storedVolume{}, err
	}

	view, fsType := s.view, s.fsType()

	return operation.Await(ctx, func() (storedVolume, error) {
		defer release()

		found, err := statStored(stored, view.id, fsType)
		if found.found && view.check != nil {
			found.checkPeriod = s.prober.config.Checker.PeriodOf(view.check)
		}

		return found, err
	})
}

// fsType returns the filesystem that the volume's image has to hold, "" where it is unknown.
func (s storedSearch) fsType() string {
	if s.view.check != nil {
		return s.view.check.FSType
	}

	failed, ok := s.prober.failures.get(s.view.id)
	if !ok || failed.volume.ExposesRawDevice() {
		return ""
	}

	return failed.volume.FSType()
}

// statStored returns what the pool has of the volume, with the size of that filesystem.
func statStored(stored *pool.Pool, id, fsType string) (storedVolume, error) {
	object, info, err := stored.Find(id)

	switch {
	case errors.Is(err, pool.ErrMissing):
		return storedVolume{}, nil
	case err != nil || !object.Backing.HasFilesystem():
		return storedVolume{found: err == nil}, err
	}

	size, err := filesystemBytes(stored, id, fsType)

	return storedVolume{found: true, isImage: true, imageBytes: info.Size(), filesystemBytes: size}, err
}

// filesystemBytes returns 0 where the image does not hold that filesystem any more: its check finds
// that. It also returns 0 for an image that is attached: a virtual machine may have it.
func filesystemBytes(stored *pool.Pool, id, fsType string) (int64, error) {
	used, err := filesystem.ByName(fsType, nil)
	if err != nil {
		return 0, nil
	}

	image, err := stored.Images.Open(id, os.O_RDONLY)
	if errors.Is(err, pool.ErrMissing) {
		return 0, nil
	}

	if err != nil {
		return 0, err
	}
	defer image.Close() // releases the lock

	if err := flock.TryLock(image, unix.LOCK_EX); errors.Is(err, unix.EWOULDBLOCK) {
		return 0, nil
	}

	size, err := used.SizeBytes(image)
	if errors.Is(err, filesystem.ErrNoSuperblock) {
		return 0, nil
	}

	return size, err
}
