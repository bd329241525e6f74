package freeze

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// DefaultLimit is far more than a point-in-time copy takes, and less than the time after
// which databases report a failed disk.
const DefaultLimit = 60 * time.Second

// ErrLimit is returned by WithFrozen when its function took longer than filesystems may
// stay frozen.
var ErrLimit = errors.New("filesystems may not stay frozen for longer")

// Config is what a Freezer needs.
type Config struct {
	// Limit is how long filesystems may stay frozen; 0 is DefaultLimit.
	Limit time.Duration
	Loops *loop.Loops
	// OpenRoot opens the root of the volume's filesystem wherever it is mounted; nil if it is
	// not mounted, or the volume is not staged on this node.
	OpenRoot func(volumeID string) (*os.File, error)
	Log      *slog.Logger
}

// Frozen is the record of a volume whose filesystem is about to be frozen. It is stored
// before the freeze, because a frozen filesystem outlives the driver.
type Frozen struct {
	VolumeID string `json:"volumeId"`
	FSType   string `json:"fsType"`
}

// RecordID returns the key of the record in the store.
func (f *Frozen) RecordID() string { return f.VolumeID }

// Check implements [staged.Record].
func (f *Frozen) Check() error {
	if !filesystem.IsSupported(f.FSType) {
		return fmt.Errorf("%w: fsType %q", staged.ErrRecord, f.FSType)
	}

	return volume.CheckID(f.VolumeID)
}

// NewRecords registers the collection of frozen filesystems in store, which must not be open yet.
func NewRecords(store *state.Store) *staged.Records[*Frozen] {
	return staged.NewRecords[*Frozen](store, "frozen")
}

// Freezer freezes filesystems for a limited time. It is safe for concurrent use; the calls
// for one volume must come one after the other.
type Freezer struct {
	config Config
	frozen *staged.Records[*Frozen]
	// retries are goroutines that retry failed thaws. They end when closing is closed.
	retries sync.WaitGroup
	closing chan struct{}
}

// New returns a Freezer that keeps its records in store, which must not be open yet.
func New(config Config, store *state.Store) *Freezer {
	if config.Limit <= 0 {
		config.Limit = DefaultLimit
	}

	return &Freezer{config: config, frozen: NewRecords(store), closing: make(chan struct{})}
}

// Load reads the records. It must be called once, after the store is opened.
func (f *Freezer) Load() { f.frozen.Load() }

// IsFrozen reports whether the volume's filesystem is recorded as frozen.
func (f *Freezer) IsFrozen(volumeID string) bool {
	_, frozen := f.frozen.Get(volumeID)

	return frozen
}

// Close ends the retries of failed thaws. The next start resumes them.
func (f *Freezer) Close() {
	close(f.closing)
	f.retries.Wait()
}

// Filesystem is a volume's mounted filesystem that is to be frozen. WithFrozen changes it.
type Filesystem struct {
	VolumeID, FSType string
	// Root is the open root of the filesystem. WithFrozen closes it.
	Root *os.File
	// abandoned means that its sync or its freeze did not return in time. The goroutine that waits
	// for it then thaws the filesystem and closes its root.
	abandoned bool
}

// Targets are the filesystems and devices of the volumes that are to be copied.
type Targets struct {
	// Filesystems are in the order of their volume ids, so that two calls never wait for
	// each other's volumes.
	Filesystems []Filesystem
	// Devices are the loop devices of raw-block and direct volumes. They are only synced.
	Devices []int
}

// Close closes the roots, if WithFrozen was not called.
func (t *Targets) Close() error {
	failures := make([]error, 0, len(t.Filesystems))

	for _, each := range t.Filesystems {
		failures = append(failures, each.Root.Close())
	}

	return errors.Join(failures...)
}

// WithFrozen calls within while the filesystems of targets are frozen and the devices
// synced. The caller must be in operations on all of the volumes.
//
// The filesystems are thawed however within ends, also by a panic. If ctx ends or the limit
// is reached, they are thawed at once and within's ctx ends; the result is then an error,
// whatever within returns: ErrLimit, or the cause of ctx.
func (f *Freezer) WithFrozen(ctx context.Context, targets Targets, within func(ctx context.Context) error) (err error) {
	window := &window{freezer: f, mounted: targets.Filesystems}
	window.close = sync.OnceValue(window.end)

	if err := window.prepare(ctx, targets.Devices); err != nil {
		return errors.Join(err, window.close())
	}

	// Without a frozen filesystem there is no writer to protect from a long wait.
	if len(window.mounted) == 0 {
		return within(ctx)
	}

	ctx, cancel := context.WithTimeoutCause(ctx, f.config.Limit, errdefs.Errorf(errdefs.ErrFailedPrecondition,
		"%w than %s; copy the volume while it is not in use", ErrLimit, f.config.Limit))
	defer cancel()

	defer func() { err = errors.Join(err, window.close()) }()

	if err := window.freeze(ctx); err != nil {
		return err
	}

	defer context.AfterFunc(ctx, func() { _ = window.close() })() // the deferred call returns the same error

	err = within(ctx)

	return errors.Join(context.Cause(ctx), err)
}

// syncDevice writes the page cache of a loop device back to its image.
func (f *Freezer) syncDevice(number int) error {
	device, err := f.config.Loops.Open(number)
	if err != nil {
		return err
	}
	defer device.Close()

	if err := device.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", device.Name(), err)
	}

	return nil
}
