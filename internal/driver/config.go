package driver

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/registration"
	"github.com/touchstone-csi/touchstone/pkg/controller"
	"github.com/touchstone-csi/touchstone/pkg/node"
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
	// DefaultDrainTimeout leaves five seconds of the thirty that Kubernetes
	// grants between SIGTERM and SIGKILL.
	DefaultDrainTimeout = 25 * time.Second
	// DefaultCoalesceWindow is the time within which Kubernetes' resizer requests the
	// expansion and the modification that a user has made in one edit.
	DefaultCoalesceWindow = 2 * time.Second
	// DefaultCheckPeriod has each filesystem checked once a day.
	DefaultCheckPeriod = 24 * time.Hour
)

// CallLogRing is the value of Config.CallLog without a file.
const CallLogRing = "ring"

// Config is all that a Driver needs to know. Sizes are bytes. Make it by Defaults: a field has the meaning of
// its setting (see Settings), 0 and empty included.
type Config struct {
	Mode Mode
	// Endpoint is unix:///path, unix:path or a path.
	Endpoint string
	// DriverName, Version and Commit are returned by the Identity service.
	DriverName, Version, Commit string
	// NodeID is the id of the machine that the process runs on; empty is its hostname.
	NodeID string
	// StateDir holds the store; two processes cannot share one.
	StateDir string
	// Pools maps a pool's name to its directory.
	Pools map[string]string
	// PoolImageBytes is the least size of a pool's own filesystem where the
	// directory's cannot reflink; 0 makes none. See internal/pool/embedded.
	PoolImageBytes int64
	// PoolImageFS is the filesystem of a new one, of embedded.Filesystems.
	PoolImageFS string
	// Topology are extra segments of this node.
	Topology map[string]string
	// Shared: every node mounts the pools.
	Shared bool
	// MaxVolumesPerNode and MaxVolumeBytes are limits; 0 is none.
	MaxVolumesPerNode, MaxVolumeBytes int64
	// Capacities is how much each of the pools may provision, whatever space it has; a pool that is
	// not in it has that of its filesystem.
	Capacities map[string]int64
	// Overcommit is the overcommit ratio of the pools.
	Overcommit float64
	// KubeletDir and AllowPaths are where requests' paths may lie.
	KubeletDir string
	AllowPaths []string
	// SimulateNode has the node's calls recorded and nothing mounted.
	SimulateNode bool
	// VolumeMountGroup lets the CO leave the group of volumes' files to the node.
	VolumeMountGroup bool
	// Disabled names capabilities that are neither advertised nor served.
	Disabled []string

	Controller controller.Settings
	Node       node.Settings
	Health     health.Settings
	// Claims gives the controller access to the Kubernetes API, whose claims may request
	// direct assignment; without a Kubeconfig it has none.
	Claims claim.Config
	// Registration registers the driver with the kubelet; an empty Directory is not at all,
	// and an empty Endpoint is that of the driver.
	Registration registration.Config
	// StartupTaint is the key of a taint that is removed from the node's object after the registration; empty
	// is none.
	StartupTaint string

	// TCPEndpoint is host:port on loopback, where the services are served as well; empty is off.
	TCPEndpoint string

	// Faults is a file of fault rules (docs/faults.md), empty for none; EnableFaults serves the calls that
	// add them. Crash ends the process where a rule says so; nil sends it SIGKILL.
	Faults       string
	EnableFaults bool
	Crash        func()

	// HTTPEndpoint is host:port of /metrics, /healthz, /livez and /readyz; empty is off.
	HTTPEndpoint string
	// HTTPHosts are further names of the machine by which clients call HTTPEndpoint.
	HTTPHosts []string
	// OTLPEndpoint is the URL of the collector that gets the traces of calls, such as
	// http://127.0.0.1:4317; empty is off.
	OTLPEndpoint string
	// CallLog is a file to which each call is appended, or CallLogRing to keep the last calls in
	// memory only; empty records none. CallLogSecrets leaves credentials in them.
	CallLog        string
	CallLogSecrets bool
	// Strict is how calls that violate the CO's part of the spec are treated: observe reports them,
	// refuse also refuses them, empty does neither.
	Strict string
	// Profiling adds /debug/pprof/ there.
	Profiling bool
	// ReadyFile is created when the driver is ready and removed when it ends.
	ReadyFile string
	// DrainTimeout bounds the time from the first signal to the end.
	DrainTimeout time.Duration
	// ProxyEndpoint is the CSI server to which a process that serves no volumes forwards all calls,
	// ProxyListen where such a server connects to it. ProxyAnywhere lets ForwardPaired listen on an
	// address beyond the loopback.
	ProxyEndpoint, ProxyListen string
	ProxyAnywhere              bool
	// Also registers further gRPC services behind the same interceptors; nil
	// is none.
	Also func(grpc.ServiceRegistrar)
	// Outer intercept unary calls before the interceptors of the lab do, and Inner after them: a call passes Outer,
	// the lab, Inner, and its response the other way.
	Outer, Inner []grpc.UnaryServerInterceptor
	// LogFormat and Verbosity are how `touchstone serve` makes Log, and ConfigFile is the file with its
	// further settings.
	LogFormat  string
	Verbosity  int
	ConfigFile string
	Log        *slog.Logger

	// capabilities are what Disabled leaves.
	capabilities capability.Set
}

func (c *Config) completeLog() {
	c.Log = slog.New(callHandler{cmp.Or(c.Log, slog.New(slog.DiscardHandler)).Handler()})
}

// complete checks each setting by itself, and then what they are together.
func (c *Config) complete() error {
	c.completeLog()

	if c.NodeID == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find out this node's id: %w; give node-id", err)
		}

		c.NodeID = name
	}

	if err := c.CheckSettings(); err != nil {
		return err
	}

	problems := []error{c.checkPoolImage(), c.checkCapacities(), c.checkCapabilities(), c.checkTopology(), c.completeRegistration()}
	_, err := SocketPath(c.Endpoint)
	problems = append(problems, err)

	if _, err := kata.ParseHostPaths(c.Node.Direct.HostPaths); err != nil {
		problems = append(problems, fmt.Errorf("%w: host-path-map: %w", ErrConfig, err))
	}

	if c.Claims.Kubeconfig != "" && !c.serves(ModeController) {
		problems = append(problems, fmt.Errorf("%w: kubeconfig is for the controller only, and mode %s has none: "+
			"a node must not have credentials of the Kubernetes API; leave it out", ErrConfig, c.Mode))
	}

	if c.CallLogSecrets && c.CallLog == "" {
		problems = append(problems, fmt.Errorf("%w: call-log-secrets needs call-log", ErrConfig))
	}

	if c.HTTPEndpoint == "" && (c.Profiling || len(c.HTTPHosts) > 0) {
		problems = append(problems, fmt.Errorf("%w: pprof and http-host have no effect without http-endpoint", ErrConfig))
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

func (c *Config) serves(mode Mode) bool { return c.Mode == ModeAll || c.Mode == mode }
