package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/conformance"

	"github.com/touchstone-csi/touchstone/pkg/driver"
)

// given runs serve's flags through all four sources and returns what comes out.
func given(t *testing.T, args []string, env map[string]string, file string) (*serveFlags, error) {
	t.Helper()

	flags := &serveFlags{}
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
	flags.define(command.Flags())

	if file != "" {
		path := filepath.Join(t.TempDir(), "touchstone.yaml")
		require.NoError(t, os.WriteFile(path, []byte(file), 0o600))
		args = append(args, "--config", path)
	}

	command.SetArgs(args)

	return flags, command.ExecuteContext(t.Context())
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

			got := outcome{flags.NodeID, flags.Controller.Nodes, int64(flags.maxVolumeBytes), flags.Shared, flags.verbosity}
			if len(got.nodes) == 0 {
				got.nodes = nil
			}

			require.Equal(t, test.want, got)
		})
	}
}

// TestSpecEndpointVariable: CSI_ENDPOINT is the spec's; the driver's own variable and the flag win.
func TestSpecEndpointVariable(t *testing.T) {
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

func TestEveryFlagIsAKeyAndAVariable(t *testing.T) {
	t.Parallel()

	// One value that differs from the default for each flag.
	values := map[string]string{
		"cgroup-root": "/c", "kubeconfig": "in-cluster", "coalesce-window": "9s",
		"mode": "node", "endpoint": "/x/y.sock", "driver-name": "a.b", "node-id": "n-1", "nodes": "m-1", "state-dir": "/s",
		"pool": "p=/p", "pool-image-size": "6Gi", "pool-image-fs": "btrfs", "topology": "k=v", "shared": "true", "max-volumes-per-node": "7", "max-volume-size": "5Gi",
		"overcommit": "2.5", "ephemeral-mkfs-options": "true", "kubelet-dir": "/k", "allow-path": "/a", "http-endpoint": "127.0.0.1:1", "http-host": "a.b", "first-loop-device": "2048", "ready-file": "/r", "pprof": "true", "otlp-endpoint": "http://127.0.0.1:4317",
		"call-log": "ring", "call-log-secrets": "true", "strict": "refuse",
		"disable-capability": "GET_VOLUME", "proxy-endpoint": "/p.sock", "volume-mount-group": "true", "simulate-node": "true", "capacity": "p=5Gi", "tcp-endpoint": "127.0.0.1:2", "proxy-listen": "127.0.0.1:3",
		"health-events": "false", "health-relist-period": "2s", "health-evented-relist-period": "4s", "health-probe-timeout": "6s",
		"io-error-hold": "8s", "check-period": "10s",
		"kubelet-registration-dir": "/kr", "kubelet-registration-endpoint": "/kr.sock",
		"direct-volume-root": "/d", "shim-root": "/sr", "kata-runtime": "/kr", "host-path-map": "/f=/t",
		"faults": "/f.yaml", "enable-faults": "true", "drain-timeout": "3s", "log-format": "json", "v": "5",
	}

	command := newServeCommand()
	require.Equal(t, len(values)+1, len(keys(command.Flags()))+1, "a flag without a value here: add it")

	for name, value := range values {
		fromFlag, err := given(t, []string{"--" + name + "=" + value}, nil, "")
		require.NoError(t, err, name)

		require.NotRegexp(t, "^CSI_", envName(name), "the prefix is the spec's")

		fromEnv, err := given(t, nil, map[string]string{envName(name): value}, "")
		require.NoError(t, err, name)
		require.Equal(t, fromFlag, fromEnv, name)

		fromFile, err := given(t, nil, nil, name+": "+value+"\n")
		require.NoError(t, err, name)

		fromFile.config = ""
		require.Equal(t, fromFlag, fromFile, name)

		byDefault, err := given(t, nil, nil, "")
		require.NoError(t, err)
		require.NotEqual(t, byDefault, fromFlag, name)
	}

	conformance.Shows(t, "Probe", "each setting as a flag and as a variable", "no variable but CSI_ENDPOINT has the prefix CSI_")
}

func TestConfigFileCanBeNamedByTheEnvironment(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte("mode: node\n"), 0o600))

	flags, err := given(t, nil, map[string]string{"TOUCHSTONE_CONFIG": path}, "")
	require.NoError(t, err)
	require.Equal(t, "node", flags.mode)
}

// TestThePackagesConfig has keys that there are.
func TestThePackagesConfig(t *testing.T) {
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
				require.ErrorContains(t, err, part)
			}
		})
	}
}

func TestConfigOfTheDriver(t *testing.T) {
	t.Parallel()

	flags, err := given(t, []string{"--pool=a=/a,b=/b=c", "--topology=zone=z", "--max-volume-size=1Gi", "--pool-image-size=2Gi", "--pool-image-fs=btrfs"}, nil, "")
	require.NoError(t, err)

	config, err := flags.complete(os.Stderr)
	require.NoError(t, err)
	require.Equal(t, driver.ModeAll, config.Mode)
	require.Equal(t, map[string]string{"a": "/a", "b": "/b=c"}, config.Pools)
	require.Equal(t, map[string]string{"zone": "z"}, config.Topology)
	require.EqualValues(t, 1<<30, config.MaxVolumeBytes)
	require.EqualValues(t, 2<<30, config.PoolImageBytes)
	require.Equal(t, "btrfs", config.PoolImageFS)

	hostname, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, hostname, config.NodeID)

	for _, args := range [][]string{
		{"--pool=/a"}, {"--pool=a="}, {"--pool=a=/a", "--pool=a=/b"}, {"--topology=zone"}, {"--log-format=xml"},
	} {
		flags, err := given(t, args, nil, "")
		require.NoError(t, err)

		_, err = flags.complete(os.Stderr)
		require.ErrorIs(t, err, errUsage, args)
	}
}

// TestLogLines have one schema as text and as JSON.
func TestLogLines(t *testing.T) {
	t.Parallel()

	for format, want := range map[string]string{
		"text": `level=INFO v=4 msg=call took=0.0015`,
		"json": `"level":"INFO","v":4,"msg":"call","took":0.0015`,
	} {
		var out bytes.Buffer

		log, err := newLogger(&out, format, 4)
		require.NoError(t, err)
		log.Log(t.Context(), -4, "call", "took", 1500*time.Microsecond)
		log.Log(t.Context(), -5, "hidden")
		log.Error("failed")
		require.Contains(t, out.String(), want)
		require.NotContains(t, out.String(), "hidden")
		require.Regexp(t, `level"?[=:]"?ERROR`, out.String())
	}
}
