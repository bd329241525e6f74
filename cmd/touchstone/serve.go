package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/internal/lab/strict"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/internal/quantity"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
)

// gcPercent bounds garbage to half of the live heap.
const gcPercent = 50

// logTimeout bounds the writing of the last line to the log.
const logTimeout = 100 * time.Millisecond

// serveFlags are the flags of serve that are not fields of driver.Config as
// they are.
type serveFlags struct {
	driver.Config

	mode            string
	pools, segments []string
	capacities      []string
	maxVolumeBytes  quantity.Bytes
	poolImageBytes  quantity.Bytes
	logFormat       string
	verbosity       int
	proxyEndpoint   string
	proxyListen     string
	config          string
	strict          string
	healthEvents    bool
}

func newServeCommand() *cobra.Command {
	given := &serveFlags{}
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve CSI calls on a unix socket until SIGTERM (the default command)",
		Long: `Serve CSI calls on a unix socket. SIGTERM or SIGINT drains: running operations
finish, then the process ends with 0. A second signal ends it at once with 1.

Every flag is also an environment variable (TOUCHSTONE_ and the flag's name in
upper case, dashes as underscores) and a key of the YAML file that --config
names. A flag wins over the environment, the environment over the file.
CSI_ENDPOINT is the endpoint where neither --endpoint nor TOUCHSTONE_ENDPOINT is.`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error { return serve(command, given) },
	}
	given.define(command.Flags())

	return command
}

func (f *serveFlags) define(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&f.mode, "mode", string(driver.ModeAll), "which services to serve: all, controller or node")
	flags.StringVar(&f.Endpoint, "endpoint", "unix:///run/touchstone/csi.sock",
		"the socket to serve on; an old one is replaced, a live one refused")
	flags.StringVar(&f.DriverName, "driver-name", "csi.touchstone.dev", "the driver's name, a domain name")
	flags.StringVar(&f.NodeID, "node-id", "", "this node's id (default: the hostname)")
	flags.StringSliceVar(&f.Controller.Nodes, "nodes", nil, "further node ids that the controller may attach volumes to (repeatable)")
	flags.StringVar(&f.StateDir, "state-dir", "/var/lib/touchstone/state", "directory of the driver's state")
	f.definePools(flags)
	flags.StringSliceVar(&f.segments, "topology", nil, "a further topology segment of this node as KEY=VALUE (repeatable)")
	flags.BoolVar(&f.Shared, "shared", false, "the pools are on a filesystem that every node mounts: volumes attach anywhere")
	flags.Int64Var(&f.MaxVolumesPerNode, "max-volumes-per-node", 0, "how many volumes a node takes; 0 is no limit")
	flags.Var(&f.maxVolumeBytes, "max-volume-size", "the largest volume, such as 10Gi; 0 is no limit but the pool's")
	flags.BoolVar(&f.Node.EphemeralMkfsOptions, "ephemeral-mkfs-options", false, "let inline ephemeral volumes have mkfsOptions")
	flags.Float64Var(&f.Overcommit, "overcommit", 1, "overcommit ratio: how many times its space a pool may provision")
	flags.StringSliceVar(&f.Disabled, "disable-capability", nil,
		"a capability that is neither advertised nor served, such as EXPAND_VOLUME, or of one service only, node:EXPAND_VOLUME (repeatable)")
	flags.StringVar(&f.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the directory in which target paths may lie")
	flags.StringSliceVar(&f.AllowPaths, "allow-path", nil, "a further directory in which target paths may lie (repeatable)")
	flags.StringVar(&f.Registration.Directory, "kubelet-registration-dir", "",
		"register with the kubelet in this directory, such as /var/lib/kubelet/plugins_registry; empty is off")
	flags.StringVar(&f.Registration.Endpoint, "kubelet-registration-endpoint", "",
		"the endpoint's path as the kubelet sees it, on the host (default: the endpoint's)")
	flags.BoolVar(&f.SimulateNode, "simulate-node", false,
		"for tests of COs without root: record the node's calls, and mount nothing")
	flags.BoolVar(&f.VolumeMountGroup, "volume-mount-group", false,
		"let the driver instead of the kubelet apply the pod's fsGroup to volumes")
	flags.StringVar(&f.Claims.Kubeconfig, "kubeconfig", "",
		"let the controller read claims that request direct assignment: a kubeconfig file, or "+claim.InCluster+"; empty is off")
	flags.StringVar(&f.Node.CgroupRoot, "cgroup-root", cgroup.DefaultCgroupRoot, "where the machine's cgroups are mounted")
	flags.DurationVar(&f.Controller.CoalesceWindow, "coalesce-window", driver.DefaultCoalesceWindow,
		"how long a change of a volume waits for others to be made together with it; 0 is not at all")
	f.defineHealth(flags)
	f.defineDirect(flags)
	f.defineObservers(flags)
	flags.IntVar(&f.Node.Loops.First, "first-loop-device", loop.DefaultFirst, "the loop device number of a node's first attachment")
	flags.StringVar(&f.proxyEndpoint, "proxy-endpoint", "",
		"serve no volumes: forward all calls to the CSI server at this unix socket or loopback host:port")
	flags.StringVar(&f.proxyListen, "proxy-listen", "",
		"serve no volumes: join each connection to the endpoint with one that a CSI server makes to this unix socket or loopback host:port")
	flags.StringVar(&f.TCPEndpoint, "tcp-endpoint", "",
		"also serve on this loopback host:port, for tests; every process of the machine can call it; empty is off")
	flags.StringVar(&f.HTTPEndpoint, "http-endpoint", "", "host:port of the status page, /metrics, /healthz, /livez and /readyz; empty is off")
	flags.StringSliceVar(&f.HTTPHosts, "http-host", nil,
		"a further name by which clients call --http-endpoint, beside localhost and IP addresses (repeatable)")
	flags.StringVar(&f.OTLPEndpoint, "otlp-endpoint", "",
		"URL of an OpenTelemetry collector (OTLP over gRPC) that gets traces of all calls; empty is off")
	flags.StringVar(&f.Faults, "faults", "",
		"a YAML file of fault rules, by which calls fail on purpose (docs/faults.md); followed when it changes")
	flags.BoolVar(&f.EnableFaults, "enable-faults", false, "serve 'touchstone ctl fault', which adds fault rules, also without --faults")
	flags.BoolVar(&f.Profiling, "pprof", false, "serve the Go profiles of the process at /debug/pprof/ of --http-endpoint")
	flags.StringVar(&f.ReadyFile, "ready-file", "", "a file that exists while the driver is ready")
	flags.DurationVar(&f.DrainTimeout, "drain-timeout", driver.DefaultDrainTimeout,
		"how long the process may take to end after SIGTERM, also when something hangs")
	flags.StringVar(&f.logFormat, "log-format", "text", "how to log to standard error: text or json")
	flags.IntVarP(&f.verbosity, "v", "v", 2,
		"how much to log: 0 failures, 2 each change, 4 each call, 5 messages without their secrets")
	flags.StringVar(&f.config, configFlag, "", "a YAML file with these flags' names as keys")
	restrictLists(flags)
}

func (f *serveFlags) definePools(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.pools, "pool", []string{"default=/var/lib/touchstone/pool"},
		"a pool of volumes as NAME=DIRECTORY (repeatable)")
	flags.StringSliceVar(&f.capacities, "capacity", nil,
		"for tests: how much a pool may provision, whatever space it has, as NAME=SIZE, such as ssd=100Gi (repeatable)")
	flags.Var(&f.poolImageBytes, "pool-image-size",
		"embed in each pool whose filesystem cannot reflink one that can, such as 100Gi large; 0 makes none")
	flags.StringVar(&f.PoolImageFS, "pool-image-fs", embedded.DefaultFilesystem,
		"the filesystem of a new embedded pool: "+strings.Join(embedded.Filesystems(), " or "))
}

func (f *serveFlags) defineHealth(flags *pflag.FlagSet) {
	flags.BoolVar(&f.healthEvents, "health-events", true,
		"probe volumes at kernel events; false probes all each --health-relist-period only")
	flags.DurationVar(&f.Health.RelistPeriod, "health-relist-period", health.DefaultRelistPeriod,
		"the time between two probes of all volumes while an event source is missing")
	flags.DurationVar(&f.Health.EventedRelistPeriod, "health-evented-relist-period", health.DefaultEventedRelistPeriod,
		"the time between two probes of all volumes while all event sources are connected")
	flags.DurationVar(&f.Health.ProbeTimeout, "health-probe-timeout", health.DefaultProbeTimeout,
		"how long the probe of a volume may take before the volume is ProbeTimedOut")
	flags.DurationVar(&f.Node.IOErrorHold, "io-error-hold", probe.DefaultIOErrorHold,
		"how long a volume's last I/O error is a condition of it")
	flags.DurationVar(&f.Node.CheckPeriod, "check-period", driver.DefaultCheckPeriod,
		"the time between two checks of a volume's filesystem; 0 is never")
}

func (f *serveFlags) defineObservers(flags *pflag.FlagSet) {
	flags.StringVar(&f.CallLog, "call-log", "",
		"record all calls for 'touchstone ctl calls': in memory ("+driver.CallLogRing+"), or also appended to this file; empty is off")
	flags.BoolVar(&f.CallLogSecrets, "call-log-secrets", false, "leave secrets and tokens in the call log")
	flags.StringVar(&f.strict, "strict", "",
		"check the CO against the CSI spec: observe reports violations, refuse also refuses them; empty is off")
	flags.Lookup("strict").NoOptDefVal = strict.Observe
}

func (f *serveFlags) defineDirect(flags *pflag.FlagSet) {
	flags.StringVar(&f.Node.Direct.Root, "direct-volume-root", kata.DefaultRoot,
		"directory in which VM-based runtimes expect the volumes assigned to them")
	flags.StringSliceVar(&f.Node.Direct.Guest.ShimRoots, "shim-root", kata.DefaultShimRoots(),
		"a directory in which sandboxes of such runtimes have theirs, with their shims' sockets (repeatable)")
	flags.StringVar(&f.Node.Direct.Guest.KataRuntime, "kata-runtime", "",
		"the kata-runtime binary by which guests are queried instead of the shims' sockets")
	flags.StringSliceVar(&f.Node.Direct.HostPaths, "host-path-map", nil,
		"what this process sees below FROM is below TO on the host, as FROM=TO (repeatable)")
}

// complete turns the flags into the driver's configuration.
func (f *serveFlags) complete(log io.Writer) (driver.Config, error) {
	config := f.Config
	config.Mode = driver.Mode(f.mode)
	config.Health.PollingOnly = !f.healthEvents
	config.MaxVolumeBytes, config.PoolImageBytes = int64(f.maxVolumeBytes), int64(f.poolImageBytes)
	config.Version, config.Commit = thisBuild().version, thisBuild().commit

	problems := []error{f.checkAlone()}
	keep := func(err error) { problems = append(problems, err) }

	var err error

	config.Log, err = newLogger(log, f.logFormat, f.verbosity)
	keep(err)

	config.Pools, err = pairs("pool", "NAME=DIRECTORY", f.pools)
	keep(err)

	config.Capacities, err = sizes("capacity", f.capacities)
	keep(err)

	config.Topology, err = pairs("topology", "KEY=VALUE", f.segments)
	keep(err)

	if config.Strict, err = strict.ParseMode(f.strict); err != nil {
		keep(fmt.Errorf("%w: --strict: %w", errUsage, err))
	}

	if config.NodeID == "" {
		name, err := os.Hostname()
		if err != nil {
			return config, fmt.Errorf("find out this node's id: %w; give --node-id", err)
		}

		config.NodeID = name
	}

	if err := errors.Join(problems...); err != nil {
		return config, err
	}

	err = f.check(&config)

	return config, err
}

// checkAlone refuses values that mean a default in driver.Config.
func (f *serveFlags) checkAlone() error {
	var problems []error

	for flag, value := range map[string]time.Duration{
		"drain-timeout": f.DrainTimeout, "health-relist-period": f.Health.RelistPeriod, "io-error-hold": f.Node.IOErrorHold,
		"health-evented-relist-period": f.Health.EventedRelistPeriod, "health-probe-timeout": f.Health.ProbeTimeout,
	} {
		if value <= 0 {
			problems = append(problems, fmt.Errorf("%w: --%s %s is not above 0", errUsage, flag, value))
		}
	}

	for flag, value := range map[string]string{
		"cgroup-root": f.Node.CgroupRoot, "direct-volume-root": f.Node.Direct.Root, "pool-image-fs": f.PoolImageFS,
	} {
		if value == "" {
			problems = append(problems, fmt.Errorf("%w: --%s is empty; leave it out for its default", errUsage, flag))
		}
	}

	if f.Node.Loops.First == 0 {
		problems = append(problems, fmt.Errorf("%w: --first-loop-device 0 is not above 0", errUsage))
	}

	if f.verbosity < 0 {
		problems = append(problems, fmt.Errorf("%w: --v %d is negative; 0 logs failures only", errUsage, f.verbosity))
	}

	return errors.Join(problems...)
}

// check refuses what cannot work, before anything is opened or made.
func (f *serveFlags) check(config *driver.Config) error {
	switch {
	case f.proxyEndpoint != "" && f.proxyListen != "":
		return fmt.Errorf("%w: --proxy-endpoint and --proxy-listen exclude each other", errUsage)
	case f.proxyEndpoint != "":
		return config.CheckProxy(f.proxyEndpoint)
	case f.proxyListen != "":
		return config.CheckProxy(f.proxyListen)
	default:
		return config.Check()
	}
}

// pairs parses key=value arguments; each key may occur once.
func pairs(flag, shape string, given []string) (map[string]string, error) {
	read := make(map[string]string, len(given))

	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" || value == "" {
			return nil, fmt.Errorf("%w: --%s %q is not %s", errUsage, flag, text, shape)
		}

		if _, twice := read[key]; twice {
			return nil, fmt.Errorf("%w: --%s names %q twice", errUsage, flag, key)
		}

		read[key] = value
	}

	return read, nil
}

// sizes parses NAME=SIZE arguments.
func sizes(flag string, given []string) (map[string]int64, error) {
	texts, err := pairs(flag, "NAME=SIZE", given)
	if err != nil {
		return nil, err
	}

	read := make(map[string]int64, len(texts))

	for name, text := range texts {
		var size quantity.Bytes
		if err := size.Set(text); err != nil {
			return nil, fmt.Errorf("%w: --%s %s: %w", errUsage, flag, name, err)
		}

		read[name] = int64(size)
	}

	return read, nil
}

func newLogger(to io.Writer, format string, verbosity int) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: slog.Level(-verbosity), ReplaceAttr: replaceAttr}

	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(to, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(to, options)), nil
	default:
		return nil, fmt.Errorf("%w: --log-format %q is not text or json", errUsage, format)
	}
}

// replaceAttr gives text and JSON one schema: a line of verbosity 4 has level=INFO v=4, where slog
// would write INFO-4, and durations are seconds.
func replaceAttr(groups []string, attr slog.Attr) slog.Attr {
	switch value := attr.Value.Any().(type) {
	case slog.Level:
		if len(groups) > 0 || value >= slog.LevelInfo {
			return attr
		}

		return slog.Attr{Value: slog.GroupValue(slog.String(slog.LevelKey, slog.LevelInfo.String()), slog.Int("v", -int(value)))}
	case time.Duration:
		return slog.Float64(attr.Key, value.Seconds())
	default:
		return attr
	}
}

func serve(command *cobra.Command, given *serveFlags) error {
	config, err := given.complete(command.ErrOrStderr())
	if err != nil {
		return usageError(command, err)
	}

	// See docs/decisions/0013: the records of volumes are most of the heap, and Go's
	// default would allow as much garbage.
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(gcPercent)
	}

	// Kubernetes' libraries log through klog, whichever logger we have.
	klog.SetSlogLogger(config.Log)

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	ctx, stop := driver.UntilSignal(command.Context(), signals, config.DrainTimeout, func(code int) {
		time.AfterFunc(logTimeout, func() { os.Exit(code) }) // standard error may hang, too
		config.Log.Error("ended before the drain: at a second signal, or something hangs for longer than --drain-timeout")
		os.Exit(code)
	})
	defer stop()

	err = runUntil(ctx, config, given)

	if errors.Is(err, driver.ErrDrain) {
		return exitWith(exitNotWell, err)
	}

	return exitWith(exitCannot, err)
}

func runUntil(ctx context.Context, config driver.Config, given *serveFlags) error {
	switch {
	case given.proxyEndpoint != "":
		return driver.Forward(ctx, config, given.proxyEndpoint)
	case given.proxyListen != "":
		return driver.ForwardPaired(ctx, config, given.proxyListen)
	}

	built, err := driver.New(ctx, config)
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil // a start that was called off has not failed
	}

	if err != nil {
		return err
	}

	return built.Run(ctx)
}
