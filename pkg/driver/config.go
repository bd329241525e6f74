package driver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/pkg/capability"
)

// Mode selects the services that a process serves.
type Mode string

// The three modes. Identity is served in each.
const (
	ModeAll        Mode = "all"
	ModeController Mode = "controller"
	ModeNode       Mode = "node"
)

// Log levels as `-v` counts them: slog's levels below zero.
const (
	// LevelCalls logs each call that changes something.
	LevelCalls = slog.Level(-2)
	// LevelReads logs the others too.
	LevelReads = slog.Level(-4)
	// LevelMessages logs requests and responses, without their secrets.
	LevelMessages = slog.Level(-5)
)

// ErrConfig is returned for a configuration that cannot work.
var ErrConfig = errors.New("configuration")

const (
	// maxNodeID is the spec's limit for NodeGetInfoResponse.node_id, in bytes.
	maxNodeID = 256
	// DefaultDrainTimeout leaves five seconds of the thirty that Kubernetes
	// grants between SIGTERM and SIGKILL.
	DefaultDrainTimeout = 25 * time.Second
	// DefaultCoalesceWindow is the time within which Kubernetes' resizer requests the
	// expansion and the modification that a user has made in one edit.
	DefaultCoalesceWindow = 2 * time.Second
	// DefaultCheckPeriod has each filesystem checked once a day.
	DefaultCheckPeriod = 24 * time.Hour
)

// DefaultCopyGrace is longer than most copies take, and much shorter than a CO's
// timeout.
const DefaultCopyGrace = time.Second

// Config is all that a Driver needs to know. Sizes are bytes.
type Config struct {
	Mode Mode
	// Endpoint is unix:///path, unix:path or a path.
	Endpoint string
	// DriverName, Version and Commit are returned by the Identity service.
	DriverName, Version, Commit string
	// NodeID is the id of the machine that the process runs on.
	NodeID string
	// Nodes are further node ids that the controller accepts.
	Nodes []string
	// StateDir holds the store; two processes cannot share one.
	StateDir string
	// Pools maps a pool's name to its directory.
	Pools map[string]string
	// PoolImageBytes is the least size of a pool's own filesystem where the
	// directory's cannot reflink; 0 makes none. See pkg/pool/embedded.
	PoolImageBytes int64
	// Topology are extra segments of this node.
	Topology map[string]string
	// Shared: every node mounts the pools.
	Shared bool
	// MaxVolumesPerNode and MaxVolumeBytes are limits; 0 is none.
	MaxVolumesPerNode, MaxVolumeBytes int64
	// EphemeralMkfsOptions lets inline ephemeral volumes have mkfs options.
	EphemeralMkfsOptions bool
	// Overcommit is the overcommit ratio of the pools.
	Overcommit float64
	// KubeletDir and AllowPaths are where requests' paths may lie.
	KubeletDir string
	AllowPaths []string
	// KubeletRegistrationDir is the kubelet's directory of plugins, in which the
	// driver registers itself; empty is not at all.
	KubeletRegistrationDir string
	// KubeletRegistrationEndpoint is Endpoint's path as the kubelet sees it; empty
	// is the same.
	KubeletRegistrationEndpoint string
	// DirectVolumeRoot is the directory in which VM-based runtimes expect assignments;
	// empty is kata.DefaultRoot.
	DirectVolumeRoot string
	// ShimRoots are where sandboxes have their shims' sockets; none is
	// kata.DefaultShimRoots.
	ShimRoots []string
	// KataRuntime is the kata-runtime binary by which guests are queried instead of
	// shims; empty is none.
	KataRuntime string
	// HostPathMap is FROM=TO for what the host has under other paths.
	HostPathMap []string
	// VolumeMountGroup lets the CO leave the group of volumes' files to the node.
	VolumeMountGroup bool
	// CgroupRoot is where cgroups are mounted; empty is /sys/fs/cgroup.
	CgroupRoot string
	// Kubeconfig gives the controller access to the Kubernetes API, whose claims may
	// request direct assignment: a file, or claim.InCluster; empty is none.
	Kubeconfig string
	// ClaimTimeout bounds each question to that API; 0 is claim.DefaultTimeout.
	ClaimTimeout time.Duration
	// CoalesceWindow is how long a change of a volume waits for others to be
	// made together with it; 0 is not at all.
	CoalesceWindow time.Duration
	// CopyGrace is how long CreateSnapshot waits for a copy before it answers that the
	// snapshot is not ready to use; 0 is DefaultCopyGrace.
	CopyGrace time.Duration
	// MetadataIdle is how long a client of SnapshotMetadata may leave a message
	// unread; 0 is the controller's default.
	MetadataIdle time.Duration
	// HealthPolling disables kernel events: only relists trigger probes.
	HealthPolling bool
	// HealthRelistPeriod is the time between relists, HealthEventedRelistPeriod that
	// while all event sources are connected; 0 is the default of pkg/health.
	HealthRelistPeriod, HealthEventedRelistPeriod time.Duration
	// HealthProbeTimeout bounds the probe of one volume; 0 is the default.
	HealthProbeTimeout time.Duration
	// IOErrorHold is how long a volume's last I/O error is a condition of it; 0
	// is probe.DefaultIOErrorHold.
	IOErrorHold time.Duration
	// CheckPeriod is the time between two checks of a filesystem; 0 is never.
	CheckPeriod time.Duration
	// FirstLoopDevice is the loop device number of slot 0; 0 is the default.
	FirstLoopDevice int
	// HTTPEndpoint is host:port of /metrics, /healthz and /readyz; empty is off.
	HTTPEndpoint string
	// ReadyFile is created when the driver is ready and removed when it ends.
	ReadyFile string
	// DrainTimeout bounds the wait for running operations after the first signal; 0 is
	// DefaultDrainTimeout.
	DrainTimeout time.Duration
	// Disabled names capabilities that are neither advertised nor served.
	Disabled []string
	// Also registers further gRPC services behind the same interceptors; nil
	// is none.
	Also func(grpc.ServiceRegistrar)
	Log  *slog.Logger

	// capabilities are what Disabled leaves.
	capabilities capability.Set
}

// driverName is the spec's rule for GetPluginInfoResponse.name.
const driverName = `^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`

func (c *Config) completeDefaults() {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}

	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}

	if c.CopyGrace == 0 {
		c.CopyGrace = DefaultCopyGrace
	}

	c.completeDirect()
}

func (c *Config) complete() error {
	c.completeDefaults()

	if c.CgroupRoot == "" {
		c.CgroupRoot = cgroup.DefaultCgroupRoot
	}

	problems := []error{
		c.checkNames(), c.checkPlaces(), c.checkPoolImage(), c.checkCapabilities(), c.checkDirect(), c.checkRegistration(),
	}

	if !slices.Contains([]Mode{ModeAll, ModeController, ModeNode}, c.Mode) {
		problems = append(problems, fmt.Errorf("%w: mode %q is not one of all, controller, node", ErrConfig, c.Mode))
	}

	if !(c.Overcommit > 0) {
		problems = append(problems, fmt.Errorf("%w: overcommit %v must be above 0; 1 provisions the pool's space once",
			ErrConfig, c.Overcommit))
	}

	if c.Kubeconfig != "" && !c.serves(ModeController) {
		problems = append(problems, fmt.Errorf("%w: kubeconfig is for the controller only, and mode %s has none: "+
			"a node must not have credentials of the Kubernetes API; leave it out", ErrConfig, c.Mode))
	}

	if c.CoalesceWindow < 0 {
		problems = append(problems, fmt.Errorf("%w: coalesce-window cannot be negative; 0 turns it off", ErrConfig))
	}

	if min(c.HealthRelistPeriod, c.HealthEventedRelistPeriod, c.HealthProbeTimeout, c.IOErrorHold, c.CheckPeriod) < 0 {
		problems = append(problems, fmt.Errorf("%w: health-relist-period, health-evented-relist-period, health-probe-timeout, "+
			"io-error-hold and check-period cannot be negative", ErrConfig))
	}

	if c.MaxVolumeBytes < 0 || c.MaxVolumesPerNode < 0 {
		problems = append(problems, fmt.Errorf("%w: max-volume-size and max-volumes-per-node cannot be negative", ErrConfig))
	}

	return errors.Join(problems...)
}

func (c *Config) checkNames() error {
	var problems []error

	if !regexp.MustCompile(driverName).MatchString(c.DriverName) {
		problems = append(problems, fmt.Errorf("%w: driver name %q is not a domain name of at most 63 characters",
			ErrConfig, c.DriverName))
	}

	for _, id := range append([]string{c.NodeID}, c.Nodes...) {
		if id == "" || len(id) > maxNodeID {
			problems = append(problems, fmt.Errorf("%w: node id %.40q has %d bytes, want 1 to %d", ErrConfig, id, len(id), maxNodeID))
		}
	}

	return errors.Join(problems...)
}

func (c *Config) checkCapabilities() error {
	off := slices.Clone(c.Disabled)
	if !c.VolumeMountGroup {
		off = append(off, string(capability.VolumeMountGroup))
	}

	left, err := capability.Without(off...)
	if err != nil {
		return fmt.Errorf("%w: disable-capability: %w", ErrConfig, err)
	}

	c.capabilities = left

	return nil
}

func (c *Config) checkPlaces() error {
	places := map[string]string{"state-dir": c.StateDir}

	if c.Mode != ModeController {
		places["kubelet-dir"] = c.KubeletDir

		for _, path := range c.AllowPaths {
			places["allow-path "+path] = path
		}
	}

	for name, directory := range c.Pools {
		places["pool "+name] = directory
	}

	if len(c.Pools) == 0 {
		return errors.Join(fmt.Errorf("%w: no pool is configured", ErrConfig), checkAbsolute(places))
	}

	return checkAbsolute(places)
}

func checkAbsolute(places map[string]string) error {
	var problems []error

	for _, what := range slices.Sorted(maps.Keys(places)) {
		if !filepath.IsAbs(places[what]) {
			problems = append(problems, fmt.Errorf("%w: %s: %q is not an absolute path", ErrConfig, what, places[what]))
		}
	}

	return errors.Join(problems...)
}

func (c *Config) serves(mode Mode) bool { return c.Mode == ModeAll || c.Mode == mode }
