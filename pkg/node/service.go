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

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/ephemeral"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/stats"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Config configures the service.
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
	// Ephemeral are the pools of inline ephemeral volumes.
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
	// from. MarkFilesystem subscribes one of these to the errors of the filesystem of
	// root; nil without such a source.
	Health         health.Settings
	Sources        []health.Source
	MarkFilesystem func(root *os.File) error
	// Storage is the monitor of the pools and the state store; nil is none.
	Storage *health.Monitor
	// IOErrorHold is how long a volume's last I/O error is a condition of it; 0
	// is probe.DefaultIOErrorHold.
	IOErrorHold time.Duration
	// CheckPeriod is the time between two checks of a volume's filesystem, unless
	// the volume says another; 0 is never.
	CheckPeriod time.Duration
	// Direct is about volumes that virtual machines mount.
	Direct access.DirectConfig
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
	dirs          *mount.AllowedDirs
	loops         *loop.Loops
	stagedVolumes *staged.Records[*staged.Volume]
	freezer       *freeze.Freezer
	access        *access.Provider
	ephemeral     *ephemeral.Volumes
	tuner         *tuning.Tuner
	checker       *fsck.Checker
	// occasions distinguishes operations that must not be joined.
	occasions atomic.Uint64
	prober    *probe.Prober
	stats     *stats.Reader
}

// New returns a service that keeps its records in store, which must not be
// open yet.
func New(config Config, store *state.Store, pools *pool.Set, ops *operation.Group,
	dirs *mount.AllowedDirs, loops *loop.Loops,
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
		config: config, pools: pools, ops: ops, dirs: dirs, loops: loops,
		stagedVolumes: staged.NewRecords[*staged.Volume](store, "uses"),
		tuner: tuning.New(queue.New(queue.DefaultSysBlock), cgroup.NewLimiter(config.CgroupRoot, config.Log),
			store, config.Log),
	}
	s.freezer = freeze.New(freeze.Config{
		Limit: config.FreezeLimit, Loops: loops, OpenRoot: s.openRootOf, Log: config.Log,
	}, store)
	s.checker = s.newChecker(store)
	s.access = access.New(access.Config{
		Pools: pools, Ephemeral: config.Ephemeral, Dirs: dirs, Loops: loops, Volumes: s.stagedVolumes,
		Tuner: s.tuner, Freezer: s.freezer, Checker: s.checker, Prober: attachmentObserver{s},
		Direct: config.Direct, Run: config.Run, Log: config.Log,
	})
	s.prober = s.newProber()
	s.ephemeral = ephemeral.New(ephemeral.Config{
		Pools: pools, Directories: config.Ephemeral, Access: s.access, Prober: s.prober, Dirs: dirs, Loops: loops, Operations: ops,
		Admission: config.Admission, Capabilities: config.Capabilities, MaxVolumeBytes: config.MaxVolumeBytes,
		MkfsOptions: config.EphemeralMkfsOptions, Run: config.Run, Log: config.Log,
	}, store)
	s.stats = stats.New(stats.Config{
		Access: s.access, Prober: s.prober, Dirs: dirs, Capabilities: config.Capabilities, InUse: s.usedAt,
	})
	config.Admission.Register(s.ephemeral)

	return s, nil
}

var (
	errNoNodeID    = errors.New("the node id is empty (--node-id)")
	errNoEphemeral = errors.New("no pool for ephemeral volumes is configured")
	errNoAdmission = errors.New("there is no pool admission")
	errNoDirect    = errors.New("direct assignment is not configured")
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

// Access returns what makes volumes usable on this node.
func (s *Service) Access() *access.Provider { return s.access }

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

// attachmentObserver reports attachments and unmounts to the probes.
type attachmentObserver struct{ service *Service }

func (o attachmentObserver) Attached(v *staged.Volume, device *loop.Device, imageBytes int64, second bool) {
	observations := o.service.prober.Observations()
	if second {
		observations.AddReader(v.VolumeID, device.Number)

		return
	}

	observations.Attach(v.VolumeID, probe.Attachment{Number: device.Number, Sequence: device.Sequence}, imageBytes, v.Ephemeral)
}

func (o attachmentObserver) Detached(number int) { o.service.prober.Observations().Detach(number) }

func (o attachmentObserver) Close(volumeID string) (reopen func()) {
	return o.service.prober.CloseGate(volumeID)
}
