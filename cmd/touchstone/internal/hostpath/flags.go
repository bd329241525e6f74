package hostpath

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/quantity"
)

// ErrFlag is returned for a flag that cannot be served.
var ErrFlag = errors.New("flag")

const (
	defaultDriverName = "hostpath.csi.k8s.io"
	defaultMaxVolume  = 1 << 40
	// randomLimit and maxRandomLimit are the value of -attach-limit that means a random one, and its
	// bound.
	randomLimit    = -1
	maxRandomLimit = 10
	// unlimited is the overcommit ratio without -capacity: only the size of one volume is limited.
	unlimited = "1000000"
	// ofKlog describes a flag of klog.
	ofKlog = "of klog; has no effect"
	// socketName is of the unix socket of a driver that is served on TCP.
	socketName = "csi.sock"
)

// Flags are those of hostpathplugin, and those of klog, of which only -v has an effect.
type Flags struct {
	set *flag.FlagSet

	endpoint, driverName, stateDir, nodeID string
	proxyEndpoint, blockType               string
	maxVolumesPerNode, attachLimit         int64
	maxVolumeSize, maxVolumeSizeNode       int64
	capacities                             map[string]int64
	mutable                                []string
	attach, topology, expansion, modify    bool
	metadata, listSnapshots                bool
	ephemeral, lifecycle                   bool
	noControllerExpansion, noNodeExpansion bool
	version                                bool
	verbosity                              int
}

// NewFlags returns the flags with hostpathplugin's defaults.
func NewFlags(problems io.Writer) *Flags {
	f := &Flags{set: flag.NewFlagSet("hostpathplugin", flag.ContinueOnError), capacities: map[string]int64{}}
	f.set.SetOutput(problems)
	f.set.StringVar(&f.endpoint, "endpoint", "unix:///tmp/csi.sock", "CSI endpoint: unix://PATH, a path, or tcp://HOST:PORT of the loopback")
	f.set.StringVar(&f.driverName, "drivername", defaultDriverName, "name of the driver")
	f.set.StringVar(&f.stateDir, "statedir", "/csi-data-dir", "directory in which the driver has one of its own name")
	f.set.StringVar(&f.nodeID, "nodeid", "", "node id")
	f.set.BoolVar(&f.ephemeral, "ephemeral", false, "publish each volume as an inline ephemeral one")
	f.set.Int64Var(&f.maxVolumesPerNode, "maxvolumespernode", 0, "limit of volumes per node; 0 is none")
	f.set.Int64Var(&f.attachLimit, "attach-limit", 0, "like maxvolumespernode, which it overrides; -1 is a random one of 1 to 10")
	f.set.Func("capacity", "capacity of the StorageClasses whose parameter 'kind' is KIND, as KIND=SIZE (repeatable)", f.addCapacity)
	f.set.BoolVar(&f.attach, "enable-attach", false, "serve ControllerPublishVolume")
	f.set.BoolVar(&f.lifecycle, "check-volume-lifecycle", false, "fail violations of a volume's lifecycle at once")
	f.set.Int64Var(&f.maxVolumeSize, "max-volume-size", defaultMaxVolume, "size of the largest volume in bytes")
	f.set.Int64Var(&f.maxVolumeSizeNode, "max-volume-size-node", 0, "largest size for NodeExpandVolume in bytes; 0 is that of max-volume-size")
	f.set.BoolVar(&f.topology, "enable-topology", true, "advertise the node's topology, with the key "+TopologyKey)
	f.set.BoolVar(&f.expansion, "node-expand-required", true, "deprecated: enable-volume-expansion")
	f.set.BoolVar(&f.expansion, "enable-volume-expansion", true, "serve expansion")
	f.set.BoolVar(&f.noControllerExpansion, "disable-controller-expansion", false, "serve no ControllerExpandVolume")
	f.set.BoolVar(&f.noNodeExpansion, "disable-node-expansion", false, "serve no NodeExpandVolume")
	f.set.BoolVar(&f.modify, "enable-controller-modify-volume", false, "serve ControllerModifyVolume")
	f.set.Func("accepted-mutable-parameter-names", "mutable parameters that are accepted, separated by commas (default: all)", f.addMutable)
	f.set.BoolVar(&f.metadata, "enable-snapshot-metadata", false, "serve SnapshotMetadata")
	f.set.StringVar(&f.blockType, "snapshot-metadata-block-type", "FIXED_LENGTH", "FIXED_LENGTH or VARIABLE_LENGTH")
	f.set.BoolVar(&f.listSnapshots, "enable-list-snapshots", true, "serve ListSnapshots")
	f.set.StringVar(&f.proxyEndpoint, "proxy-endpoint", "",
		"serve no volumes: join connections to the endpoint with those to this one, such as tcp://:9000")
	f.set.Bool("automaxprocs", false, "has no effect: Go does it by itself")
	f.set.BoolVar(&f.version, "version", false, "print the version")
	f.set.IntVar(&f.verbosity, "v", 0, "how much to log; from 5 on, each call with its secrets")
	f.ignoreFlagsOfKlog()

	return f
}

// ignoreFlagsOfKlog accepts the other flags of klog. All of them have a value, or are boolean.
func (f *Flags) ignoreFlagsOfKlog() {
	own := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(own)
	own.VisitAll(func(each *flag.Flag) {
		if f.set.Lookup(each.Name) != nil {
			return
		}

		if boolean, is := each.Value.(interface{ IsBoolFlag() bool }); is && boolean.IsBoolFlag() {
			f.set.Bool(each.Name, false, ofKlog)
		} else {
			f.set.String(each.Name, "", ofKlog)
		}
	})
}

// Parse reads the arguments, with one dash or two. Errors: flag.ErrHelp, ErrFlag.
func (f *Flags) Parse(args []string) error {
	err := f.set.Parse(args)

	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return fmt.Errorf("%w: %w", ErrFlag, err)
	case f.set.NArg() > 0:
		return fmt.Errorf("%w: %q is one argument too many", ErrFlag, f.set.Arg(0))
	case f.version || f.proxyEndpoint != "":
		return nil
	case f.nodeID == "":
		return fmt.Errorf("%w: -nodeid is missing", ErrFlag)
	// UNKNOWN is a type of the spec, but of no message.
	case f.MetadataBlocks() == csi.BlockMetadataType_UNKNOWN:
		return fmt.Errorf("%w: -snapshot-metadata-block-type is %q; it must be FIXED_LENGTH or VARIABLE_LENGTH", ErrFlag, f.blockType)
	}

	for kind := range f.capacities {
		if filepath.Base(kind) != kind || kind == "." || kind == ".." || strings.Contains(kind, ",") {
			return fmt.Errorf("%w: -capacity: the kind %q is no name of a directory without a comma", ErrFlag, kind)
		}
	}

	return nil
}

// IsVersion reports whether only the version is asked for.
func (f *Flags) IsVersion() bool { return f.version }

// MetadataBlocks is the type of the ranges of SnapshotMetadata.
func (f *Flags) MetadataBlocks() csi.BlockMetadataType {
	return csi.BlockMetadataType(csi.BlockMetadataType_value[f.blockType])
}

// DetachesInUse reports whether a volume may be detached while it is in use: hostpathplugin only warns
// then, unless it checks the lifecycle of volumes. Kubernetes does so if attachRequired becomes false.
func (f *Flags) DetachesInUse() bool { return !f.lifecycle }

// ProxyArgs are the arguments of `touchstone serve` for a proxy, if one is asked for.
func (f *Flags) ProxyArgs() (args []string, asked bool) {
	return []string{"--endpoint=" + f.endpoint, "--proxy-listen=" + f.proxyEndpoint}, f.proxyEndpoint != ""
}

// Directory is the driver's own, which several drivers on one host do not share.
func (f *Flags) Directory() string { return filepath.Join(f.stateDir, f.driverName) }

// StateDir is the directory of the driver's state.
func (f *Flags) StateDir() string { return filepath.Join(f.Directory(), "state") }

// Pools maps a pool's name to its directory: there is one for each kind of capacity.
func (f *Flags) Pools() map[string]string {
	pools := map[string]string{}
	for kind := range f.capacities {
		pools[kind] = filepath.Join(f.Directory(), "pool-"+kind)
	}

	if len(pools) == 0 {
		pools[volume.DefaultPool] = filepath.Join(f.Directory(), "pool")
	}

	return pools
}

// Args are the arguments of `touchstone serve` that have the same effect. The environment may have
// others.
func (f *Flags) Args(kubeletDirs []string) []string {
	endpoint := f.endpoint
	args := []string{
		"--driver-name=" + f.driverName, "--node-id=" + f.nodeID, "--state-dir=" + f.StateDir(),
		"--max-volume-size=" + strconv.FormatInt(f.maxVolumeSize, 10), "--max-volumes-per-node=" + strconv.FormatInt(f.limit(), 10),
		"--v=" + strconv.Itoa(f.verbosity), "--kubelet-dir=" + kubeletDirs[0],
	}

	if address, isTCP := strings.CutPrefix(endpoint, "tcp://"); isTCP {
		args, endpoint = append(args, "--tcp-endpoint="+withHost(address)), filepath.Join(f.Directory(), socketName)
	}

	args = append(args, "--endpoint="+endpoint)

	for _, directory := range kubeletDirs[1:] {
		args = append(args, "--allow-path="+directory)
	}

	pools := f.Pools()
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		args = append(args, "--pool="+name+"="+pools[name])
	}

	if len(f.capacities) == 0 {
		args = append(args, "--overcommit="+unlimited)
	}

	for _, kind := range slices.Sorted(maps.Keys(f.capacities)) {
		args = append(args, fmt.Sprintf("--capacity=%s=%d", kind, f.capacities[kind]))
	}

	for _, name := range f.disabled() {
		args = append(args, "--disable-capability="+name)
	}

	return args
}

func (f *Flags) limit() int64 {
	switch {
	case f.attachLimit == randomLimit:
		return 0 // nothing is enforced, as there
	case f.attachLimit > 0:
		return f.attachLimit
	default:
		return f.maxVolumesPerNode
	}
}

func (f *Flags) disabled() []string {
	// Hostpathplugin never has it.
	names := []string{string(capability.SnapshotConstraints)}

	for _, each := range []struct {
		off  bool
		name capability.Name
	}{
		{f.ephemeral, capability.ControllerService},
		{!f.attach, capability.PublishUnpublishVolume},
		{!f.topology, capability.VolumeAccessibilityConstraints},
		{!f.modify, capability.ModifyVolume},
		{!f.metadata, capability.SnapshotMetadataService},
		{!f.listSnapshots, capability.ListSnapshots},
		{!f.expansion, capability.ExpandVolume},
		{f.expansion && f.noControllerExpansion, "controller:" + capability.ExpandVolume},
		{f.expansion && f.noNodeExpansion, "node:" + capability.ExpandVolume},
	} {
		if each.off {
			names = append(names, string(each.name))
		}
	}

	return names
}

// withHost adds the loopback to an address without a host.
func withHost(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		return net.JoinHostPort("127.0.0.1", port)
	}

	return address
}

// addCapacity parses a value of -capacity.
func (f *Flags) addCapacity(text string) error {
	kind, size, found := strings.Cut(text, "=")
	if !found || kind == "" {
		return fmt.Errorf("%w: %q is not KIND=SIZE, such as fast=100Gi", ErrFlag, text)
	}

	bytes, err := quantity.Parse(size)
	if err != nil {
		return err
	}

	f.capacities[kind] = bytes

	return nil
}

// addMutable parses a value of -accepted-mutable-parameter-names.
func (f *Flags) addMutable(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		f.mutable = append(f.mutable, strings.TrimSpace(name))
	}

	return nil
}
