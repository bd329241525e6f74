package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// nonsense are values of which each makes sense for few flags at most.
var nonsense = []string{
	"", " ", "garbage", "-1", "0", "1", "+1", "1.5", "-0x10", "1e400", "99999999999999999999", "NaN", "inf", "1Gi", "10Gb", "1e30",
	"1s", "-1s", "9999999h", "true", "no", "null", "[]", "{}", "a=b", "=", "a=", "=b", "a=-1", "a=/b", "a=5", "default=5", "default=-5", ",", "a,b", "../x", "/", "/a\n/b", "\x1b[2J",
	"\xff\xfe", "unix://", "unix:///x", "http://", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1", "127.0.0.1:99999", "127.0.0.1:1",
	"192.0.2.1:1", "a:1", `"`, strings.Repeat("x", 70000),
}

// setting says which nonsense a flag takes, as fmt prints it in the field that the flag sets; it
// refuses all others. Good is a value that differs from the default, arrives how fmt prints it there,
// empty if unchanged. With are other flags that it needs.
type setting struct {
	takes         map[string]string
	field         string
	good, arrives string
	with          []string
}

// same are values that are used as they are.
func same(texts ...string) map[string]string {
	taken := map[string]string{}
	for _, text := range texts {
		taken[text] = text
	}

	return taken
}

// and adds a value that is used as another one.
func and(taken map[string]string, text, as string) map[string]string {
	taken[text] = as

	return taken
}

// listOf are lists of one value each, the empty list, and others.
func listOf(elements map[string]string, others ...string) map[string]string {
	taken := map[string]string{"": "[]"}
	for text := range elements {
		taken[text] = "[" + text + "]"
	}

	for _, text := range others {
		taken[text] = "[" + strings.ReplaceAll(text, ",", " ") + "]"
	}

	return taken
}

// The tables of values by kind.
func paths() map[string]string { return same("/", "/a\n/b") }

func bools() map[string]string   { return map[string]string{"true": "true", "1": "true", "0": "false"} }
func numbers() map[string]string { return map[string]string{"0": "0", "1": "1", "+1": "1"} }

func words() map[string]string {
	return same("garbage", "0", "1", "1.5", "1e400", "99999999999999999999", "NaN", "inf", "1Gi", "10Gb", "1e30", "1s", "9999999h", "true", "no", "null")
}

func byteSizes() map[string]string {
	return map[string]string{"0": "0", "1": "1", "+1": "1", "1.5": "2", "1Gi": "1073741824"}
}

// settingsOf are all flags.
func settingsOf(t *testing.T, root string) map[string]setting {
	t.Helper()

	hostname, err := os.Hostname()
	require.NoError(t, err)

	seconds := map[string]string{"1s": "1s"}
	web := []string{"--http-endpoint=:0"}
	proxied := same("", "/a\n/b", "unix:///x", "127.0.0.1:1")

	// Any text that can be printed.
	nodes := listOf(words(), "a,b", " ", "-1", "+1", "-1s", "-0x10", "[]", "{}", "a=b", "=", "a=", "=b", "a=-1", "a=/b", "a=5", "default=5", "default=-5", "../x", "/",
		"unix://", "unix:///x", "http://", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1", "127.0.0.1:99999", "127.0.0.1:1", "192.0.2.1:1", "a:1")

	directory := t.TempDir()
	kubeconfig, faults := filepath.Join(directory, "kubeconfig"), filepath.Join(directory, "faults.yaml")
	require.NoError(t, os.WriteFile(faults, []byte("rules: []\n"), 0o600))
	require.NoError(t, os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\ncurrent-context: a\n"+
		"contexts: [{name: a, context: {cluster: a, user: a}}]\n"+
		"clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\n"), 0o600))

	return map[string]setting{
		"mode":                 {takes: map[string]string{}, good: "controller", field: "Mode"},
		"endpoint":             {takes: same("/a\n/b", "../x", "a=/b", "unix:///x"), good: "unix:///x/y.sock", field: "Endpoint"},
		"driver-name":          {takes: words(), good: "a.b", field: "DriverName"},
		"node-id":              {takes: and(words(), "", hostname), good: "n-1", field: "NodeID"},
		"state-dir":            {takes: paths(), good: "/s", field: "StateDir"},
		"pool":                 {takes: map[string]string{"a=/b": "map[a:/b]"}, good: "p=/p", arrives: "map[p:/p]", field: "Pools"},
		"capacity":             {takes: map[string]string{"": "map[]", "default=5": "map[default:5]"}, good: "default=5Gi", arrives: "map[default:5368709120]", field: "Capacities"},
		"pool-image-size":      {takes: byteSizes(), good: "6Gi", arrives: "6442450944", field: "PoolImageBytes"},
		"pool-image-fs":        {takes: map[string]string{}, good: "btrfs", field: "PoolImageFS"},
		"topology":             {takes: map[string]string{"": "map[]", "a=b": "map[a:b]", "a=5": "map[a:5]", "default=5": "map[default:5]"}, good: "k=v", arrives: "map[k:v]", field: "Topology"},
		"shared":               {takes: bools(), good: "true", field: "Shared"},
		"max-volumes-per-node": {takes: numbers(), good: "7", field: "MaxVolumesPerNode"},
		"max-volume-size":      {takes: byteSizes(), good: "5Gi", arrives: "5368709120", field: "MaxVolumeBytes"},
		"overcommit":           {takes: map[string]string{"1": "1", "+1": "1", "1.5": "1.5"}, good: "2.5", field: "Overcommit"},
		"disable-capability":   {takes: map[string]string{"": "[]"}, good: "GET_VOLUME", arrives: "[GET_VOLUME]", field: "Disabled"},
		"kubelet-dir":          {takes: paths(), good: "/k", field: "KubeletDir"},
		"allow-path":           {takes: listOf(same("/")), good: "/a", arrives: "[/a]", field: "AllowPaths"},
		"simulate-node":        {takes: bools(), good: "true", field: "SimulateNode"},
		"volume-mount-group":   {takes: bools(), good: "true", field: "VolumeMountGroup"},
		"kubeconfig":           {takes: same(""), good: kubeconfig, field: "Claims.Kubeconfig"},
		"cgroup-root":          {takes: paths(), good: "/c", field: "Node.CgroupRoot"},
		"direct-volume-root":   {takes: paths(), good: "/d", field: "Node.Direct.Root"},
		"shim-root":            {takes: listOf(same("/")), good: "/sr", arrives: "[/sr]", field: "Node.Direct.Guest.ShimRoots"},
		"kata-runtime":         {takes: and(paths(), "", ""), good: "/kr", field: "Node.Direct.Guest.KataRuntime"},
		"host-path-map":        {takes: map[string]string{"": "[]"}, good: "/f=/t", arrives: "[/f=/t]", field: "Node.Direct.HostPaths"},
		"first-loop-device":    {takes: map[string]string{"1": "1", "+1": "1"}, good: "2048", field: "Node.Loops.First"},
		"health-events":        {takes: map[string]string{"true": "false", "1": "false", "0": "true"}, good: "false", arrives: "true", field: "Health.PollingOnly"},
		"coalesce-window":      {takes: map[string]string{"0": "0s", "1s": "1s"}, good: "9s", field: "Controller.CoalesceWindow"},
		"check-period":         {takes: map[string]string{"0": "0s", "1s": "1s"}, good: "10s", field: "Node.CheckPeriod"},
		"http-endpoint":        {takes: same("", "127.0.0.1:1", "192.0.2.1:1", "a:1"), good: "127.0.0.1:1", field: "HTTPEndpoint"},
		"http-host":            {takes: listOf(words(), "a,b"), with: web, good: "a.b", arrives: "[a.b]", field: "HTTPHosts"},
		"pprof":                {takes: bools(), with: web, good: "true", field: "Profiling"},
		"tcp-endpoint":         {takes: same("", "127.0.0.1:1"), good: "127.0.0.1:2", field: "TCPEndpoint"},
		"proxy-endpoint":       {takes: proxied, good: "/p.sock", field: "proxyEndpoint"},
		"proxy-listen":         {takes: proxied, good: "127.0.0.1:3", field: "proxyListen"},
		"otlp-endpoint":        {takes: same("", "http://a:1"), good: "http://127.0.0.1:4317", field: "OTLPEndpoint"},
		"call-log":             {takes: filePaths(), good: "ring", field: "CallLog"},
		"call-log-secrets":     {takes: bools(), with: []string{"--call-log=ring"}, good: "true", field: "CallLogSecrets"},
		"strict":               {takes: map[string]string{"": "", "true": "observe"}, good: "refuse", field: "Strict"},
		"faults":               {takes: same(""), good: faults, field: "Faults"},
		"enable-faults":        {takes: bools(), good: "true", field: "EnableFaults"},
		"ready-file":           {takes: filePaths(), good: "/r", field: "ReadyFile"},
		"log-format":           {takes: map[string]string{}, good: "json", field: "Log.format"},
		"v":                    {takes: numbers(), good: "5", field: "Log.verbosity"},

		"nodes": {takes: nodes, good: "m-1,m-2", arrives: "[m-1 m-2]", field: "Controller.Nodes"},
		"kubelet-registration-endpoint": {
			takes: same("", "/a\n/b", "unix:///x"), with: []string{"--kubelet-registration-dir=" + root},
			good: "/kr.sock", field: "Registration.Endpoint",
		},
		"kubelet-registration-dir":     {takes: same("", "/"), good: directory, field: "Registration.Directory"},
		"ephemeral-mkfs-options":       {takes: bools(), good: "true", field: "Node.EphemeralMkfsOptions"},
		"drain-timeout":                {takes: seconds, good: "3s", field: "DrainTimeout"},
		"health-relist-period":         {takes: seconds, good: "2s", field: "Health.RelistPeriod"},
		"health-evented-relist-period": {takes: seconds, good: "4s", field: "Health.EventedRelistPeriod"},
		"health-probe-timeout":         {takes: seconds, good: "6s", field: "Health.ProbeTimeout"},
		"io-error-hold":                {takes: seconds, good: "8s", field: "Node.IOErrorHold"},
	}
}

// filePaths are those of a file that the driver makes.
func filePaths() map[string]string {
	return same("", "/a\n/b", "../x", "a=/b", "unix:///x", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1")
}

// others are the flags beside a flag whose values are tried.
func (s setting) others(name, root string) []string {
	base := []string{
		"--endpoint=" + filepath.Join(root, "made", "csi.sock"), "--state-dir=" + filepath.Join(root, "state"),
		"--pool=default=" + filepath.Join(root, "pool"),
	}

	return append(slices.DeleteFunc(base, func(arg string) bool { return strings.HasPrefix(arg, "--"+name+"=") }), s.with...)
}

// waysOf give a value as flag, variable and key, beside other flags.
func waysOf(t *testing.T, others []string, name, text string) map[string]func() (*serveFlags, error) {
	t.Helper()

	return map[string]func() (*serveFlags, error){
		"flag": func() (*serveFlags, error) {
			return given(t, append(slices.Clone(others), "--"+name+"="+text), nil, "")
		},
		"variable": func() (*serveFlags, error) { return given(t, others, map[string]string{envName(name): text}, "") },
		"key": func() (*serveFlags, error) {
			file, err := yaml.Marshal(map[string]string{name: text})
			require.NoError(t, err)

			return given(t, others, nil, string(file))
		},
	}
}

// TestEachSettingIsUsedOrRefused gives each flag each nonsense, as flag, variable and key.
func TestEachSettingIsUsedOrRefused(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	known := settingsOf(t, root)
	known[configFlag] = setting{takes: same(""), field: configFlag}

	for _, name := range append(keys(newServeCommand().Flags()), configFlag) {
		of, there := known[name]
		require.True(t, there, "a flag without an entry here: add %s", name)

		args := of.others(name, root)

		for _, text := range nonsense {
			asFlag := append(slices.Clone(args), "--"+name+"="+text)

			ways := waysOf(t, args, name, text)
			if name == configFlag {
				delete(ways, "key")
			}

			want, taken := of.takes[text]

			for way, give := range ways {
				flags, err := give()

				var set map[string]string
				if err == nil {
					set, err = fields(flags)
				}

				if !taken {
					require.Error(t, err, "%.50q as %s of %s is used", text, way, name)

					continue
				}

				require.NoError(t, err, "%.50q as %s of %s", text, way, name)
				require.Equal(t, want, set[of.field], "%.50q as %s of %s", text, way, name)
			}

			if !taken {
				require.Equal(t, exitCannot, run(t.Context(), append([]string{"serve"}, asFlag...), io.Discard, io.Discard), "%.50q of %s", text, name)
			}
		}
	}

	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left, "a refused start has made something")
}

// TestKeysAreUsedAsWritten: YAML would make other texts of some numbers.
func TestKeysAreUsedAsWritten(t *testing.T) {
	t.Parallel()

	for file, want := range map[string]string{
		"node-id: 007": "007", "node-id: 1.10": "1.10", "node-id: 12345678901234567890123": "12345678901234567890123",
		"node-id: 1e3": "1e3", "node-id: 2026-11-25": "2026-11-25", "node-id: 'no'": "no", "node-id: |\n  a\n": "a\n",
	} {
		flags, err := given(t, nil, nil, file)
		require.NoError(t, err, file)
		require.Equal(t, want, flags.NodeID)
	}

	flags, err := given(t, nil, nil, "max-volume-size: 9007199254740993\nshared: yes\nnodes: &n [1.10, 007]\nallow-path: *n\n")
	require.NoError(t, err)
	require.EqualValues(t, 9007199254740993, flags.maxVolumeBytes, "want: a large integer keeps its digits")
	require.True(t, flags.Shared, "want: yes is true")
	require.Equal(t, []string{"1.10", "007"}, flags.Controller.Nodes)
	require.Equal(t, []string{"1.10", "007"}, flags.AllowPaths)

	for _, file := range []string{"mode: all\n---\nmode: node\n", "node-id:\n", "node-id: ~\n", "node-id: !!binary YQ==\n", `node-id: "a\0b"`} {
		_, err := given(t, nil, nil, file)
		require.Error(t, err, file)
	}
}
