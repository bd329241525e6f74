package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/flags"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// given runs serve's flags through all four sources and returns what comes out.
func given(t *testing.T, args []string, env map[string]string, file string) (*driver.Config, error) {
	t.Helper()

	config := &driver.Config{}
	command := &cobra.Command{
		Use: "serve", SilenceErrors: true, SilenceUsage: true,
		PreRunE: func(command *cobra.Command, _ []string) error {
			return applySettings(command, func(name string) (string, bool) {
				value, ok := env[name]

				return value, ok
			})
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
	flags.Define(command.Flags(), config)

	if file != "" {
		path := filepath.Join(t.TempDir(), "touchstone.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--config", path)
	}

	command.SetArgs(args)

	return config, command.ExecuteContext(t.Context())
}

func TestPrecedenceIsFlagEnvironmentFileDefault(t *testing.T) {
	t.Parallel()

	var (
		args = []string{"--node-id=flag", "--nodes=flag-a,flag-b", "--max-volume-size=1Gi", "--shared=false", "-v=1"}
		env  = map[string]string{
			"TOUCHSTONE_NODE_ID": "env", "TOUCHSTONE_NODES": "env-a,env-b", "TOUCHSTONE_MAX_VOLUME_SIZE": "2Gi",
			"TOUCHSTONE_SHARED": "true", "TOUCHSTONE_V": "3", "TOUCHSTONE_SERVICE_HOST": "kubernetes makes such",
		}
		file = "node-id: file\nnodes: [file-a, 'file,b']\nmax-volume-size: 3Gi\nshared: true\nv: 4\n"
	)

	type outcome struct {
		node    string
		nodes   []string
		size    int64
		shared  bool
		verbose int
	}

	for name, test := range map[string]struct {
		args []string
		env  map[string]string
		file string
		want outcome
	}{
		"default":             {nil, nil, "", outcome{"", nil, 0, false, 2}},
		"file":                {nil, nil, file, outcome{"file", []string{"file-a", "file,b"}, 3 << 30, true, 4}},
		"environment":         {nil, env, "", outcome{"env", []string{"env-a", "env-b"}, 2 << 30, true, 3}},
		"environment on file": {nil, env, file, outcome{"env", []string{"env-a", "env-b"}, 2 << 30, true, 3}},
		"flag on file":        {args, nil, file, outcome{"flag", []string{"flag-a", "flag-b"}, 1 << 30, false, 1}},
		"flag on all":         {args, env, file, outcome{"flag", []string{"flag-a", "flag-b"}, 1 << 30, false, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			flags, err := given(t, test.args, test.env, test.file)
			require.NoError(t, err)

			got := outcome{flags.NodeID, flags.Controller.Nodes, flags.MaxVolumeBytes, flags.Shared, flags.Verbosity}
			if len(got.nodes) == 0 {
				got.nodes = nil
			}

			require.Equal(t, test.want, got)
		})
	}
}

// TestTheDriversEndpointVariableWins over CSI_ENDPOINT, which is the spec's, and the flag over both.
func TestTheDriversEndpointVariableWins(t *testing.T) {
	t.Parallel()

	byDefault, err := given(t, nil, nil, "")
	require.NoError(t, err)

	both := map[string]string{"CSI_ENDPOINT": "unix:///spec.sock", "TOUCHSTONE_ENDPOINT": "unix:///own.sock"}

	for name, test := range map[string]struct {
		args []string
		env  map[string]string
		want string
	}{
		"neither": {nil, nil, byDefault.Endpoint},
		"spec":    {nil, map[string]string{"CSI_ENDPOINT": "unix:///spec.sock"}, "unix:///spec.sock"},
		"both":    {nil, both, "unix:///own.sock"},
		"flag":    {[]string{"--endpoint=unix:///flag.sock"}, both, "unix:///flag.sock"},
	} {
		flags, err := given(t, test.args, test.env, "")
		require.NoError(t, err, name)
		require.Equal(t, test.want, flags.Endpoint, name)
	}

	conformance.Shows(t, "Probe", "CSI_ENDPOINT in the environment", "the plugin's endpoint is its value")
}

// TestAClientIgnoresTheDriversVariables: in a container of the chart it has those of the driver, whose
// --topology is of another meaning.
func TestAClientIgnoresTheDriversVariables(t *testing.T) {
	t.Setenv("TOUCHSTONE_TOPOLOGY", "zone=a")
	t.Setenv("TOUCHSTONE_ENDPOINT", "/nowhere/csi.sock")

	code, out, problems := touchstone("ctl", "volume", "mount", "data", "/mnt/data")
	require.Equal(t, exitNotWell, code, out+problems)
	require.Contains(t, problems, "dial unix /nowhere/csi.sock", "want: the driver is asked")
}

// TestEveryFlagIsAKeyAndAVariable gives each flag a good value in each way: it arrives in its field,
// and changes no other.
func TestEveryFlagIsAKeyAndAVariable(t *testing.T) {
	t.Parallel()

	root := t.TempDir()

	for _, of := range attempts(t) {
		byDefault, err := given(t, of.others(root), nil, "")
		require.NoError(t, err, of.Name)

		before := fields(byDefault)
		require.NotEqual(t, of.Value.String(), of.arrives, "the good value of --%s is its default", of.Name)

		for way, give := range waysOf(t, of.others(root), of.Name, of.good) {
			config, err := give()
			require.NoError(t, err, "%s=%s as %s", of.Name, of.good, way)
			require.Equal(t, of.arrives, valuesOf(config)[of.Name], "%s=%s as %s", of.Name, of.good, way)

			changed := fields(config)
			maps.DeleteFunc(changed, func(field, value string) bool { return before[field] == value || way == "key" && field == "ConfigFile" })
			require.Len(t, changed, 1, "%s=%s as %s: the fields that it changes", of.Name, of.good, way)
			require.NoError(t, complete(config, io.Discard), "%s=%s as %s", of.Name, of.good, way)
		}

		require.NotRegexp(t, "^CSI_", envName(of.Name), "the prefix is the spec's")
	}

	conformance.Shows(t, "Probe", "each setting as a flag and as a variable", "no variable but CSI_ENDPOINT has the prefix CSI_")
}

// fields are those of a configuration, as fmt prints them.
func fields(config *driver.Config) map[string]string {
	found := map[string]string{}
	addFields(found, "", reflect.ValueOf(*config))

	return found
}

// addFields adds the fields of a struct of settings, those of the structs in it by their paths.
func addFields(found map[string]string, prefix string, of reflect.Value) {
	for i := range of.NumField() {
		field, value := of.Type().Field(i), of.Field(i)

		switch value.Kind() {
		case reflect.Struct:
			if !field.IsExported() {
				continue // made of the others
			}

			addFields(found, prefix+field.Name+".", value)
		case reflect.Pointer, reflect.Func:
			found[prefix+field.Name] = "nil"
			if !value.IsNil() {
				found[prefix+field.Name] = "set"
			}
		default:
			found[prefix+field.Name] = fmt.Sprint(value)
		}
	}
}

// notSettings are the fields of the configuration that no flag sets, with the reason.
var notSettings = map[string]string{
	"Version": "of the build", "Commit": "of the build",
	"Log":  "made of LogFormat and Verbosity",
	"Also": "for programs that embed the driver, whose services are Go", "Crash": "for tests within their process",
	"Outer": "of touchstone hostpath", "Inner": "of touchstone hostpath", "ProxyAnywhere": "of touchstone hostpath",
	"Controller.MetadataBlocks": "of touchstone hostpath", "Controller.DetachInUse": "of touchstone hostpath",

	"Controller.CopyGrace": "a constant; tests shorten it", "Controller.MetadataIdle": "a constant; tests shorten it",
	"Health.AnswerAge": "a constant; tests shorten it", "Claims.Timeout": "a constant; tests shorten it",
	"Node.Direct.Guest.Timeout": "a constant; tests shorten it", "Registration.RetryPause": "a constant; tests shorten it",

	"Health.Metrics": "made by the driver", "Health.History": "made by the driver", "Health.Inject": "made by the driver",
	"Registration.DriverName": "the driver's", "Registration.Log": "the driver's", "Registration.Succeeded": "made by the driver",

	"Node.Loops.Last":      "the kernel's highest number; tests narrow the range",
	"Node.Loops.DeviceDir": "for tests: devices elsewhere", "Node.Loops.Dev": "for tests: devices elsewhere",
	"Node.Loops.Sys": "for tests: devices elsewhere",
}

// TestEachFieldHasAFlag finds a field of the configuration that no flag sets.
func TestEachFieldHasAFlag(t *testing.T) {
	t.Parallel()

	config := driver.Defaults()
	found := fields(&config)

	for _, of := range attempts(t) {
		changed := driver.Defaults()
		before := fields(&changed)

		for _, each := range driver.Settings(&changed) {
			if each.Name == of.Name {
				require.NoError(t, each.Value.Set(of.good), of.Name)
			}
		}

		for field, value := range fields(&changed) {
			if before[field] != value {
				require.NotContains(t, notSettings, field, "a flag sets it")
				delete(found, field)
			}
		}
	}

	for field := range notSettings {
		require.Contains(t, found, field, "no field of the configuration; remove it from notSettings")
		delete(found, field)
	}

	require.Empty(t, found, "fields that no flag sets; give each a row of driver.Settings, or a reason in notSettings")
}

func TestConfigFileCanBeNamedByTheEnvironment(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte("mode: node\n"), 0o600))

	flags, err := given(t, nil, map[string]string{"TOUCHSTONE_CONFIG": path}, "")
	require.NoError(t, err)
	require.Equal(t, driver.ModeNode, flags.Mode)
}

// TestPackagedConfigHasKnownKeys: each key in the configuration of the packages is a flag.
func TestPackagedConfigHasKnownKeys(t *testing.T) {
	t.Parallel()

	file, err := os.ReadFile("../../deploy/systemd/config.yaml")
	require.NoError(t, err)

	flags, err := given(t, nil, nil, string(file))
	require.NoError(t, err)
	require.Equal(t, []string{"/mnt", "/media", "/srv"}, flags.AllowPaths)
}

func TestWrongSettingsAreRefusedWithTheirSource(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		args []string
		env  map[string]string
		file string
		want []string
	}{
		"unknown key":      {nil, nil, "node_id: x\n", []string{"touchstone.yaml", `unknown key "node_id"`, "node-id"}},
		"config in config": {nil, nil, "config: x\n", []string{`unknown key "config"`}},
		"key twice":        {nil, nil, "mode: all\nmode: node\n", []string{"touchstone.yaml", "mode"}},
		"not YAML":         {nil, nil, "{", []string{"touchstone.yaml"}},
		"list for one":     {nil, nil, "mode: [all]\n", []string{`key "mode"`, "list"}},
		"mapping":          {nil, nil, "mode: {a: b}\n", []string{`key "mode"`}},
		"pool as mapping":  {nil, nil, "pool:\n  a: /a\n", []string{`key "pool"`, "want a list of NAME=DIRECTORY"}},
		"topology as such": {nil, nil, "topology: {zone: a}\n", []string{`key "topology"`, "want a list of KEY=VALUE"}},
		"list of mappings": {nil, nil, "topology:\n  - zone: a\n", []string{`key "topology"`, "want a list of KEY=VALUE"}},
		"nodes as mapping": {nil, nil, "nodes: {a: b}\n", []string{`key "nodes"`, "want a list of values"}},
		"bare no":          {nil, nil, "node-id: no\n", []string{`key "node-id"`, "quotes"}},
		"bad value":        {nil, nil, "shared: maybe\n", []string{`key "shared"`, "maybe"}},
		"no file":          {[]string{"--config", "/nonexistent"}, nil, "", []string{"/nonexistent"}},
		"bad variable":     {nil, map[string]string{"TOUCHSTONE_OVERCOMMIT": "lots"}, "", []string{"TOUCHSTONE_OVERCOMMIT", "lots"}},
		"bad size":         {[]string{"--max-volume-size=10Gb"}, nil, "", []string{"max-volume-size", "10Gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := given(t, test.args, test.env, test.file)
			for _, part := range test.want {
				errtext.Require(t, err, part)
			}
		})
	}
}

func TestFlagsSetTheDriversConfig(t *testing.T) {
	t.Parallel()

	config, err := given(t, []string{"--pool=a=/a,b=/b=c", "--topology=zone=z", "--max-volume-size=1Gi", "--pool-image-size=2Gi", "--pool-image-fs=btrfs"}, nil, "")
	require.NoError(t, err)

	require.Equal(t, driver.ModeAll, config.Mode)
	require.Equal(t, map[string]string{"a": "/a", "b": "/b=c"}, config.Pools)
	require.Equal(t, map[string]string{"zone": "z"}, config.Topology)
	require.EqualValues(t, 1<<30, config.MaxVolumeBytes, "want: max-volume-size arrives in the configuration")
	require.EqualValues(t, 2<<30, config.PoolImageBytes, "want: pool-image-size arrives in the configuration")
	require.Equal(t, "btrfs", config.PoolImageFS)

	for _, args := range [][]string{
		{"--pool=/a"}, {"--pool=a="}, {"--pool=a=/a", "--pool=a=/b"}, {"--topology=zone"},
	} {
		_, err := given(t, args, nil, "")
		errtext.Require(t, err, "--", args)
	}
}

// TestLogLinesHaveOneSchema as text and as JSON.
func TestLogLinesHaveOneSchema(t *testing.T) {
	t.Parallel()

	for format, want := range map[string]string{
		"text": `level=INFO v=4 msg=call took=0.0015`,
		"json": `"level":"INFO","v":4,"msg":"call","took":0.0015`,
	} {
		var out bytes.Buffer

		log := newLogger(&out, format, 4)
		log.Log(t.Context(), -4, "call", "took", 1500*time.Microsecond)
		log.Log(t.Context(), -5, "hidden")
		log.Error("failed")
		require.Contains(t, out.String(), want)
		require.NotContains(t, out.String(), "hidden")
		require.Regexp(t, `level"?[=:]"?ERROR`, out.String())
	}
}
