package node

import (
	"context"
	"os"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/direct"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// parts are what a node consists of. Each uses only those before it, except that the checker asks the prober,
// which is made after it, whether a volume hangs. What they do is reported to the prober's memory, which is
// made first.
type parts struct {
	volumes staged.Volumes
	pools   staged.Pools
	loops   *loop.Loops
	observe *observe.Observer
	tuner   *tuning.Tuner
	freezer *freeze.Freezer
	devices *device.Devices
	ways    *access.Ways
	direct  *direct.Access
	// used answers by the ids of volumes.
	used    *access.Volumes
	checker *fsck.Checker
	prober  *probe.Prober
	own     *ownOperations
}

// newParts returns the parts, and the configuration of the ways in which volumes are used.
func newParts(config *Config, runtimes kata.Runtimes) (*parts, access.Config) {
	store, memory := config.Store, probe.NewMemory()
	p := &parts{
		volumes: staged.Volumes{Staged: staged.NewVolumes(store), Inline: staged.NewInlineRecords(store)},
		pools:   staged.Pools{Volumes: config.Pools, Ephemeral: config.Ephemeral, Storage: config.Storage},
		loops:   loop.NewLoops(config.Loops), own: &ownOperations{group: config.Operations},
		tuner: tuning.New(queue.New(queue.DefaultSysBlock), cgroup.NewLimiter(config.CgroupRoot, config.Log), store, config.Log),
	}
	p.observe = observe.New(config.Dirs, p.loops)
	p.freezer = freeze.New(freeze.Config{Limit: config.FreezeLimit, Loops: p.loops, OpenRoot: p.openRoot, Log: config.Log}, store)

	devices := device.Config{
		Pools: p.pools, Loops: p.loops, Volumes: p.volumes.Staged, Observer: p.observe, Tuner: p.tuner, Freezer: p.freezer,
		Assigned: device.AssignedBy(runtimes.Root), Events: memory, Log: config.Log,
	}
	p.devices = device.New(devices)

	results := fsck.NewResults(fsck.NewRecords(store), config.Health.Metrics, config.Log)
	common := access.Config{
		Config: devices, Devices: p.devices, Dirs: config.Dirs, Checker: results, Gate: memory.Gate(), MountEvents: memory,
		Run: config.Run, Point: config.Point,
	}
	shared := access.NewShared(common)
	p.direct = direct.New(direct.Config{Config: common, Runtimes: runtimes, Shared: shared})
	p.ways = access.New(shared, p.direct)
	p.used = access.NewVolumes(p.ways, p.volumes.Staged, p.freezer)
	p.addProbes(config, results, memory)

	return p, common
}

// addProbes adds what checks and probes volumes.
func (p *parts) addProbes(config *Config, results *fsck.Results, memory *probe.Memory) {
	p.checker = fsck.New(fsck.Config{
		Results: results, Volumes: p.used, Pools: config.Pools, Loops: p.loops, Period: config.CheckPeriod, Run: config.Run,
		Do: p.own.run,
		Known: fsck.Known{
			Registered: config.isRegistered, Ephemeral: p.volumes.IsInline, CheckNoGuest: p.direct.Guard.CheckNoGuest,
			CheckReachable: p.pools.CheckReachable, LastPeriod: memory.Observations().CheckPeriod,
			IsHanging: func(id string) bool { return p.prober.IsHanging(id) },
		},
	})
	p.prober = probe.New(probe.Config{
		Volumes: p.volumes, Stored: p.pools, Pools: config.Pools, Memory: memory, Checker: p.checker,
		Host:       probe.Host{Dirs: config.Dirs, Loops: p.loops, Observer: p.observe, Raw: p.devices.Raw()},
		Operations: config.Operations, Assignments: p.direct.Assignments, Revoke: p.revokeLost,
		Registered: config.Registered, Log: config.Log,
		Monitoring: probe.Monitoring{
			Health: config.Health, Sources: config.Sources, MarkFilesystem: config.MarkFilesystem, IOErrorHold: config.IOErrorHold,
		},
	})
	results.OnChange(p.prober.ProbeAfterOperation)
}

// stagedNow returns the record of a volume, and whether the volume really is staged: another program may have
// unmounted it.
func (p *parts) stagedNow(id string) (*staged.Volume, bool, error) {
	v, known := p.volumes.Staged.Get(id)
	if !known {
		return nil, false, nil
	}

	isStaged, err := p.ways.For(v).IsStaged(v)

	return v, isStaged, err
}

// openRoot opens the root of a staged volume's filesystem, nil where it is not mounted.
func (p *parts) openRoot(volumeID string) (*os.File, error) {
	v, known := p.volumes.Staged.Get(volumeID)
	if !known {
		return nil, nil //nolint:nilnil // documented
	}

	root, _, err := p.observe.OpenRoot(v)

	return root, err
}

// revokeLost revokes, in an operation, the assignments of a volume whose devices are gone.
func (p *parts) revokeLost(ctx context.Context, volumeID string) error {
	return p.own.run(ctx, volumeID, "revoke", func(context.Context) error {
		v, known := p.volumes.Staged.Get(volumeID)
		if !known {
			return nil
		}

		return p.direct.Assignments.RevokeLost(v)
	})
}
