package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/changes"
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
	// MetadataBlocks is the type of the ranges of SnapshotMetadata; UNKNOWN is the
	// default of package metadata.
	MetadataBlocks csi.BlockMetadataType
	// DetachInUse lets ControllerUnpublishVolume detach a volume that is in use on this node.
	DetachInUse bool
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
	// BootID identifies the boot of the machine, which a power failure ends. It is empty if that is unknown,
	// or other machines use the pools, too.
	BootID string
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
	parser

	catalog *catalog.Catalog
	use     *objects.Use
	remover *objects.Remover
	copies  *copies.Machine
	ops     *operation.Group
	health  *Watch
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
	has, log := config.Capabilities.HasController, config.Log
	records := catalog.New(config.Store, config.Pools, config.Admission)
	watched := newWatch(&config, records)
	use := &objects.Use{
		Node: config.LocalNode, NodeID: config.NodeID, Shared: config.Shared, Attaches: has(capability.PublishUnpublishVolume),
	}
	remover := &objects.Remover{Catalog: records, Queue: config.Removals, Point: config.Point, Forgotten: func(id string) {
		watched.Monitor.Forget(id)
		config.LocalNode.Deleted(id)
	}}
	made := changes.New(changes.Config{
		Catalog: records, Node: config.LocalNode, Use: use, Operations: config.Operations, Window: config.CoalesceWindow,
		Online: has(capability.Online), Point: config.Point, Log: log,
	})

	return &Service{
		parser:  parser{config, record.NewSegments(config.Segments), made},
		catalog: records, use: use, remover: remover, health: watched, ops: config.Operations,
		copies: copies.New(copies.Config{
			Catalog: records, Node: config.LocalNode, Use: use, Remover: remover, Operations: config.Operations,
			Grace: config.CopyGrace, Progress: config.Progress, Point: config.Point, Log: log,
		}),
	}, nil
}

var errConfig = errors.New("bad configuration")

// Snapshots takes and locks snapshots.
func (s *Service) Snapshots() *copies.Machine { return s.copies }

// Changes are expansions and modifications.
func (s *Service) Changes() *changes.Changes { return s.changes }

// Health is what the controller knows of the health of all volumes.
func (s *Service) Health() *Watch { return s.health }

// Catalog returns the records.
func (s *Service) Catalog() *catalog.Catalog { return s.catalog }
