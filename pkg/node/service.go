package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Config is what the service must be told.
type Config struct {
	NodeID string
	// Segments is the node's topology; empty means that it has none.
	Segments map[string]string
	// MaxVolumes is the number of volumes that may be attached; 0 leaves it to
	// the CO.
	MaxVolumes int64
	// MaxVolumeBytes is the largest inline ephemeral volume; 0 is no limit but
	// the pool's.
	MaxVolumeBytes int64
	// Ephemeral are the rooms in the pools for inline ephemeral volumes.
	Ephemeral *pool.Set
	// EphemeralMkfsOptions lets inline ephemeral volumes, which the author of a pod
	// writes, have mkfs options.
	EphemeralMkfsOptions bool
	// Admission decides what may be provisioned from the pools.
	Admission *pool.Admission
	// Capabilities are those that the plugin advertises.
	Capabilities capability.Set
	// StagingDir is where the service stages volumes that the CO does not; it
	// lies where request paths may.
	StagingDir string
	// CgroupRoot is where cgroups are mounted.
	CgroupRoot string
	// FreezeLimit is how long filesystems may be frozen for a copy; 0 is
	// freeze.DefaultLimit.
	FreezeLimit time.Duration
	// Health are the settings of the monitor, and Sources what it learns of events
	// from. MarkFilesystem has one of these tell of the errors of the filesystem
	// that root is in; nil is none that can.
	Health         health.Settings
	Sources        []health.Source
	MarkFilesystem func(root *os.File) error
	// Storage knows about the pools and the state store; nil is nobody.
	Storage *health.Monitor
	// IOErrorHold is how long a volume's last I/O error is a condition of it; 0
	// is probe.DefaultIOErrorHold.
	IOErrorHold time.Duration
	// CheckPeriod is the time between two checks of a volume's filesystem, unless
	// the volume says another; 0 is never.
	CheckPeriod time.Duration
	// Direct is about volumes that virtual machines mount.
	Direct DirectConfig
	// Run starts the tools of the filesystems; nil means the real ones.
	Run filesystem.Runner
	Log *slog.Logger
}

// Service is the CSI Node service (CSI v1.13, Node Service RPC). It is safe
// for concurrent use.
type Service struct {
	csi.UnimplementedNodeServer

	config        Config
	pools         *pool.Set
	ops           *operation.Group
	places        *mount.AllowedDirs
	loops         *loop.Loops
	stagedVolumes *staged.Records[*staged.Volume]
	freezer       *freeze.Freezer
	devices       *devices
	// inline are the ephemeral volumes.
	inline  *inline
	tuner   *tuning.Tuner
	checker *fsck.Checker
	// occasions tells operations apart that must not be joined.
	occasions atomic.Uint64
	prober    *probe.Prober
	// walks limits the walks that count the files of directories.
	walks *probe.PoolLimiter
}

// New returns a service that keeps its records in store, which must not be
// open yet.
func New(config Config, store *state.Store, pools *pool.Set, ops *operation.Group,
	places *mount.AllowedDirs, loops *loop.Loops,
) (*Service, error) {
	if config.NodeID == "" {
		return nil, errNoNodeID
	}

	if config.Ephemeral == nil {
		return nil, errNoEphemeral
	}

	if config.Admission == nil {
		return nil, errNoAdmission
	}

	if config.Direct.Root == nil || config.Direct.Guest == nil {
		return nil, errNoDirect
	}

	if config.IOErrorHold <= 0 {
		config.IOErrorHold = probe.DefaultIOErrorHold
	}

	s := &Service{
		config: config, pools: pools, ops: ops, places: places, loops: loops,
		stagedVolumes: staged.NewRecords[*staged.Volume](store, "uses"),
		devices:       newDevices(loops), inline: newInline(store),
		tuner: tuning.New(queue.New(queue.DefaultSysBlock), cgroup.NewLimiter(config.CgroupRoot, config.Log),
			store, config.Log),
		walks: probe.NewPoolLimiter(),
	}
	s.freezer = freeze.New(freeze.Config{
		Limit: config.FreezeLimit, Loops: loops, OpenRoot: s.openRootOf, Log: config.Log,
	}, store)
	s.checker = s.newChecker(store)
	s.prober, s.devices.find = s.newProber(), s.findAgain
	config.Admission.Register(s)

	return s, nil
}

var (
	errNoNodeID    = errors.New("the node id is empty (--node-id)")
	errNoEphemeral = errors.New("there is no room for ephemeral volumes")
	errNoAdmission = errors.New("there is no pool admission")
	errNoDirect    = errors.New("nobody knows what is assigned to virtual machines")
)

// Recover compares the records with what is really there, before the first
// call: after a reboot, or when somebody has unmounted something, records are
// left that nothing belongs to.
func (s *Service) Recover(ctx context.Context) error {
	s.stagedVolumes.Load()
	s.freezer.Load()
	s.checker.Load()
	// Before all else, because programs that write to a frozen filesystem wait for it.
	s.freezer.ThawRecorded()

	if err := s.config.Direct.Root.ClearTemporary(); err != nil {
		// It harms nobody but who uses direct volumes, and is told them again.
		s.config.Log.Error("what a killed writer has left is in the way of direct volumes", "error", err)
	}

	s.inline.Load()
	s.tuner.Load()

	attached, err := s.loops.Attachments()
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}

	s.findDevices(attached)
	s.findRenamed(attached)

	for _, use := range s.stagedVolumes.All() {
		// One sick volume must not keep the others from being used.
		if err := s.reconcile(ctx, use); err != nil {
			s.config.Log.Error("the use of a volume could not be recovered", "volume", use.VolumeID, "error", err)
		}
	}

	s.recoverTuning()

	return nil
}

// RecoverPool ends what was left half-done in a pool, after a crash or since the
// pool has failed, before the pool is served.
func (s *Service) RecoverPool(ctx context.Context, place *pool.Pool) error {
	// A node has ephemeral volumes in each pool.
	if _, err := place.Ephemeral(); err != nil {
		return fmt.Errorf("recover pool %q: %w", place.Name(), err)
	}

	if err := place.RemoveStaleScratch(ctx); err != nil {
		s.config.Log.Error("cannot remove unfinished copies; the next start retries it", "pool", place.Name(), "error", err)
	}

	return nil
}

// PoolServed puts in force what holds for the volumes of a pool that is served from
// now on, and ends its ephemeral volumes that are not in use any more.
func (s *Service) PoolServed(ctx context.Context, poolName string) {
	for _, use := range s.stagedVolumes.All() {
		if use.Parameters.Pool != poolName {
			continue
		}

		if err := s.refresh(ctx, use.VolumeID, int(s.occasions.Add(1))); err != nil {
			s.config.Log.Error("the mutable parameters of a volume are not in force", "volume", use.VolumeID, "error", err)
		}
	}

	s.recoverEphemeral(ctx, poolName)
}

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

// InUse returns where the volume is published, or else staged. An error says that
// it is unknown whether it is.
func (s *Service) InUse(volumeID string) (user string, used bool, err error) {
	use, ok := s.stagedVolumes.Get(volumeID)
	if !ok {
		return "", false, nil
	}

	for _, publication := range use.Publications {
		used, err := s.published(use, publication)
		if used || err != nil {
			return publication.TargetPath, used, err
		}
	}

	used, err = s.staged(use)

	// A program that has a device open which is about to go uses the volume still.
	if err == nil && !used && use.ExposesRawDevice() {
		_, used, err = s.devices.attachment(volumeID)
		err = unknown(err, use, "attached")
	}

	return use.StagingPath, used, err
}

// NodeGetInfo answers with the node's id, limit and topology (CSI v1.13,
// NodeGetInfo).
func (s *Service) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	response := &csi.NodeGetInfoResponse{NodeId: s.config.NodeID, MaxVolumesPerNode: s.config.MaxVolumes}
	if len(s.config.Segments) > 0 {
		response.AccessibleTopology = &csi.Topology{Segments: s.config.Segments}
	}

	return response, nil
}

// NodeGetCapabilities answers with what is not disabled (CSI v1.13,
// NodeGetCapabilities).
func (s *Service) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: s.config.Capabilities.Node()}, nil
}

// poolOf returns the pool that a volume in use is in.
func (s *Service) poolOf(use *staged.Volume) (*pool.Pool, error) {
	pools := s.pools
	if use.Ephemeral {
		pools = s.config.Ephemeral
	}

	place, err := pools.Get(use.Parameters.Pool)

	switch {
	case errors.Is(err, pool.ErrUnknown):
		return nil, rpc.Errorf(codes.FailedPrecondition, "volume %s is in pool %q, which this node does not have (--pool)",
			use.VolumeID, use.Parameters.Pool)
	case err != nil:
		return nil, fmt.Errorf("volume %s: %w", use.VolumeID, err)
	default:
		return place, nil
	}
}
