package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/direct"
	"github.com/touchstone-csi/touchstone/pkg/node/ephemeral"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/remount"
	"github.com/touchstone-csi/touchstone/pkg/node/stats"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Settings are the part of Config that an administrator chooses.
type Settings struct {
	// EphemeralMkfsOptions lets inline ephemeral volumes, which the author of a pod
	// writes, have mkfs options.
	EphemeralMkfsOptions bool
	// CgroupRoot is where cgroups are mounted; empty is cgroup.DefaultCgroupRoot.
	CgroupRoot string
	// Loops are the loop devices of the node.
	Loops loop.LoopsOptions
	// IOErrorHold is how long a volume's last I/O error is a condition of it; 0
	// is probe.DefaultIOErrorHold.
	IOErrorHold time.Duration
	// CheckPeriod is the time between two checks of a volume's filesystem, unless
	// the volume says another; 0 is never.
	CheckPeriod time.Duration
	// Direct is about volumes that virtual machines mount.
	Direct kata.Config
}

// Common is the configuration that all node services have.
type Common struct {
	// NodeID is the id of the node on whose machine the process runs.
	NodeID string
	// Segments is the topology of that machine; empty means that volumes are accessible from
	// everywhere.
	Segments map[string]string
	// Shared: every node mounts the pools.
	Shared bool
	// MaxVolumesPerNode is how many volumes may be attached to a node; 0 is no limit.
	MaxVolumesPerNode int64
	// Capabilities are those that the plugin advertises.
	Capabilities capability.Set

	// Store keeps the records. It is not open yet while the service is built.
	Store *state.Store
	Pools *pool.Set
	// Operations serializes what changes an object; the services of a process share it.
	Operations *operation.Group
	// Storage is the monitor of the pools and the state; nil is none.
	Storage *health.Monitor
	Log     *slog.Logger
}

// Config configures a Service.
type Config struct {
	Common
	Settings

	// MaxVolumeBytes is the largest volume; 0 is no limit but the pool's.
	MaxVolumeBytes int64
	// Admission decides what may be provisioned from the pools.
	Admission *pool.Admission
	// Health are the settings of the monitor.
	Health health.Settings
	// Point is called at the points of operations; nil means no calls.
	Point operation.Hook
	// Ephemeral are the pools of inline ephemeral volumes.
	Ephemeral *pool.Set
	// Dirs are where request paths may lie. StagingDir, in which the service stages volumes
	// that the CO does not, lies there too.
	Dirs       *mount.AllowedDirs
	StagingDir string
	// FreezeLimit is how long filesystems may be frozen for a copy; 0 is
	// freeze.DefaultLimit.
	FreezeLimit time.Duration
	// Sources are the event sources of the monitor. MarkFilesystem subscribes one of these
	// to the errors of the filesystem of root; nil without such a source.
	Sources        []health.Source
	MarkFilesystem func(root *os.File) error
	// Registered returns the record of the controller in this process, false for a volume that
	// does not exist; nil without such a controller.
	Registered func(volumeID string) (volume.Registered, bool)
	// Run starts the tools of the filesystems; nil means the real ones.
	Run filesystem.Runner
}

// Service is the CSI Node service (CSI v1.13, Node Service RPC). It is safe
// for concurrent use.
type Service struct {
	answers
	*parts

	config    Config
	lifecycle *lifecycle
	ephemeral *ephemeral.Volumes
	// persistent are published again at each start.
	persistent *remount.Mounts
	stats      *stats.Reader
	local      *LocalNode
}

// New returns a service that keeps its records in the store, which must not be
// open yet.
func New(config Config) (*Service, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}

	runtimes, err := kata.New(config.Direct)
	if err != nil {
		return nil, err
	}

	p, common := newParts(&config, runtimes)
	s := &Service{
		parts: p, answers: answers{config: config.Common}, config: config,
		ephemeral: ephemeral.New(ephemeral.Config{
			Config: common, Records: p.volumes.Inline, Ways: p.ways, Prober: p.prober, Operations: config.Operations,
			Admission: config.Admission, Capabilities: config.Capabilities, MaxVolumeBytes: config.MaxVolumeBytes,
			MkfsOptions: config.EphemeralMkfsOptions,
		}),
		local: &LocalNode{
			Volumes: p.used, nodeID: config.NodeID, ways: p.ways, tuner: p.tuner, checker: p.checker, prober: p.prober, loops: p.loops,
		},
	}
	s.stats = stats.New(stats.Config{
		Ways: p.ways, Assignments: p.direct.Assignments, Observer: p.observe, Prober: p.prober, Dirs: config.Dirs,
		Capabilities: config.Capabilities, Volumes: p.volumes,
	})
	s.lifecycle = &lifecycle{parts: p, config: &s.config, ephemeral: s.ephemeral}
	s.persistent = remount.New(remount.Config{
		Volumes: p.volumes.Staged, Dirs: config.Dirs, Prober: p.prober, Do: p.own.run, Lifecycle: s.lifecycle, Log: config.Log,
	})
	config.Admission.Register(s.ephemeral)

	return s, nil
}

// isRegistered reports whether the controller of this process has the volume, false without such a
// controller.
func (c *Config) isRegistered(id string) bool {
	if c.Registered == nil {
		return false
	}

	_, registered := c.Registered(id)

	return registered
}

// complete sets defaults. Error: what is missing.
func (c *Config) complete() error {
	if c.IOErrorHold <= 0 {
		c.IOErrorHold = probe.DefaultIOErrorHold
	}

	c.CgroupRoot = cmp.Or(c.CgroupRoot, cgroup.DefaultCgroupRoot)

	switch {
	case c.NodeID == "":
		return errNoNodeID
	case c.Ephemeral == nil:
		return errNoEphemeral
	case c.Admission == nil:
		return errNoAdmission
	default:
		return nil
	}
}

var (
	errNoNodeID    = errors.New("the node id is empty (--node-id)")
	errNoEphemeral = errors.New("no pool for ephemeral volumes is configured")
	errNoAdmission = errors.New("there is no pool admission")
)

// Observe probes all volumes, so that the first answer about the health of one has
// something to go by. It follows RecoverPool.
func (s *Service) Observe(ctx context.Context) error {
	if err := s.prober.Monitor().Relist(ctx); err != nil {
		return fmt.Errorf("probe the volumes: %w", err)
	}

	return nil
}

// Close ends what goes on beside the calls. What is in force stays.
func (s *Service) Close() error {
	s.freezer.Close()

	return s.tuner.Close()
}

// Prober probes the volumes on this node.
func (s *Service) Prober() *probe.Prober { return s.prober }

// Checker checks the filesystems of volumes on this node.
func (s *Service) Checker() *fsck.Checker { return s.checker }

// Assignments are those of direct volumes on this node.
func (s *Service) Assignments() *direct.Assignments { return s.direct.Assignments }

// Persistent are the persistent mounts on this node.
func (s *Service) Persistent() *remount.Mounts { return s.persistent }

// Local returns the node as a controller in this process uses it.
func (s *Service) Local() *LocalNode { return s.local }
