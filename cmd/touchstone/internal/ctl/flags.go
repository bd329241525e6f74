package ctl

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	volumes "github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/quantity"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
)

var (
	errBadFormat   = errors.New("must be table, wide, json, yaml or name")
	errUnknownMode = errors.New("unknown access mode")
	errNotPair     = errors.New("must be KEY=VALUE")
	errNotSegments = errors.New("must be KEY=VALUE, or several with commas between")
	errNegative    = errors.New("must not be negative")
	errNoID        = errors.New("must not be empty")
	errBlockAndFS  = errors.New("--block has no filesystem: leave out --fs and --mount-flag")
)

// size is a flag in bytes, with the suffixes of Kubernetes quantities: Ki Mi
// Gi Ti (of 1024) and k M G T (of 1000).
type size int64

func (s *size) Set(text string) error {
	return (*quantity.Bytes)(s).Set(text)
}

func (s *size) String() string {
	if *s == 0 {
		return ""
	}

	return formatBytes(int64(*s))
}

func (*size) Type() string { return "size" }

// span is a flag of a time that is not negative.
type span time.Duration

func (s *span) Set(text string) error {
	parsed, err := time.ParseDuration(text)

	switch {
	case err != nil:
		return err
	case parsed < 0:
		return errNegative
	default:
		*s = span(parsed)

		return nil
	}
}

func (s *span) String() string {
	if *s == 0 {
		return ""
	}

	return time.Duration(*s).String()
}

func (*span) Type() string { return "duration" }

// identifier is a flag that must not be empty: a script whose variable is empty by mistake
// must not get the result of a missing flag, such as an empty volume instead of a copy.
type identifier string

func (i *identifier) Set(text string) error {
	if text == "" {
		return errNoID
	}

	*i = identifier(text)

	return nil
}

func (i *identifier) String() string { return string(*i) }

func (*identifier) Type() string { return "id" }

type outputFormat string

const (
	outputTable outputFormat = "table"
	outputWide  outputFormat = "wide"
	outputJSON  outputFormat = "json"
	outputYAML  outputFormat = "yaml"
	outputName  outputFormat = "name"
)

var outputFormats = []string{string(outputTable), string(outputWide), string(outputJSON), string(outputYAML), string(outputName)}

func (f *outputFormat) Set(text string) error {
	if !slices.Contains(outputFormats, text) {
		return errBadFormat
	}

	*f = outputFormat(text)

	return nil
}

func (f *outputFormat) String() string { return string(*f) }

func (*outputFormat) Type() string { return strings.Join(outputFormats, "|") }

// accessMode is a flag that accepts the spec's names, in any case and with dashes.
type accessMode csi.VolumeCapability_AccessMode_Mode

func (m *accessMode) Set(text string) error {
	name := strings.ToUpper(strings.ReplaceAll(text, "-", "_"))

	number, known := csi.VolumeCapability_AccessMode_Mode_value[name]
	if !known || number == 0 {
		return fmt.Errorf("%w; known are %s", errUnknownMode, strings.Join(accessModes(), ", "))
	}

	*m = accessMode(number)

	return nil
}

func (m *accessMode) String() string { return csi.VolumeCapability_AccessMode_Mode(*m).String() }

func (*accessMode) Type() string { return "mode" }

// accessModes returns the names of all modes but UNKNOWN.
func accessModes() []string {
	all := slices.Sorted(maps.Keys(csi.VolumeCapability_AccessMode_Mode_value))

	return slices.DeleteFunc(all, func(name string) bool { return csi.VolumeCapability_AccessMode_Mode_value[name] == 0 })
}

const (
	unknownMode = accessMode(csi.VolumeCapability_AccessMode_UNKNOWN)
	defaultMode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
)

// capabilityFlags are the flags of a volume capability.
type capabilityFlags struct {
	block      bool
	fs         string
	mountFlags []string
	mode       accessMode
}

func (f *capabilityFlags) register(flags *pflag.FlagSet) {
	f.mode = accessMode(defaultMode)

	flags.BoolVar(&f.block, "block", false, "a raw device instead of a filesystem")
	flags.StringVar(&f.fs, "fs", "", "filesystem: one of "+strings.Join(filesystem.Names(), ", ")+" (default: the driver's choice)")
	flags.StringArrayVar(&f.mountFlags, mountFlag, nil, "a mount option, such as noatime (repeatable)")
	flags.Var(&f.mode, "access-mode", "one of the spec's access modes")
}

// completeFlags completes the flags of a command that have a fixed set of values, and those that name objects.
// A registration fails only for a flag that the command does not have.
func (s *settings) completeFlags(cmd *cobra.Command) {
	for name, values := range map[string][]string{
		"output": outputFormats, "fs": filesystem.Names(), "access-mode": accessModes(),
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}

	parameters := []string{volumes.KeyConsistency} // of a snapshot
	if cmd.Flags().Lookup("fs") != nil {
		parameters = volumes.ParameterKeys()
	}

	for name, keys := range map[string][]string{"param": parameters, "mutable": volumes.MutableKeys()} {
		for i := range keys {
			keys[i] += "="
		}

		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(keys, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	}

	for name, kind := range map[string]names.Kind{
		"from-snapshot": names.Snapshot, "since": names.Snapshot, "from-volume": names.Volume, "volume": names.Volume,
	} {
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Value.Type() == (*identifier)(nil).Type() {
			_ = cmd.RegisterFlagCompletionFunc(name, s.completeNames(kind))
		}
	}
}

func (f *capabilityFlags) capability() (*csi.VolumeCapability, error) {
	mode := csi.VolumeCapability_AccessMode_Mode(f.mode)

	if !f.block {
		return csiclient.MountCapability(mode, f.fs, f.mountFlags...), nil
	}

	if f.fs != "" || len(f.mountFlags) > 0 {
		return nil, usage(errBlockAndFS)
	}

	return csiclient.BlockCapability(mode), nil
}

// keyValues is a repeatable flag of one KEY=VALUE each. (pflag's own splits at
// commas, which mkfs options have.)
type keyValues map[string]string

func (m *keyValues) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return errNotPair
	}

	if *m == nil {
		*m = keyValues{}
	}

	(*m)[key] = value

	return nil
}

func (m *keyValues) String() string {
	if len(*m) == 0 {
		return ""
	}

	return formatPairs(*m)
}

func (*keyValues) Type() string { return "key=value" }

// topologies parses one set of segments per flag: --topology zone=a,rack=1.
func topologies(given []string) ([]*csi.Topology, error) {
	all := make([]*csi.Topology, len(given))

	for i, text := range given {
		var segments keyValues

		for pair := range strings.SplitSeq(text, ",") {
			if segments.Set(pair) != nil {
				return nil, usage(fmt.Errorf("--topology %q: %w", text, errNotSegments))
			}
		}

		all[i] = &csi.Topology{Segments: segments}
	}

	return all, nil
}
