package ctl

import (
	"cmp"
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

// value is a flag of a type that pflag lacks. Its text is that of the default.
type value struct {
	kind, text string
	set        func(text string) error
}

// Set implements pflag.Value.
func (v *value) Set(text string) error { return v.set(text) }

// String implements pflag.Value.
func (v *value) String() string { return v.text }

// Type implements pflag.Value.
func (v *value) Type() string { return v.kind }

// size is a flag in bytes, with the suffixes of Kubernetes quantities: Ki Mi
// Gi Ti (of 1024) and k M G T (of 1000).
func size(to *int64) *value {
	return &value{kind: "size", set: func(text string) error {
		parsed, err := quantity.ParseSize(text)
		if err != nil {
			return fmt.Errorf("%.100q %w", text, err)
		}

		*to = parsed

		return nil
	}}
}

// span is a flag of a time that is not negative.
func span(to *time.Duration) *value {
	initial := ""
	if *to != 0 {
		initial = to.String()
	}

	return &value{"duration", initial, func(text string) error {
		parsed, err := time.ParseDuration(text)
		if err == nil && parsed < 0 {
			err = errNegative
		}

		if err == nil {
			*to = parsed
		}

		return err
	}}
}

// idKind is the type of flags that name an object, which are completed.
const idKind = "id"

// identifier is a flag that must not be empty: a script whose variable is empty by mistake
// must not get the result of a missing flag, such as an empty volume instead of a copy.
func identifier(to *string) *value {
	return &value{kind: idKind, set: func(text string) error {
		if text == "" {
			return errNoID
		}

		*to = text

		return nil
	}}
}

const (
	outputTable = "table"
	outputWide  = "wide"
	outputJSON  = "json"
	outputYAML  = "yaml"
	outputName  = "name"
)

var outputFormats = []string{outputTable, outputWide, outputJSON, outputYAML, outputName}

func outputFormat(to *string) *value {
	*to = outputTable

	return &value{strings.Join(outputFormats, "|"), *to, func(text string) error {
		if !slices.Contains(outputFormats, text) {
			return errBadFormat
		}

		*to = text

		return nil
	}}
}

// accessMode is a flag that accepts the spec's names, in any case and with dashes.
// The mode is UNKNOWN if it is not given.
func accessMode(to *csi.VolumeCapability_AccessMode_Mode) *value {
	return &value{"mode", defaultMode.String(), func(text string) error {
		mode, err := parseMode(text)
		if err == nil {
			*to = mode
		}

		return err
	}}
}

func parseMode(text string) (csi.VolumeCapability_AccessMode_Mode, error) {
	name := strings.ToUpper(strings.ReplaceAll(text, "-", "_"))
	if !slices.Contains(accessModes(), name) {
		return 0, fmt.Errorf("%w; known are %s", errUnknownMode, strings.Join(accessModes(), ", "))
	}

	return csi.VolumeCapability_AccessMode_Mode(csi.VolumeCapability_AccessMode_Mode_value[name]), nil
}

// keyValues is a repeatable flag of one KEY=VALUE each. (pflag's own splits at
// commas, which mkfs options have.)
func keyValues(to *map[string]string) *value { //nolint:gocritic // it makes the map
	return &value{kind: "key=value", set: func(text string) error {
		key, val, found := strings.Cut(text, "=")
		if !found || key == "" {
			return errNotPair
		}

		if *to == nil {
			*to = map[string]string{}
		}

		(*to)[key] = val

		return nil
	}}
}

// accessModes returns the names of all modes but UNKNOWN.
func accessModes() []string {
	all := slices.Sorted(maps.Keys(csi.VolumeCapability_AccessMode_Mode_value))

	return slices.DeleteFunc(all, func(name string) bool { return csi.VolumeCapability_AccessMode_Mode_value[name] == 0 })
}

const defaultMode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

// capabilityFlags are the flags of a volume capability.
type capabilityFlags struct {
	block      bool
	fs         string
	mountFlags []string
	mode       csi.VolumeCapability_AccessMode_Mode
}

func (f *capabilityFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.block, "block", false, "a raw device instead of a filesystem")
	flags.StringVar(&f.fs, "fs", "", "filesystem: one of "+strings.Join(filesystem.Names(), ", ")+" (default: the driver's choice)")
	flags.StringArrayVar(&f.mountFlags, mountFlag, nil, "a mount option, such as noatime (repeatable)")
	flags.Var(accessMode(&f.mode), "access-mode", "one of the spec's access modes")
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
		if flag := cmd.Flags().Lookup(name); flag != nil && flag.Value.Type() == idKind {
			_ = cmd.RegisterFlagCompletionFunc(name, s.completeNames(kind))
		}
	}
}

func (f *capabilityFlags) capability() (*csi.VolumeCapability, error) {
	mode := cmp.Or(f.mode, defaultMode)

	if !f.block {
		return csiclient.MountCapability(mode, f.fs, f.mountFlags...), nil
	}

	if f.fs != "" || len(f.mountFlags) > 0 {
		return nil, usage(errBlockAndFS)
	}

	return csiclient.BlockCapability(mode), nil
}

// topologies parses one set of segments per flag: --topology zone=a,rack=1.
func topologies(given []string) ([]*csi.Topology, error) {
	all := make([]*csi.Topology, len(given))

	for i, text := range given {
		all[i] = &csi.Topology{}
		segments := keyValues(&all[i].Segments)

		for pair := range strings.SplitSeq(text, ",") {
			if segments.set(pair) != nil {
				return nil, usage(fmt.Errorf("--topology %q: %w", text, errNotSegments))
			}
		}
	}

	return all, nil
}
