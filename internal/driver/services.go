package driver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/metadata"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/node/persistent"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// shared is what the services of a process share.
type shared struct {
	config     *Config
	store      *state.Store
	pools      *pool.Set
	operations *operation.Group
	admission  *pool.Admission
	// removals removes deleted objects in the background.
	removals *removal.Queue
	// storage monitors the pools and the state.
	storage *health.Monitor
	// point is called at the points of operations; nil means no calls.
	point operation.Hook
}

// components are a mode's services and what they are built of.
type components struct {
	shared

	services []service
	// records are those of the controller, nil without one.
	records *catalog.Catalog
	// localNode is the node service; nil without one.
	localNode controller.LocalNode
	// poolChanged are called when a pool fails or is served again.
	poolChanged []func(poolName string)
	// watches go on beside the calls until their context ends, and drains close the coalescing windows.
	watches []func(context.Context)
	drains  []func(context.Context) error
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
	// recoverPool those in a pool, before that is served. observe, if not nil, follows.
	recover     func(context.Context) error
	recoverPool func(context.Context, *pool.Pool) error
	observe     func(context.Context) error
	// served, if not nil, is called when a pool is served from now on.
	served func(ctx context.Context, poolName string)
}

// build makes the services of config's mode; it opens neither pools nor state:
//
//	all         Identity, Health, DirectVolumes, Controller, GroupController, SnapshotMetadata, Progress, Node, PersistentMounts
//	controller  Identity, Health, Controller, GroupController, SnapshotMetadata, Progress
//	node        Identity, Health, DirectVolumes, Node, PersistentMounts
//
// Their metrics are in the registry.
func build(
	ctx context.Context, config *Config, ops *operation.Group, lab hooks, registry prometheus.Registerer,
) (*components, error) {
	config.Health.Metrics, config.Health.History = health.NewMetrics(registry), health.NewHistory(historySize)
	config.Health.Inject = lab.conditions

	owner := fmt.Sprintf("%s at %s, mode %s", config.DriverName, config.Endpoint, config.Mode)
	r := &components{
		shared: shared{
			config: config, pools: pool.NewSet(config.Pools), operations: ops, point: lab.point,
			store:     state.New(config.StateDir, state.Options{Owner: owner, Log: config.Log}),
			admission: &pool.Admission{Overcommit: config.Overcommit, Capacities: config.Capacities},
			removals:  removal.New(config.Log),
		},
		registry: registry, watches: lab.watches,
	}

	r.opener = newOpener(ctx, r.shared)
	r.storage = r.opener.monitor()
	r.closers = append(append(r.closers, r.opener.close), lab.close...)
	r.removals.OnChange(func(name string) { r.storage.Suspect(health.PoolSubject(name)) })

	if err := r.addServices(config); err != nil {
		return nil, errors.Join(err, r.close())
	}

	return r, nil
}

// addServices adds the node first: the controller asks it whether a volume is in use.
func (r *components) addServices(config *Config) error {
	if err := r.registry.Register(health.NewUsage(r.storage, "pool", health.PoolSubject(""))); err != nil {
		return err
	}

	switch {
	case !config.serves(ModeNode):
	case config.SimulateNode:
		r.addSimulatedNode()
	default:
		if err := r.addNode(config); err != nil {
			return err
		}
	}

	if !config.serves(ModeController) {
		return nil
	}

	return r.addController(config)
}

func (r *components) addNode(config *Config) error {
	allowed, err := mount.NewAllowedDirs(append([]string{config.KubeletDir}, config.AllowPaths...)...)
	if err != nil {
		return err
	}

	ephemeral := r.pools.Ephemeral()
	sources, mark := r.nodeSources(config, ephemeral)

	settings := node.Config{
		Common: r.nodeConfig(), Settings: config.Node, MaxVolumeBytes: config.MaxVolumeBytes, Admission: r.admission,
		Health: config.Health, Point: r.point, Ephemeral: ephemeral, Dirs: allowed,
		StagingDir: node.OwnStagingDir(config.KubeletDir, config.DriverName), Sources: sources, MarkFilesystem: mark,
	}

	if config.serves(ModeController) {
		// The controller is built after the node.
		settings.Registered = func(id string) (volume.Registered, bool) { return r.records.Registered(id) }
	}

	served, err := node.New(settings)
	if err != nil {
		return err
	}

	r.closers = append(r.closers, served.Close)
	r.localNode = served.Local()
	r.poolChanged = append(r.poolChanged, served.Prober().SuspectPool)
	r.views = append(r.views, view{"node", served.Prober().Monitor(), served.Prober().Reports})
	r.reports.Check, r.assigned.List = served.Checker().Check, served.Assignments().List
	r.watches = append(r.watches, served.Prober().Monitor().Run, served.Checker().Run)
	r.services = append(r.services, service{
		name: csi.Node_ServiceDesc.ServiceName,
		register: func(to grpc.ServiceRegistrar) {
			csi.RegisterNodeServer(to, served)
			(&persistent.Service{Set: served.Persistent().Set}).Register(to)
		},
		recover: served.Recover, recoverPool: served.RecoverPool, observe: served.Observe, served: served.PoolServed,
	})

	if !config.serves(ModeController) {
		// A controller in this process notifies the node directly.
		r.watches = append(r.watches, served.WatchMutable)
	}

	return r.registry.Register(health.NewUsage(served.Prober().Monitor(), "volume", ""))
}

// nodeConfig is the configuration that all node services have.
func (r *components) nodeConfig() node.Common {
	return node.Common{
		NodeID: r.config.NodeID, Segments: r.config.segments(), Shared: r.config.Shared,
		MaxVolumesPerNode: r.config.MaxVolumesPerNode, Capabilities: r.config.capabilities,
		Store: r.store, Pools: r.pools, Operations: r.operations, Storage: r.storage, Log: r.config.Log,
	}
}

// addSimulatedNode adds a node service that mounts nothing, and has no conditions.
func (r *components) addSimulatedNode() {
	served := node.NewSimulated(r.nodeConfig())
	r.localNode = served
	r.services = append(r.services, service{
		name:     csi.Node_ServiceDesc.ServiceName,
		register: func(to grpc.ServiceRegistrar) { csi.RegisterNodeServer(to, served) },
		recover:  served.Recover, recoverPool: func(context.Context, *pool.Pool) error { return nil },
	})
}

// bootID is the controller's Config.BootID.
func bootID(config *Config) string {
	id, err := sysfs.Read(sysfs.BootID)
	if err != nil || config.Shared {
		return ""
	}

	return id
}

func (r *components) addController(config *Config) error {
	directByClaim, err := r.openClaims(config.Claims)
	if err != nil {
		return err
	}

	copies := progress.NewRegistry(config.Log)

	served, err := controller.New(controller.Config{
		Settings: config.Controller, NodeID: config.NodeID, Segments: config.segments(), Shared: config.Shared, BootID: bootID(config),
		MaxVolumesPerNode: config.MaxVolumesPerNode, MaxVolumeBytes: config.MaxVolumeBytes, Capabilities: config.capabilities,
		Store: r.store, Pools: r.pools, Operations: r.operations, Admission: r.admission,
		Health: config.Health, Storage: r.storage, Point: r.point, Log: config.Log,
		LocalNode: r.localNode, DirectByClaim: directByClaim,
		Removals: r.removals, Progress: copies, Sources: r.controllerSources(),
	})
	if err != nil {
		return err
	}

	groups := controller.NewGroups(served)
	snapshotMetadata := metadata.New(served.Snapshots(), served.Catalog(), config.Controller.MetadataIdle, config.Controller.MetadataBlocks)

	// A pool has one controller.
	r.opener.owner = fmt.Sprintf("%s at %s, mode %s, node %s, state in %s",
		config.DriverName, config.Endpoint, config.Mode, config.NodeID, config.StateDir)
	r.records = served.Catalog()
	r.poolChanged = append(r.poolChanged, served.Health().SuspectPool)
	r.views = append(r.views, view{"controller", served.Health().Monitor, served.Health().Reports})
	r.services = append(r.services, service{
		name: csi.Controller_ServiceDesc.ServiceName,
		register: func(to grpc.ServiceRegistrar) {
			csi.RegisterControllerServer(to, served)
			csi.RegisterGroupControllerServer(to, groups)
			csi.RegisterSnapshotMetadataServer(to, snapshotMetadata)
			copies.Register(to)
			(&names.Service{List: r.records.Names}).Register(to)
		},
		recover: served.Recover, recoverPool: served.RecoverPool,
	})
	r.watches = append(r.watches, served.Health().Monitor.Run)
	r.drains = append(r.drains, snapshotMetadata.Drain, served.Changes().Drain)

	return nil
}

// openClaims returns the function by which the controller reads claims from the
// Kubernetes API, or nil without --kubeconfig.
func (r *components) openClaims(config claim.Config) (func(ctx context.Context, namespace, name string) (bool, error), error) {
	if config.Kubeconfig == "" {
		return nil, nil //nolint:nilnil // that is what the controller takes for "off"
	}

	claims, err := claim.New(config)
	if err != nil {
		return nil, err
	}

	r.closers = append(r.closers, claims.Close)

	return claims.Direct, nil
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
		if each.observe == nil {
			continue
		}

		if err := each.observe(ctx); err != nil {
			return fmt.Errorf("recover %s: %w", each.name, err)
		}
	}

	return nil
}

// begin starts the background goroutines, and returns a function that waits for their end after ctx has ended.
func (r *components) begin(ctx context.Context) (wait func()) {
	var running sync.WaitGroup

	running.Go(func() { r.storage.Run(ctx) })
	running.Go(func() { r.removals.Run(ctx) })
	running.Go(func() { r.freeMemory(ctx) })

	for _, name := range r.pools.Names() {
		running.Go(func() { r.followPool(ctx, name) })
		running.Go(func() { r.upkeep(ctx, name) })
	}

	for _, watch := range r.watches {
		running.Go(func() { watch(ctx) })
	}

	return running.Wait
}

// freeMemory returns memory to the kernel once all volumes have been probed: reading the state and the first
// probes leave as much garbage as they keep.
func (r *components) freeMemory(ctx context.Context) {
	for _, each := range r.views {
		if each.monitor.AwaitRelist(ctx) != nil {
			return // the driver ends
		}
	}

	debug.FreeOSMemory()
}

// drain closes the coalescing windows, so that their requests become operations.
func (r *components) drain(ctx context.Context) error {
	var failures []error

	for _, drain := range r.drains {
		failures = append(failures, drain(ctx))
	}

	return errors.Join(failures...)
}

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

	for _, each := range d.lab.parts {
		each.Register(server)
	}

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
