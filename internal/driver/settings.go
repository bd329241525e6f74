package driver

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/driver/setting"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
)

// Setting is a setting of the driver. Its flag, its environment variable, its key of the YAML file, its
// line in docs/flags.md and what the chart accepts are made of it.
type Setting struct {
	Name  string
	Value setting.Value
	// Zero is what 0 or an empty value means; a setting without it must have another value.
	Zero string
	// Usage says in a line what the setting is.
	Usage string
	// Pattern matches what the setting accepts, as far as a regular expression can say it; a value of a list
	// each. An empty one matches all that is of the value's kind.
	Pattern string
}

// Help is the usage with what 0 or an empty value means, and whether the flag may be repeated.
func (s *Setting) Help() string {
	_, repeatable := s.Value.(interface{ GetSlice() []string })

	switch zero := strings.ReplaceAll(s.Zero, "`", ""); {
	case repeatable:
		return s.Usage + " (repeatable)"
	case zero == "":
		return s.Usage
	case s.IsNumber():
		return s.Usage + "; 0 is " + zero
	default:
		return s.Usage + "; empty is " + zero
	}
}

// IsNumber reports whether the zero value is 0, and not an empty text or list.
func (s *Setting) IsNumber() bool {
	return slices.Contains([]string{"int", "float", "duration", "size"}, s.Value.Type())
}

// Defaults returns the configuration of a driver without any setting.
func Defaults() Config {
	var config Config
	for _, each := range Settings(&config) {
		each.Value.Reset()
	}

	return config
}

// check returns why a setting cannot be used, whatever the others are.
func (s *Setting) check() error {
	problem := s.Value.Check()

	switch {
	case s.Zero != "" || !s.Value.IsZero():
	case s.IsNumber():
		problem = setting.Errorf("0 is not above 0")
	default:
		problem = setting.Errorf("is empty; leave it out for its default")
	}

	if problem != nil {
		return fmt.Errorf("%w: %s %w", ErrConfig, s.Name, problem)
	}

	return nil
}

// Settings are all settings of the driver, with their values in the configuration.
func Settings(c *Config) []Setting {
	return slices.Concat(processSettings(c), poolSettings(c), nodeSettings(c), healthSettings(c), observerSettings(c))
}

// Names of settings that messages contain.
const (
	endpointFlag    = "endpoint"
	tcpFlag         = "tcp-endpoint"
	proxyListenFlag = "proxy-listen"
	strictFlag      = "strict"
)

func row(name string, value setting.Value, zero, usage string) Setting {
	return Setting{Name: name, Value: value, Zero: zero, Usage: usage}
}

// like returns the setting with a pattern.
func like(pattern string, s Setting) Setting {
	s.Pattern = pattern

	return s
}

func processSettings(c *Config) []Setting {
	return []Setting{
		row("mode", setting.Word(&c.Mode, ModeAll, ModeAll, ModeController, ModeNode), "", "which services to serve"),
		row(endpointFlag, setting.Text(&c.Endpoint, "unix:///run/touchstone/csi.sock", nil), "",
			"the socket to serve on; an old one is replaced, a live one refused"),
		row("driver-name", setting.Text(&c.DriverName, "csi.touchstone.dev", checkDriverName), "", "the driver's name, a domain name"),
		row("node-id", setting.Text(&c.NodeID, "", checkNodeID), "the hostname", "this node's id"),
		like(nodePattern,
			row("nodes", setting.List(&c.Controller.Nodes, nil, checkNodeID), "none", "further node ids that the controller may attach volumes to")),
		row("state-dir", setting.Text(&c.StateDir, "/var/lib/touchstone/state", checkAbsolute), "", "directory of the driver's state"),
		row("drain-timeout", setting.Duration(&c.DrainTimeout, DefaultDrainTimeout), "",
			"how long the process may take to end after SIGTERM, also when something hangs"),
		like(filePattern,
			row("ready-file", setting.Text(&c.ReadyFile, "", checkFile), "none", "a file that exists while the driver is ready")),
		row("log-format", setting.Word(&c.LogFormat, "text", "text", "json"), "", "how to log to standard error"),
		row("v", setting.Int(&c.Verbosity, 2, math.MaxInt), "failures only",
			"how much to log: 2 each change, 4 each call, 5 messages without their secrets"),
		row("config", setting.Text(&c.ConfigFile, "", nil), "none", "a YAML file with these flags' names as keys"),
		like(addressPattern, row("proxy-endpoint", setting.Text(&c.ProxyEndpoint, "", nil), "none",
			"serve no volumes: forward all calls to the CSI server at this unix socket or loopback host:port")),
		like(addressPattern, row(proxyListenFlag, setting.Text(&c.ProxyListen, "", nil), "none",
			"serve no volumes: join each connection to the endpoint with one that a CSI server makes to this unix socket or loopback host:port")),
		like(loopbackPattern, row(tcpFlag, setting.Text(&c.TCPEndpoint, "", checkLoopback), "none",
			"also serve on this loopback host:port, for tests; every process of the machine can call it")),
	}
}

func poolSettings(c *Config) []Setting {
	return []Setting{
		row("pool", setting.Map(&c.Pools, map[string]string{"default": "/var/lib/touchstone/pool"}, "NAME=DIRECTORY", checkPool), "",
			"a pool of volumes"),
		like(capacityPattern, row("capacity", setting.Sizes(&c.Capacities), "none",
			"for tests: how much a pool may provision, whatever space it has, such as ssd=100Gi")),
		like(sizePattern, row("pool-image-size", setting.Size(&c.PoolImageBytes, 0), "no image",
			"embed in each pool whose filesystem cannot reflink one that can, such as 100Gi large")),
		row("pool-image-fs", setting.Word(&c.PoolImageFS, embedded.DefaultFilesystem, embedded.Filesystems()...), "",
			"the filesystem of a new embedded pool"),
		row("shared", setting.Bool(&c.Shared, false, false), "", "the pools are on a filesystem that every node mounts: volumes attach anywhere"),
		row("overcommit", setting.Float(&c.Overcommit, 1, maxOvercommit), "", "overcommit ratio: how many times its space a pool may provision"),
		row("max-volumes-per-node", setting.Int(&c.MaxVolumesPerNode, 0, math.MaxInt64), "no limit", "how many volumes a node takes"),
		like(sizePattern,
			row("max-volume-size", setting.Size(&c.MaxVolumeBytes, 0), "no limit but the pool's", "the largest volume, such as 10Gi")),
		row("ephemeral-mkfs-options", setting.Bool(&c.Node.EphemeralMkfsOptions, false, false), "",
			"let inline ephemeral volumes have mkfsOptions"),
		row("coalesce-window", setting.Duration(&c.Controller.CoalesceWindow, DefaultCoalesceWindow), "no wait",
			"how long a change of a volume waits for others to be made together with it"),
		like(capabilityPattern(), row("disable-capability", setting.List(&c.Disabled, nil, nil), "none",
			"a capability that is neither advertised nor served, such as EXPAND_VOLUME, or of one service only, node:EXPAND_VOLUME")),
	}
}

func nodeSettings(c *Config) []Setting {
	return []Setting{
		like(topologyPattern,
			row("topology", setting.Map(&c.Topology, nil, "KEY=VALUE", nil), "none", "a further topology segment of this node")),
		row("kubelet-dir", setting.Text(&c.KubeletDir, "/var/lib/kubelet", checkAbsolute), "", "the directory in which target paths may lie"),
		like(absolutePattern,
			row("allow-path", setting.List(&c.AllowPaths, nil, checkAbsolute), "none", "a further directory in which target paths may lie")),
		row("kubelet-registration-dir", setting.Text(&c.Registration.Directory, "", nil), "off",
			"register with the kubelet in this directory, such as /var/lib/kubelet/plugins_registry"),
		like(endpointPattern, row("kubelet-registration-endpoint", setting.Text(&c.Registration.Endpoint, "", nil), "`--endpoint`'s path",
			"the endpoint's path as the kubelet sees it, on the host")),
		like(taintPattern, row("startup-taint", setting.Text(&c.StartupTaint, "", checkTaint), "none",
			"remove the taint with this key from the Kubernetes node once the driver is registered, such as csi.touchstone.dev/agent-not-ready")),
		row("simulate-node", setting.Bool(&c.SimulateNode, false, false), "",
			"for tests of COs without root: record the node's calls, and mount nothing"),
		row("volume-mount-group", setting.Bool(&c.VolumeMountGroup, false, false), "",
			"let the driver instead of the kubelet apply the pod's fsGroup to volumes"),
		row("kubeconfig", setting.Text(&c.Claims.Kubeconfig, "", nil), "off",
			"let the controller read claims that request direct assignment: a kubeconfig file, or "+claim.InCluster),
		row("cgroup-root", setting.Text(&c.Node.CgroupRoot, cgroup.DefaultCgroupRoot, checkAbsolute), "",
			"where the machine's cgroups are mounted"),
		row("first-loop-device", setting.Int(&c.Node.Loops.First, loop.DefaultFirst, loop.MaxNumber), "",
			"the loop device number of a node's first attachment"),
		like(absolutePattern, row("direct-volume-root", setting.Text(&c.Node.Direct.Root, kata.DefaultRoot, checkAbsolute), "",
			"directory in which VM-based runtimes expect the volumes assigned to them")),
		like(absolutePattern, row("shim-root", setting.List(&c.Node.Direct.Guest.ShimRoots, kata.DefaultShimRoots(), checkAbsolute), "",
			"a directory in which sandboxes of such runtimes have theirs, with their shims' sockets")),
		like(absolutePattern, row("kata-runtime", setting.Text(&c.Node.Direct.Guest.KataRuntime, "", checkAbsolute), "none",
			"the kata-runtime binary by which guests are queried instead of the shims' sockets")),
		like(hostPathPattern, row("host-path-map", setting.List(&c.Node.Direct.HostPaths, nil, nil), "none",
			"what this process sees below FROM is below TO on the host, as FROM=TO")),
	}
}

func healthSettings(c *Config) []Setting {
	return []Setting{
		row("health-events", setting.Bool(&c.Health.PollingOnly, true, true), "",
			"probe volumes at kernel events; false probes all each --health-relist-period only"),
		row("health-relist-period", setting.Duration(&c.Health.RelistPeriod, health.DefaultRelistPeriod), "",
			"the time between two probes of all volumes while an event source is missing"),
		row("health-evented-relist-period", setting.Duration(&c.Health.EventedRelistPeriod, health.DefaultEventedRelistPeriod), "",
			"the time between two probes of all volumes while all event sources are connected"),
		row("health-probe-timeout", setting.Duration(&c.Health.ProbeTimeout, health.DefaultProbeTimeout), "",
			"how long the probe of a volume may take before the volume is ProbeTimedOut"),
		row("io-error-hold", setting.Duration(&c.Node.IOErrorHold, probe.DefaultIOErrorHold), "",
			"how long a volume's last I/O error is a condition of it"),
		row("check-period", setting.Duration(&c.Node.CheckPeriod, DefaultCheckPeriod), "never",
			"the time between two checks of a volume's filesystem"),
	}
}

func observerSettings(c *Config) []Setting {
	return []Setting{
		row("http-endpoint", setting.Text(&c.HTTPEndpoint, "", checkHostPort), "off",
			"host:port of the status page, /metrics, /healthz, /livez and /readyz"),
		like(hostPattern, row("http-host", setting.List(&c.HTTPHosts, nil, checkHostName), "none",
			"a further name by which clients call --http-endpoint, beside localhost and IP addresses")),
		row("pprof", setting.Bool(&c.Profiling, false, false), "", "serve the Go profiles of the process at /debug/pprof/ of --http-endpoint"),
		like(collectorPattern, row("otlp-endpoint", setting.Text(&c.OTLPEndpoint, "", checkCollector), "off",
			"URL of an OpenTelemetry collector (OTLP over gRPC) that gets traces of all calls")),
		like(callLogPattern, row("call-log", setting.Text(&c.CallLog, "", checkCallLog), "off",
			"record all calls for 'touchstone ctl calls': in memory ("+CallLogRing+"), or also appended to this file")),
		row("call-log-secrets", setting.Bool(&c.CallLogSecrets, false, false), "", "leave secrets and tokens in the call log"),
		row(strictFlag, strictMode{setting.Word(&c.Strict, "", "", strictObserve, "refuse")}, "off",
			"check the CO against the CSI spec: observe reports violations, refuse also refuses them"),
		row("faults", setting.Text(&c.Faults, "", nil), "none",
			"a YAML file of fault rules, by which calls fail on purpose (docs/faults.md); followed when it changes"),
		row("enable-faults", setting.Bool(&c.EnableFaults, false, false), "",
			"serve 'touchstone ctl fault', which adds fault rules, also without --faults"),
	}
}

// strictObserve is the value of --strict without one.
const strictObserve = "observe"

// strictMode also takes true and false.
type strictMode struct{ setting.Value }

// Set implements setting.Value.
func (m strictMode) Set(text string) error {
	switch text {
	case "true":
		text = strictObserve
	case "false":
		text = ""
	}

	return m.Value.Set(text)
}
