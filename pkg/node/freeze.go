package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// DefaultFreezeLimit is far more than an instant copy takes, and less than what
// makes a database think that its disk has died.
const DefaultFreezeLimit = 60 * time.Second

// ErrFreezeLimit is returned by WithFrozen when what was to be done took longer
// than filesystems may stay frozen.
var ErrFreezeLimit = errors.New("filesystems may not stay frozen for longer")

// Frozen is a volume whose filesystem is about to be frozen. The record is there
// before the filesystem is, since a frozen one outlives the driver.
type Frozen struct {
	VolumeID string `json:"volumeId"`
	FSType   string `json:"fsType"`
}

func (f *Frozen) RecordID() string { return f.VolumeID }

// Freezable says whether WithFrozen keeps all that is written to the volume on
// this node from changing it: it is used here as a filesystem on an image, or
// only read, or not used here at all.
func (s *Service) Freezable(volumeID string) bool {
	use, known := s.stagedVolumes.Get(volumeID)
	if !known || use.IsReadOnly() || use.IsImage() && !use.ExposesRawDevice() {
		return true
	}

	_, used, err := s.InUse(volumeID)

	return err == nil && !used
}

// WithFrozen calls within while the filesystems of the volumes are at rest, as
// far as they are on images and mounted for writing on this node. Raw-block
// volumes that are in use here have their devices synced; others are passed
// over. The caller is within operations on all of the volumes.
//
// However within ends, by a panic too, the filesystems are thawed. When ctx ends
// or the limit is reached they are thawed at once, within's ctx ends, and what
// it did is a failure whatever it returns: ErrFreezeLimit, or ctx's error.
func (s *Service) WithFrozen(ctx context.Context, volumeIDs []string, within func(ctx context.Context) error) (err error) {
	window, err := s.openWindow(volumeIDs)
	if err != nil {
		return err
	}

	if err := window.settle(ctx); err != nil {
		return errors.Join(err, window.close())
	}

	// Where nobody waits, nobody is in a hurry.
	if len(window.mounted) == 0 {
		return within(ctx)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, s.config.FreezeLimit, rpc.Errorf(codes.FailedPrecondition,
		"%w than %s; copy the volume while it is not in use", ErrFreezeLimit, s.config.FreezeLimit))
	defer cancel()

	defer func() { err = errors.Join(err, window.close()) }()

	if err := window.freeze(ctx); err != nil {
		return err
	}

	stop := context.AfterFunc(ctx, func() { _ = window.close() }) // the deferred one returns the same

	err = within(ctx)

	if !stop() {
		return errors.Join(context.Cause(ctx), err)
	}

	return err
}

// window is the time for which filesystems are frozen.
type window struct {
	service *Service
	// mounted are sorted by volume id, so that two windows never wait for each
	// other's volumes crosswise.
	mounted []*rooted
	// blocks are the numbers of loop devices of raw-block volumes.
	blocks []int
	// recorded says that those mounted have records of this window.
	recorded bool
	// frozen is how many of those mounted are frozen, since when.
	frozen int
	since  time.Time
	close  func() error
}

// rooted is a volume and the open root of its filesystem.
type rooted struct {
	use  *staged.Volume
	root *os.File
	// givenUp means that its freeze did not come about in time; whatever becomes
	// of it sees to the rest.
	givenUp bool
}

// openWindow finds what there is to freeze of the volumes.
func (s *Service) openWindow(volumeIDs []string) (*window, error) {
	w := &window{service: s}
	w.close = sync.OnceValue(w.end)

	sorted := slices.Clone(volumeIDs)
	slices.Sort(sorted)

	for _, id := range slices.Compact(sorted) {
		use, known := s.stagedVolumes.Get(id)
		if !known || !use.IsImage() || use.IsReadOnly() {
			continue
		}

		if use.ExposesRawDevice() {
			numbers, err := s.numbers(use)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("freeze volume %s: %w", id, err), w.close())
			}

			w.blocks = append(w.blocks, numbers...)

			continue
		}

		root, err := s.openWritable(use)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("freeze volume %s: %w", id, err), w.close())
		}

		if root != nil {
			w.mounted = append(w.mounted, &rooted{use: use, root: root})
		}
	}

	return w, nil
}

// openWritable opens the root of the volume's filesystem, nil unless it is
// mounted and may be written.
func (s *Service) openWritable(use *staged.Volume) (*os.File, error) {
	root, point, err := s.openRoot(use)
	if errors.Is(err, unix.EIO) {
		// An XFS that has shut down answers nothing else.
		return nil, rpc.Errorf(codes.FailedPrecondition,
			"its %s has stopped working; see the kernel's log, unstage the volume and stage it again: %w", use.FSType(), err)
	}

	if err != nil || root == nil {
		return nil, err
	}

	err = s.checkHealth(use, point)
	if err == nil && !point.SuperReadOnly {
		return root, nil
	}

	return nil, errors.Join(err, root.Close())
}

// openRoot opens the root of the volume's filesystem wherever it is mounted, nil
// where it is not.
func (s *Service) openRoot(use *staged.Volume) (*os.File, mount.Point, error) {
	root, point, err := s.openMounted(use, use.StagingPath)

	for _, publication := range use.Publications {
		if root != nil || err != nil {
			break
		}

		root, point, err = s.openMounted(use, publication.TargetPath)
	}

	return root, point, err
}

// openMounted opens what is mounted at a path, nil unless it is the volume.
func (s *Service) openMounted(use *staged.Volume, at string) (*os.File, mount.Point, error) {
	place, err := s.places.Find(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, mount.Point{}, nil
	}

	if err != nil {
		return nil, mount.Point{}, err
	}
	defer place.Close()

	// First without touching it: what else is mounted there may hang.
	point, mounted, err := place.Mounted()
	if err != nil || !mounted {
		return nil, mount.Point{}, err
	}

	if ours, err := s.ours(use, point); err != nil || !ours {
		return nil, mount.Point{}, err
	}

	root, point, err := place.OpenMount()
	if err != nil {
		return nil, mount.Point{}, err
	}

	if ours, err := s.ours(use, point); err != nil || !ours {
		return nil, mount.Point{}, errors.Join(err, root.Close())
	}

	return root, point, nil
}

// checkHealth returns FAILED_PRECONDITION of a filesystem that has given up: a
// copy would be of what happens to be on its disk.
func (s *Service) checkHealth(use *staged.Volume, point mount.Point) error {
	options, err := mount.ParseFlags(use.Capability.MountFlags)
	if err != nil {
		return err
	}

	sick := point.HasSuperOption("emergency_ro") || point.HasSuperOption("shutdown") ||
		point.SuperReadOnly && !options.ReadOnly()
	if !sick {
		return nil
	}

	return rpc.Errorf(codes.FailedPrecondition,
		"its %s at %s was mounted for writing and has stopped writing (%v); see the kernel's log, unstage the volume and stage it again",
		use.FSType(), point.Path, point.SuperOptions)
}

// settle writes out what can be written before anybody has to wait, and records
// what is about to be frozen.
func (w *window) settle(ctx context.Context) error {
	for _, number := range w.blocks {
		if err := w.service.syncDevice(number); err != nil {
			return err
		}
	}

	if len(w.mounted) == 0 {
		return nil
	}

	records := make([]*Frozen, 0, len(w.mounted))

	for _, volume := range w.mounted {
		if _, left := w.service.frozen.Get(volume.use.VolumeID); left {
			return rpc.Errorf(codes.Unavailable, "freeze volume %s: it is still frozen, since thawing it failed; that is being retried",
				volume.use.VolumeID)
		}

		if err := filesystem.Sync(volume.root); err != nil {
			return fmt.Errorf("freeze volume %s: %w", volume.use.VolumeID, err)
		}

		records = append(records, &Frozen{VolumeID: volume.use.VolumeID, FSType: volume.use.FSType()})
	}

	w.recorded = true

	return w.service.frozen.PutAll(ctx, records)
}

func (s *Service) syncDevice(number int) error {
	device, err := s.loops.Open(number)
	if err != nil {
		return err
	}
	defer device.Close()

	if err := device.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", device.Name(), err)
	}

	return nil
}

func (w *window) freeze(ctx context.Context) error {
	w.since = time.Now()

	for _, volume := range w.mounted {
		if err := w.service.freezeOne(ctx, volume); err != nil {
			return fmt.Errorf("freeze volume %s: %w", volume.use.VolumeID, err)
		}

		w.frozen++
	}

	return nil
}

// freezeOne returns when ctx ends, too: a disk that hangs keeps a freeze waiting,
// and the other volumes frozen. Should that freeze ever come about, it is undone.
func (s *Service) freezeOne(ctx context.Context, volume *rooted) error {
	done := make(chan error)

	go func() {
		err := filesystem.Freeze(volume.root)

		select {
		case done <- err:
		case <-ctx.Done():
			if err == nil {
				err = s.thaw(volume.use.VolumeID, volume.root)
			}

			s.config.Log.Warn("a freeze that was given up has ended", "volume", volume.use.VolumeID,
				"error", errors.Join(err, volume.root.Close()))
		}
	}()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		volume.givenUp = true

		return context.Cause(ctx) //nolint:wrapcheck // the caller names the volume
	}
}

// end thaws what is frozen, the last first, and gives back what is open.
func (w *window) end() error {
	var failures []error

	for i, volume := range slices.Backward(w.mounted) {
		switch {
		case volume.givenUp:
			continue
		case i < w.frozen:
			failures = append(failures, w.service.thaw(volume.use.VolumeID, volume.root))
		case w.recorded:
			failures = append(failures, w.service.frozen.DeleteLazily(volume.use.VolumeID))
		}

		failures = append(failures, volume.root.Close())
	}

	if w.frozen > 0 {
		w.service.config.Log.Debug("filesystems were frozen", "volumes", w.frozen,
			"first", w.mounted[0].use.VolumeID, "window", time.Since(w.since))
	}

	return errors.Join(failures...)
}
