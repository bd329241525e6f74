package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
)

// envPrefix is the prefix of every flag's environment variable.
const envPrefix = "TOUCHSTONE_"

// configFlag names the flag whose value is a YAML file of further settings.
const configFlag = "config"

// envName is the environment variable of a flag.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// envNames are the environment variables of a flag; the first that is set wins. The spec defines
// CSI_ENDPOINT for the endpoint.
func envNames(flag string) []string {
	names := []string{envName(flag)}
	if flag == "endpoint" {
		names = append(names, ctl.SpecEndpointVariable)
	}

	return names
}

// applySettings sets the command's flags with the precedence flag, environment, file,
// default. A client of the driver has only the environment of its endpoint (package ctl). Unknown
// environment variables are ignored, because an orchestrator sets some of its own; an unknown key of
// the file is an error.
func applySettings(command *cobra.Command, lookup func(string) (string, bool)) error {
	flags := command.Flags()

	// A client's flags are not the driver's of the same name, such as --topology.
	if flags.Lookup(configFlag) == nil && flags.Lookup("endpoint") != nil {
		return nil
	}

	if asksForServes(flags) {
		applyRunning(flags, firstProcess)
	}

	if err := applyEnvironment(flags, lookup); err != nil {
		return usageError(command, err)
	}

	config := flags.Lookup(configFlag)
	if config == nil || config.Value.String() == "" {
		return nil
	}

	if err := applyFile(flags, config.Value.String()); err != nil {
		return usageError(command, fmt.Errorf("config file %s: %w", config.Value, err))
	}

	return nil
}

func applyEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var failure error

	flags.VisitAll(func(flag *pflag.Flag) {
		for _, variable := range envNames(flag.Name) {
			value, ok := lookup(variable)
			if !ok || flag.Changed || flag.Name == helpName || failure != nil {
				continue
			}

			if err := flags.Set(flag.Name, value); err != nil {
				failure = fmt.Errorf("environment variable %s: %w", variable, err)
			}
		}
	})

	return failure
}

func applyFile(flags *pflag.FlagSet, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read it: %w", err)
	}

	// A key that is there twice is an error of the decoder.
	settings := map[string]yaml.Node{}
	decoder := yaml.NewDecoder(bytes.NewReader(text))

	if err := decoder.Decode(&settings); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read it as YAML: %w", err)
	}

	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: there is a second document; put all keys into one", errUsage)
	}

	for _, key := range slices.Sorted(maps.Keys(settings)) {
		flag := flags.Lookup(key)
		if flag == nil && isOnlyServes(flags, key) {
			continue
		}

		if flag == nil || key == configFlag || key == helpName {
			return fmt.Errorf("%w: unknown key %q; the keys are %s", errUsage, key, strings.Join(keys(flags), ", "))
		}

		if flag.Changed {
			continue
		}

		value := settings[key]
		if err := setFrom(flag, &value); err != nil {
			return fmt.Errorf("key %q: %w", key, err)
		}

		flag.Changed = true
	}

	return nil
}

// asksForServes reports whether another command than serve uses serve's settings.
func asksForServes(flags *pflag.FlagSet) bool {
	config := flags.Lookup(configFlag)
	if config == nil {
		return false
	}

	_, asks := config.Annotations[ctl.DriversFile]

	return asks
}

// isOnlyServes reports whether a key of serve's file is not used by this command.
func isOnlyServes(flags *pflag.FlagSet, key string) bool {
	return asksForServes(flags) && newServeCommand().Flags().Lookup(key) != nil
}

// firstProcess is the driver in a container of the driver's.
const firstProcess = "/proc/1"

// applyRunning takes over the flags of a running driver if the process is one of this
// program: a shell in its container has its environment, but not its arguments.
func applyRunning(flags *pflag.FlagSet, process string) {
	running, err := os.Stat(filepath.Join(process, "exe"))
	if err != nil {
		return
	}

	own, err := os.Stat("/proc/self/exe")
	if err != nil || !os.SameFile(running, own) {
		return
	}

	text, err := os.ReadFile(filepath.Join(process, "cmdline"))
	if err != nil {
		return
	}

	args := withDefaultCommand(strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")[1:])
	serve := newServeCommand()

	if args[0] != serve.Name() || serve.Flags().Parse(args[1:]) != nil {
		return
	}

	serve.Flags().Visit(func(given *pflag.Flag) {
		if flag := flags.Lookup(given.Name); flag != nil && !flag.Changed {
			flag.Changed = take(flag, given) == nil
		}
	})
}

// take copies the value of another flag.
func take(flag, from *pflag.Flag) error {
	several, ok := flag.Value.(pflag.SliceValue)
	given, alsoOK := from.Value.(pflag.SliceValue)

	if ok && alsoOK {
		return several.Replace(given.GetSlice())
	}

	return flag.Value.Set(from.Value.String())
}

// setFrom sets a flag from a YAML value: a scalar for any, a list for those
// that may be repeated.
func setFrom(flag *pflag.Flag, value *yaml.Node) error {
	several, repeatable := flag.Value.(pflag.SliceValue)
	value = resolved(value)
	isList, nodes := value.Kind == yaml.SequenceNode, []*yaml.Node{value}

	switch {
	case isList && !repeatable:
		return fmt.Errorf("%w: a list, where one value is wanted", errUsage)
	case isList:
		nodes = value.Content
	}

	texts := make([]string, len(nodes))

	for i, node := range nodes {
		// `- zone: a` is a mapping, too.
		if node = resolved(node); node.Kind == yaml.MappingNode && repeatable {
			return fmt.Errorf("%w: a mapping; want a list of %s", errUsage, flag.Value.Type())
		}

		text, err := scalar(flag, node)
		if err != nil {
			return err
		}

		texts[i] = text
	}

	if isList {
		return several.Replace(texts)
	}

	return flag.Value.Set(texts[0])
}

// resolved is what an alias stands for.
func resolved(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}

	return node
}

// scalar returns a value as it is written in the file: YAML would make another text of some numbers,
// 7 of the node 007 and 1.1 of 1.10. A word that YAML 1.1 reads as true or false, such as a bare n, no
// or off, is never meant as a name.
func scalar(flag *pflag.Flag, value *yaml.Node) (string, error) {
	plain := value.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
	word := strings.ToLower(value.Value)
	isTrue := slices.Contains([]string{"y", "yes", "on", "true"}, word)
	isBool := isTrue || slices.Contains([]string{"n", "no", "off", "false"}, word)

	switch {
	case value.Kind != yaml.ScalarNode || slices.Contains([]string{"!!null", "!!binary"}, value.ShortTag()) ||
		strings.ContainsRune(value.Value, 0):
		return "", fmt.Errorf("%w: want text, a number, true or false", errUsage)
	case !plain || !isBool:
		return value.Value, nil
	case flag.Value.Type() != "bool":
		return "", fmt.Errorf("%w: YAML reads this as true or false; put it in quotes", errUsage)
	default:
		return strconv.FormatBool(isTrue), nil
	}
}

func keys(flags *pflag.FlagSet) []string {
	var names []string

	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Name != configFlag && flag.Name != helpName {
			names = append(names, flag.Name)
		}
	})

	return names
}
