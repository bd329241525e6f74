package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/controller"
	"github.com/touchstone-csi/touchstone/pkg/controller/metadata"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/operation/progress"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// components are a mode's services and what they are built of.
type components struct {
	store    *state.Store
	pools    *pool.Set
	services []service
	// removals removes deleted objects in the background.
	removals *removal.Queue
	// localNode is the node service; nil without one.
	localNode controller.LocalNode
	// admission decides what node and controller may provision from the pools.
	admission *pool.Admission
	progress  *progress.Registry
	// health are the settings of all monitors; storage is the monitor of the pools and
	// the state. poolChanged are called when a pool fails or is served again.
	health      health.Settings
	storage     *health.Monitor
	poolChanged []func(pool string)
	// views are the services' health views, the node's first; reports serves the health report. registry has the metrics.
	views    []view
	reports  health.Service
	registry prometheus.Registerer
	closers  []func() error
	// assigned serves the list of directly assigned volumes; without a list in a process
	// without a node.
	assigned kata.Service
	// registrar registers the driver with the kubelet; nil without it, and until calls
	// are served.
	registrar atomic.Pointer[registration.Registrar]
	// opener opens the pools.
	opener *opener
}

// service is one gRPC service that a mode serves beside Identity.
type service struct {
	name     string
	register func(grpc.ServiceRegistrar)
	// recover completes or undoes interrupted operations outside of the pools, and
	// recoverPool those in a pool, before that is served. observe follows.
	recover     func(context.Context) error
	recoverPool func(context.Context, *pool.Pool) error
	observe     func(context.Context) error
	// served, if not nil, is called when a pool is served from now on.
	served func(ctx context.Context, pool string)
	// watches go on beside the calls until their context ends.
	watches []func(context.Context)
	// drain, if not nil, closes the coalescing windows.
	drain func(context.Context) error
}

// build opens the pools and makes the services of config's mode:
//
//	all         Identity, Health, DirectVolumes, Controller, GroupController, SnapshotMetadata, Progress, Node
//	controller  Identity, Health, Controller, GroupController, SnapshotMetadata, Progress
//	node        Identity, Health, DirectVolumes, Node
//
// Their metrics are in the registry.
func build(ctx context.Context, config *Config, ops *operation.Group, registry prometheus.Registerer) (*components, error) {
	owner := fmt.Sprintf("%s at %s, mode %s", config.DriverName, config.Endpoint, config.Mode)
	r := &components{
		store:     state.New(config.StateDir, state.Options{Owner: owner, Log: config.Log}),
		progress:  progress.NewRegistry(config.Log),
		removals:  removal.New(config.Log),
		health:    config.healthSettings(registry),
		admission: &pool.Admission{Overcommit: config.Overcommit},
		registry:  registry,
	}

	r.opener = newOpener(ctx, config, r.store, r.health, r.removals)
	r.pools, r.storage = r.opener.set, r.opener.monitor(r.health)
	r.closers = append(r.closers, r.opener.close)
	r.removals.OnChange(func(name string) { r.storage.Suspect(health.PoolSubject(name)) })

	err := r.registry.Register(health.NewUsage(r.storage, "pool", health.PoolSubject("")))

	// The node is first: the controller asks it whether a volume is in use.
	if err == nil && config.serves(ModeNode) {
		err = r.addNode(config, ops)
	}

	if err == nil && config.serves(ModeController) {
		err = r.addController(config, ops)
	}

	if err != nil {
		return nil, errors.Join(err, r.close())
	}

	return r, nil
}

func (r *components) addNode(config *Config, ops *operation.Group) error {
	allowed, err := mount.NewAllowedDirs(append([]string{config.KubeletDir}, config.AllowPaths...)...)
	if err != nil {
		return err
	}

	r.closers = append(r.closers, func() error {
		allowed.Close()

		return nil
	})

	ephemeral := r.pools.Ephemeral()
	sources, marks := r.nodeSources(config, ephemeral)

	direct, err := config.direct()
	if err != nil {
		return err
	}

	served, err := node.New(node.Config{
		NodeID: config.NodeID, Segments: config.segments(), MaxVolumes: config.MaxVolumesPerNode, Log: config.Log,
		Ephemeral: ephemeral, MaxVolumeBytes: config.MaxVolumeBytes, Admission: r.admission,
		EphemeralMkfsOptions: config.EphemeralMkfsOptions,
		Capabilities:         config.capabilities, StagingDir: filepath.Join(config.KubeletDir, "plugins", config.DriverName, "staging"),
		CgroupRoot: config.CgroupRoot, Health: r.health, Sources: sources, MarkFilesystem: markWith(marks),
		Storage: r.storage, IOErrorHold: config.IOErrorHold, CheckPeriod: config.CheckPeriod, Direct: direct,
	}, r.store, r.pools, ops, allowed, loop.NewLoops(loop.LoopsOptions{First: config.FirstLoopDevice}))
	if err != nil {
		return err
	}

	r.closers = append(r.closers, served.Close)
	r.localNode = served
	r.poolChanged = append(r.poolChanged, served.Prober().SuspectPool)
	r.views = append(r.views, view{"node", served.Prober().Monitor(), served.Prober().Reports})
	r.reports.Check, r.assigned.List = served.Checker().Check, served.Access().DirectVolumes
	added := service{
		name:     csi.Node_ServiceDesc.ServiceName,
		register: func(to grpc.ServiceRegistrar) { csi.RegisterNodeServer(to, served) },
		recover:  served.Recover, recoverPool: served.RecoverPool, observe: served.Observe, served: served.PoolServed,
		watches: []func(context.Context){served.Prober().Monitor().Run, served.Checker().Run},
	}

	if !config.serves(ModeController) {
		// A controller in this process notifies the node directly.
		added.watches = append(added.watches, served.WatchAttributes)
	}

	r.services = append(r.services, added)

	return r.registry.Register(health.NewUsage(served.Prober().Monitor(), "volume", ""))
}

func (r *components) addController(config *Config, ops *operation.Group) error {
	directByClaim, err := r.openClaims(config)
	if err != nil {
		return err
	}

	served, err := controller.New(controller.Config{
		NodeID: config.NodeID, Nodes: config.Nodes,
		Segments: record.NewSegments(config.segments()), Shared: config.Shared,
		MaxVolumeBytes: config.MaxVolumeBytes, MaxVolumesPerNode: config.MaxVolumesPerNode,
		Capabilities: config.capabilities, LocalNode: r.localNode, Admission: r.admission, Log: config.Log,
		CoalesceWindow: config.CoalesceWindow, CopyGrace: config.CopyGrace, Progress: r.progress,
		Removals: r.removals,
		Health:   r.health, Sources: r.controllerSources(), Storage: r.storage, DirectByClaim: directByClaim,
	}, r.store, r.pools, ops)
	if err != nil {
		return err
	}

	groups, snapshotMetadata := controller.NewGroups(served), metadata.New(served, config.MetadataIdle)

	// A pool has one controller.
	r.opener.owner = fmt.Sprintf("%s at %s, mode %s, node %s, state in %s",
		config.DriverName, config.Endpoint, config.Mode, config.NodeID, config.StateDir)
	r.poolChanged = append(r.poolChanged, served.SuspectPool)
	r.views = append(r.views, view{"controller", served.Health(), served.Reports})
	r.services = append(r.services, service{
		name: csi.Controller_ServiceDesc.ServiceName,
		register: func(to grpc.ServiceRegistrar) {
			csi.RegisterControllerServer(to, served)
			csi.RegisterGroupControllerServer(to, groups)
			csi.RegisterSnapshotMetadataServer(to, snapshotMetadata)
			r.progress.Register(to)
		},
		recover: served.Recover, recoverPool: served.RecoverPool, observe: served.Observe,
		watches: []func(context.Context){served.Health().Run},
		drain: func(ctx context.Context) error {
			return errors.Join(snapshotMetadata.Drain(ctx), served.Drain(ctx))
		},
	})

	return nil
}

// segments is the topology of this machine, empty when volumes are reachable
// from everywhere.
func (c *Config) segments() map[string]string {
	segments := maps.Clone(c.Topology)
	if segments == nil {
		segments = map[string]string{}
	}

	if !c.capabilities.Has(capability.VolumeAccessibilityConstraints) {
		return map[string]string{}
	}

	if !c.Shared {
		segments[record.NodeSegmentKey] = c.NodeID
	}

	return segments
}

// open reads the state and puts right what the last run left.
func (r *components) open(ctx context.Context) error {
	if err := r.store.Open(ctx); err != nil {
		return err
	}

	for _, each := range r.services {
		if err := each.recover(ctx); err != nil {
			return fmt.Errorf("recover %s: %w", each.name, err)
		}
	}

	r.opener.services = r.services
	if err := r.opener.openAll(ctx); err != nil {
		return err
	}

	// The services consult it before they probe objects in a pool.
	if err := r.storage.Relist(ctx); err != nil {
		return fmt.Errorf("probe the pools: %w", err)
	}

	for _, each := range r.services {
		if err := each.observe(ctx); err != nil {
			return fmt.Errorf("recover %s: %w", each.name, err)
		}
	}

	return nil
}

// begin starts the background goroutines, and returns a function that waits for their
// end after ctx has ended.
func (r *components) begin(ctx context.Context) (wait func()) {
	var running sync.WaitGroup

	running.Go(func() { r.storage.Run(ctx) })
	running.Go(func() { r.removals.Run(ctx) })

	for _, name := range r.pools.Names() {
		running.Go(func() { r.followPool(ctx, name) })
	}

	if registrar := r.registrar.Load(); registrar != nil {
		running.Go(func() { registrar.Run(ctx) })
	}

	for _, each := range r.services {
		for _, watch := range each.watches {
			running.Go(func() { watch(ctx) })
		}
	}

	return running.Wait
}

// drain closes the coalescing windows, so that their requests become operations.
func (r *components) drain(ctx context.Context) error {
	var failures []error

	for _, each := range r.services {
		if each.drain != nil {
			failures = append(failures, each.drain(ctx))
		}
	}

	return errors.Join(failures...)
}

// check returns why the services cannot work, or nil. A failed pool is a condition and
// not an error: the others are served.
func (r *components) check(context.Context) error { return r.store.Err() }

// close gives back what build and open have taken, the last first.
func (r *components) close() error {
	failures := []error{r.store.Close()}
	for _, closer := range slices.Backward(r.closers) {
		failures = append(failures, closer())
	}

	return errors.Join(failures...)
}

// register registers all services.
func (d *Driver) register(server grpc.ServiceRegistrar) {
	csi.RegisterIdentityServer(server, d.identity)
	d.components.reports.Register(server)

	if d.components.assigned.List != nil {
		d.components.assigned.Register(server)
	}

	for _, each := range d.components.services {
		each.register(server)
	}

	if d.config.Also != nil {
		d.config.Also(server)
	}
}
