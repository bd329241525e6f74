package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/copies"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Settings are the part of Config that an administrator chooses.
type Settings struct {
	// Nodes are further node ids that volumes may be attached to.
	Nodes []string
	// CoalesceWindow is how long a change of a volume waits for others to be
	// made together with it; 0 is not at all.
	CoalesceWindow time.Duration
	// CopyGrace is how long CreateSnapshot waits for a copy before it answers that the
	// snapshot is not ready to use; 0 is DefaultCopyGrace.
	CopyGrace time.Duration
	// MetadataIdle is how long a client of SnapshotMetadata may leave a message
	// unread; 0 is the default of package metadata.
	MetadataIdle time.Duration
}

// DefaultCopyGrace is longer than most copies take, and much shorter than a CO's
// timeout.
const DefaultCopyGrace = time.Second

// Config configures the service.
type Config struct {
	Settings

	// NodeID is the id of the node on whose machine the process runs.
	NodeID string
	// Segments is the topology of that machine; empty means that volumes are accessible from
	// everywhere.
	Segments map[string]string
	// Shared: every node mounts the pools.
	Shared bool
	// MaxVolumesPerNode is how many volumes may be attached to a node; 0 is no limit.
	MaxVolumesPerNode int64
	// MaxVolumeBytes is the largest volume; 0 is no limit but the pool's.
	MaxVolumeBytes int64
	// Capabilities are those that the plugin advertises.
	Capabilities capability.Set

	// Store keeps the records. It is not open yet while the service is built.
	Store *state.Store
	Pools *pool.Set
	// Operations serializes what changes an object; the services of a process share it.
	Operations *operation.Group
	// Admission decides what may be provisioned from the pools.
	Admission *pool.Admission
	// Health are the settings of the monitor. Storage is the monitor of the pools and the state;
	// nil is none.
	Health  health.Settings
	Storage *health.Monitor
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
	Log   *slog.Logger

	// LocalNode is the node service of this process; nil means NoLocalNode.
	LocalNode LocalNode
	// DirectByClaim says whether a PersistentVolumeClaim asks for direct assignment
	// of its volume; nil does not ask.
	DirectByClaim func(ctx context.Context, namespace, name string) (bool, error)
	// Removals removes the volumes and snapshots that no CO sees any more.
	Removals *removal.Queue
	// Progress records the progress of copies; nil is none.
	Progress *progress.Registry
	// Sources are the event sources of the monitor.
	Sources []health.Source
}

// Service is the CSI Controller service (CSI v1.13, Controller Service RPC).
// It is safe for concurrent use.
type Service struct {
	csi.UnimplementedControllerServer

	config   Config
	catalog  *catalog.Catalog
	use      *objects.Use
	remover  *objects.Remover
	copies   *copies.Machine
	pools    *pool.Set
	ops      *operation.Group
	segments record.Segments
	changes  *changes
	monitor  *health.Monitor
	// probes limits the concurrent probes of each pool.
	probes *pool.Limiter
	// creating has the ids of volumes that may have an object before a record.
	creating sync.Map
}

// New returns a service that keeps its records in the store, which must not be
// open yet.
func New(config Config) (*Service, error) {
	if config.Admission == nil {
		return nil, fmt.Errorf("%w: there is no pool admission", errConfig)
	}

	if config.LocalNode == nil {
		config.LocalNode = NoLocalNode{}
	}

	config.CopyGrace = cmp.Or(config.CopyGrace, DefaultCopyGrace)
	s := &Service{
		config: config, catalog: catalog.New(config.Store, config.Pools, config.Admission), pools: config.Pools, ops: config.Operations,
		segments: record.NewSegments(config.Segments), probes: pool.NewLimiter(),
	}
	s.use = &objects.Use{
		Node: config.LocalNode, NodeID: config.NodeID, Shared: config.Shared, Attaches: s.has(capability.PublishUnpublishVolume),
	}
	s.changes, s.monitor = s.newChanges(), s.newMonitor()
	s.remover = &objects.Remover{Catalog: s.catalog, Queue: config.Removals, Point: config.Point, Forgotten: func(id string) {
		s.monitor.Forget(id)
		config.LocalNode.Deleted(id)
	}}
	s.copies = copies.New(copies.Config{
		Catalog: s.catalog, Node: config.LocalNode, Use: s.use, Remover: s.remover, Operations: config.Operations,
		Grace: config.CopyGrace, Progress: config.Progress, Point: config.Point, Log: config.Log,
	})

	return s, nil
}

var errConfig = errors.New("bad configuration")

// Snapshots locks snapshots, and finds their pools.
func (s *Service) Snapshots() *copies.Machine { return s.copies }

// Catalog returns the records.
func (s *Service) Catalog() *catalog.Catalog { return s.catalog }

// Recover schedules the removal of what a crash has left half-done, before RecoverPool
// and the first call.
func (s *Service) Recover(ctx context.Context) (err error) {
	defer errdefs.Wrapf(&err, "recover")

	if err := errors.Join(s.recoverVolumes(), s.copies.Recover()); err != nil {
		return err
	}

	// An Update makes the lazy ones before it visible: the first calls must find the names free.
	return catalog.IgnoreReadOnly(s.catalog.Flush(ctx))
}

// RecoverPool ends what was left half-done in a pool, after a crash or since the
// pool has failed, before the pool is served. What the store does not know is left
// alone unless it is empty.
func (s *Service) RecoverPool(ctx context.Context, p *pool.Pool) (err error) {
	defer errdefs.Wrapf(&err, "recover pool %q", p.Name())

	err = s.allocatePristineDurably(ctx, p)
	s.recoverMutable(ctx, p)

	if err := errors.Join(err, s.collectOrphans(ctx, p)); err != nil {
		return err
	}

	// Last: copies go on in the background.
	return s.copies.Resume(ctx, p)
}

// collectOrphans removes empty objects without a record: a
// crash between making an image and its record leaves such. One with data is
// only reported, for an administrator to decide.
func (s *Service) collectOrphans(ctx context.Context, p *pool.Pool) (err error) {
	defer errdefs.Wrapf(&err, "look for orphans")

	err = p.List(ctx, func(entry pool.Entry) error {
		if s.existsOrCreating(entry.ID) {
			return nil
		}

		removed, err := p.RemoveEmptyOrphan(ctx, entry)
		if err != nil {
			s.config.Log.Error("cannot remove an empty volume that is not in the state", "volume", entry.ID, "error", err)
		} else if !removed {
			s.config.Log.Warn("a volume that holds data or is in use is in the pool but not in the state; see `touchstone state verify --pool`",
				"volume", entry.ID, "path", p.VolumePath(entry.ID, entry.Backing))
		}

		return nil
	})
	if err != nil {
		return err
	}

	return p.ListSnapshots(ctx, func(entry pool.Entry) error {
		if _, known := s.catalog.Snapshots.Get(entry.ID); !known {
			s.config.Log.Warn("a snapshot is in the pool but not in the state; nothing but a person removes it",
				"snapshot", entry.ID, "path", p.SnapshotPath(entry.ID, entry.Backing))
		}

		return nil
	})
}

// existsOrCreating reports whether a volume is in the store, or is about to be: a
// CreateVolume outlives the failure of its pool, which is recovered meanwhile. No
// other process makes volumes there, as the pool is locked by its controller.
func (s *Service) existsOrCreating(id string) bool {
	// First: a volume leaves making when it is in the store.
	if _, made := s.creating.Load(id); made {
		return true
	}

	_, known := s.catalog.Volumes.Get(id)

	return known
}

func (s *Service) knowsNode(id string) bool {
	return id == s.config.NodeID || slices.Contains(s.config.Nodes, id)
}
