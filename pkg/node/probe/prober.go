package probe

import (
	"context"
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
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// DefaultIOErrorHold is how long a volume is unhealthy after its last I/O error by default.
const DefaultIOErrorHold = 10 * time.Minute

// monitorName names the node's view of volumes in metrics and reports.
const monitorName = "node"

// Volumes are the volumes in use on this node (staged.Volumes). Its ids are those that the CO uses.
type Volumes interface {
	// Get returns the volume that is staged or published here, and the record it was made
	// of: another record means that an operation has changed the volume.
	Get(id string) (v *staged.Volume, record staged.Record, ok bool)
	// IDs returns the ids of these volumes.
	IDs() []string
	// OfObject returns the volume whose pool object has the name.
	OfObject(name string) string
}

// Stored finds the pools of volumes (staged.Pools).
type Stored interface {
	// Of returns the pool that stores a volume in use.
	Of(v *staged.Volume) (*pool.Pool, error)
	// CheckReachable returns pool.ErrUnreachable for a pool that is known to be unreachable.
	CheckReachable(poolName string) error
}

// RawDevices are the devices of raw-block and direct volumes (device.Raw).
type RawDevices interface {
	// Found returns the devices of a volume.
	Found(volumeID string) (device.Attachments, error)
	// Had reports whether the loop device was attached for the volume, also where
	// another image is attached to it by now.
	Had(volumeID string, number int) bool
}

// Assignments are those of direct volumes (direct.Assignments).
type Assignments interface {
	// GuestUsage asks the guest of a direct volume for its usage.
	GuestUsage(ctx context.Context, v *staged.Volume, deviceBytes int64) (mount.Usage, error)
	// HasLost reports whether a device that is gone is still assigned.
	HasLost(v *staged.Volume) (bool, error)
}

// Config has what a Prober depends on.
type Config struct {
	Host

	Volumes     Volumes
	Stored      Stored
	Pools       *pool.Set
	Memory      *Memory
	Checker     *fsck.Checker
	Operations  *operation.Group
	Assignments Assignments
	// Revoke revokes, in an operation on the volume, the assignments of devices that are gone.
	Revoke func(ctx context.Context, id string) error
	// Registered returns the record of the controller in this process, false for a volume that
	// does not exist; nil without such a controller.
	Registered func(id string) (volume.Registered, bool)
	Monitoring Monitoring
	Log        *slog.Logger
}

// Host is where volumes are mounted and attached.
type Host struct {
	Dirs     *mount.AllowedDirs
	Loops    *loop.Loops
	Observer *observe.Observer
	Raw      RawDevices
}

// Monitoring is how volumes are monitored.
type Monitoring struct {
	// Health are the settings of the monitor, and Sources its sources of events.
	Health  health.Settings
	Sources []health.Source
	// MarkFilesystem requests events about the errors of the filesystem that root is in; nil
	// if no source supports that.
	MarkFilesystem func(root *os.File) error
	// IOErrorHold is how long a volume is unhealthy after its last I/O error.
	IOErrorHold time.Duration
}

// Prober probes the volumes of a node. It is safe for concurrent use.
type Prober struct {
	*Memory

	config  Config
	monitor *health.Monitor
	// pools limits the probes in each pool.
	pools    *pool.Limiter
	failures *failedStagings
}

// New returns a Prober. Its Monitor must be run.
func New(config Config) *Prober {
	p := &Prober{
		Memory: config.Memory, config: config, pools: pool.NewLimiter(),
		failures: newFailedStagings(),
	}
	p.monitor = health.New(health.Config{
		Settings: config.Monitoring.Health, Name: monitorName, List: p.relist, Probe: p.probe,
		Concern: p.volumesAffectedBy, Sources: config.Monitoring.Sources, Log: config.Log,
	})

	return p
}

// Monitor has the conditions of the volumes in use on this node, and of those that a check
// here found damaged.
func (p *Prober) Monitor() *health.Monitor { return p.monitor }

// ProbeAfterOperation probes the volume after an operation that has changed it.
func (p *Prober) ProbeAfterOperation(id string) {
	if _, ok := p.view(id); ok {
		p.monitor.ProbeSoon(id)

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
	if view.volume, view.record, inUse = p.config.Volumes.Get(id); inUse {
		return view, true
	}

	_, failed := p.failures.get(id)

	held := p.config.Monitoring.ioErrorHeldFor(p.observations.last(id).ioErrorAt) > 0

	return view, view.check.HasFinding() || failed || p.busy.isHeld(id) || held
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
	ids := p.config.Volumes.IDs()

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
// unhealthy, 0 for none.
func (m Monitoring) ioErrorHeldFor(at time.Time) time.Duration {
	return max(0, m.IOErrorHold-time.Since(at))
}
