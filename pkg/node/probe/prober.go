package probe

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// DefaultIOErrorHold is how long a volume is unhealthy after its last I/O error by default.
const DefaultIOErrorHold = 10 * time.Minute

// monitorName names the node's view of volumes in metrics and reports.
const monitorName = "node"

// Volumes is the node, as far as probes depend on it. Its ids are those that the CO uses.
type Volumes interface {
	// InUse returns the volume that is staged or published here, and the record it was made
	// of: another record means that an operation has changed the volume.
	InUse(id string) (volume *staged.Volume, record staged.Record, ok bool)
	// IDsInUse returns the ids of these volumes.
	IDsInUse() []string
	// PoolOf returns the pool that stores a volume in use.
	PoolOf(volume *staged.Volume) (*pool.Pool, error)
	// RawDevices returns the devices of a raw-block or direct volume.
	RawDevices(volumeID string) (RawDevices, error)
	// HadRawDevice reports whether the loop device was attached for the volume, also where
	// another image is attached to it by now.
	HadRawDevice(volumeID string, number int) bool
	// GuestUsage asks the guest of a direct volume for its usage.
	GuestUsage(ctx context.Context, volume *staged.Volume, deviceBytes int64) (mount.Usage, error)
	// RevokeLostDevices revokes the publications of a direct volume whose device is gone.
	RevokeLostDevices(ctx context.Context, volume *staged.Volume) error
}

// RawDevices are the loop devices of a raw-block or direct volume: the one of its staging,
// and the second one of its read-only publications. A number of -1 is none.
type RawDevices struct {
	Staged, ReadOnly                 int
	StagedSequence, ReadOnlySequence uint64
}

// noDevice is the number of no loop device.
const noDevice = -1

// Config has what a Prober depends on.
type Config struct {
	Volumes    Volumes
	Checker    *fsck.Checker
	Pools      *pool.Set
	Dirs       *mount.AllowedDirs
	Loops      *loop.Loops
	Observer   *observe.Observer
	Operations *operation.Group
	// Health are the settings of the monitor, and Sources its sources of events.
	Health  health.Settings
	Sources []health.Source
	// MarkFilesystem requests events about the errors of the filesystem that root is in; nil
	// if no source supports that.
	MarkFilesystem func(root *os.File) error
	// Registered returns the record of the controller in this process, false for a volume that
	// does not exist; nil without such a controller.
	Registered func(id string) (volume.Registered, bool)
	// Storage monitors the pools; nil if nothing does.
	Storage *health.Monitor
	// IOErrorHold is how long a volume is unhealthy after its last I/O error.
	IOErrorHold time.Duration
	Log         *slog.Logger
}

// Prober probes the volumes of a node. It is safe for concurrent use.
type Prober struct {
	config       Config
	monitor      *health.Monitor
	observations *Observations
	gate         *Gate
	// pools limits the probes in each pool.
	pools    *pool.Limiter
	busy     *busyVolumes
	failures *failedStagings
}

// New returns a Prober. Its Monitor must be run.
func New(config Config) *Prober {
	p := &Prober{
		config: config, observations: NewObservations(), gate: NewGate(), pools: pool.NewLimiter(),
		busy: newBusyVolumes(), failures: newFailedStagings(),
	}
	p.monitor = health.New(health.Config{
		Settings: config.Health, Name: monitorName, List: p.relist, Probe: p.probe,
		Concern: p.volumesAffectedBy, Sources: config.Sources, Log: config.Log,
	})

	return p
}

// Monitor has the conditions of the volumes in use on this node, and of those that a check
// here found damaged.
func (p *Prober) Monitor() *health.Monitor { return p.monitor }

// Observations are the last observations of the volumes.
func (p *Prober) Observations() *Observations { return p.observations }

// CloseGate keeps probes out of a volume that is about to be unmounted until reopen is
// called. See Gate.Close.
func (p *Prober) CloseGate(volumeID string) (reopen func()) { return p.gate.Close(volumeID) }

// Attached records the volume's new device before anything uses it. isSecond means that it is
// a raw-block volume's second device, for its read-only publications.
func (p *Prober) Attached(record *staged.Volume, device *loop.Device, imageBytes int64, isSecond bool) {
	if isSecond {
		p.observations.AddReader(record.VolumeID, device.Number)

		return
	}

	p.observations.Attach(record.VolumeID, Attachment{Number: device.Number, Sequence: device.Sequence},
		imageBytes, record.Ephemeral)
}

// Detached drops the mapping of a device that is about to be detached.
func (p *Prober) Detached(number int) { p.observations.Detach(number) }

// ProbeAfterOperation probes the volume after an operation that has changed it.
func (p *Prober) ProbeAfterOperation(id string) {
	if _, ok := p.view(id); ok {
		p.monitor.Suspect(id)

		return
	}

	p.busy.forget(id)
	p.monitor.Forget(id)
	p.forgetUnneeded(id)
}

// SuspectPool probes all volumes of a pool that has become reachable or unreachable. While
// it is unreachable its volumes are not probed, and their absence is not known.
func (p *Prober) SuspectPool(poolName string) {
	p.config.Checker.ChangedPool(poolName)

	for _, id := range p.ids() {
		if view, ok := p.view(id); ok && view.poolName() == poolName {
			p.monitor.Suspect(id)
		}
	}
}

// CheckReachable returns pool.ErrUnreachable for a pool that is known to be unreachable.
func (p *Prober) CheckReachable(poolName string) error {
	if p.config.Storage == nil {
		return nil
	}

	record, ok := p.config.Storage.Get(health.PoolSubject(poolName))
	if ok && record.Has(health.PoolUnreachable) {
		return fmt.Errorf("pool %q: %w", poolName, pool.ErrUnreachable)
	}

	return nil
}

// relist returns the volumes to probe in a relist. It also has all checks planned again.
func (p *Prober) relist() []string {
	p.config.Checker.ChangedPool("")

	return p.ids()
}

// volumeView is what the node's records have about a volume.
type volumeView struct {
	// id is the CO's.
	id string
	// volume and record are nil where the volume is not in use here.
	volume *staged.Volume
	record staged.Record
	// check is nil where the volume was never checked here.
	check *fsck.Result
}

// view returns false where the records give no reason to probe the volume.
func (p *Prober) view(id string) (volumeView, bool) {
	view := volumeView{id: id, check: p.config.Checker.Get(id)}

	var inUse bool
	if view.volume, view.record, inUse = p.config.Volumes.InUse(id); inUse {
		return view, true
	}

	_, failed := p.failures.get(id)

	return view, view.check.HasFinding() || failed || p.busy.isHeld(id) || p.ioErrorHeldFor(p.observations.last(id).ioErrorAt) > 0
}

// poolName returns "" where it is unknown.
func (v *volumeView) poolName() string {
	switch {
	case v.volume != nil:
		return v.volume.Parameters.Pool
	case v.check != nil:
		return v.check.Pool
	default:
		return ""
	}
}

// ids returns the volumes that have a view.
func (p *Prober) ids() []string {
	ids := p.config.Volumes.IDsInUse()

	for _, check := range p.config.Checker.All() {
		if check.HasFinding() {
			ids = append(ids, check.VolumeID)
		}
	}

	ids = append(ids, p.observations.withIOErrors()...)
	ids = append(ids, p.busy.ids()...)
	ids = append(ids, p.failures.ids()...)
	slices.Sort(ids)

	// A volume may be in use, damaged, busy, have I/O errors, and fail to be staged.
	ids = slices.Compact(ids)

	return slices.DeleteFunc(ids, func(id string) bool {
		_, ok := p.view(id)

		return !ok
	})
}

// ioErrorHeldFor returns for how long an I/O error of that time still makes the volume
// unhealthy.
func (p *Prober) ioErrorHeldFor(at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}

	return max(0, p.config.IOErrorHold-time.Since(at))
}
