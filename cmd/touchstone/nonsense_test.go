package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/touchstone-csi/touchstone/pkg/driver"
)

// nonsense are values of which each makes sense for few flags at most.
var nonsense = []string{
	"", " ", "garbage", "-1", "0", "1", "+1", "1.5", "-0x10", "1e400", "99999999999999999999", "NaN", "inf", "1Gi", "10Gb", "1e30",
	"1s", "-1s", "9999999h", "true", "no", "null", "[]", "{}", "a=b", "=", "a=", "=b", "a=-1", "a=/b", "a=5", "default=5", "default=-5", ",", "a,b", "../x", "/", "/a\n/b", "\x1b[2J",
	"\xff\xfe", "unix://", "unix:///x", "http://", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1", "127.0.0.1:99999", "127.0.0.1:1",
	"192.0.2.1:1", "a:1", `"`, strings.Repeat("x", 70000),
}

// setting says which values a flag takes, as fmt prints them where the driver uses them; it refuses
// all others. With are other flags that it needs.
type setting struct {
	takes map[string]string
	used  func(*serveFlags, driver.Config) any
	with  []string
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

	duration := func(used func(*serveFlags, driver.Config) any) setting {
		return setting{takes: map[string]string{"1s": "1s"}, used: used}
	}
	web := []string{"--http-endpoint=:0"}
	proxied := same("", "/a\n/b", "unix:///x", "127.0.0.1:1")

	// Any text that can be printed.
	nodes := listOf(words(), "a,b", " ", "-1", "+1", "-1s", "-0x10", "[]", "{}", "a=b", "=", "a=", "=b", "a=-1", "a=/b", "a=5", "default=5", "default=-5", "../x", "/",
		"unix://", "unix:///x", "http://", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1", "127.0.0.1:99999", "127.0.0.1:1", "192.0.2.1:1", "a:1")

	return map[string]setting{
		"mode":                 {takes: map[string]string{}, used: func(_ *serveFlags, c driver.Config) any { return c.Mode }},
		"endpoint":             {takes: same("/a\n/b", "../x", "a=/b", "unix:///x"), used: func(_ *serveFlags, c driver.Config) any { return c.Endpoint }},
		"driver-name":          {takes: words(), used: func(_ *serveFlags, c driver.Config) any { return c.DriverName }},
		"node-id":              {takes: and(words(), "", hostname), used: func(_ *serveFlags, c driver.Config) any { return c.NodeID }},
		"state-dir":            {takes: paths(), used: func(_ *serveFlags, c driver.Config) any { return c.StateDir }},
		"pool":                 {takes: map[string]string{"a=/b": "map[a:/b]"}, used: func(_ *serveFlags, c driver.Config) any { return c.Pools }},
		"capacity":             {takes: map[string]string{"": "map[]", "default=5": "map[default:5]"}, used: func(_ *serveFlags, c driver.Config) any { return c.Capacities }},
		"pool-image-size":      {takes: byteSizes(), used: func(_ *serveFlags, c driver.Config) any { return c.PoolImageBytes }},
		"pool-image-fs":        {takes: map[string]string{}, used: func(_ *serveFlags, c driver.Config) any { return c.PoolImageFS }},
		"topology":             {takes: map[string]string{"": "map[]", "a=b": "map[a:b]", "a=5": "map[a:5]", "default=5": "map[default:5]"}, used: func(_ *serveFlags, c driver.Config) any { return c.Topology }},
		"shared":               {takes: bools(), used: func(_ *serveFlags, c driver.Config) any { return c.Shared }},
		"max-volumes-per-node": {takes: numbers(), used: func(_ *serveFlags, c driver.Config) any { return c.MaxVolumesPerNode }},
		"max-volume-size":      {takes: byteSizes(), used: func(_ *serveFlags, c driver.Config) any { return c.MaxVolumeBytes }},
		"overcommit":           {takes: map[string]string{"1": "1", "+1": "1", "1.5": "1.5"}, used: func(_ *serveFlags, c driver.Config) any { return c.Overcommit }},
		"disable-capability":   {takes: map[string]string{"": "[]"}, used: func(_ *serveFlags, c driver.Config) any { return c.Disabled }},
		"kubelet-dir":          {takes: paths(), used: func(_ *serveFlags, c driver.Config) any { return c.KubeletDir }},
		"allow-path":           {takes: listOf(same("/")), used: func(_ *serveFlags, c driver.Config) any { return c.AllowPaths }},
		"simulate-node":        {takes: bools(), used: func(_ *serveFlags, c driver.Config) any { return c.SimulateNode }},
		"volume-mount-group":   {takes: bools(), used: func(_ *serveFlags, c driver.Config) any { return c.VolumeMountGroup }},
		"kubeconfig":           {takes: same(""), used: func(_ *serveFlags, c driver.Config) any { return c.Claims.Kubeconfig }},
		"cgroup-root":          {takes: paths(), used: func(_ *serveFlags, c driver.Config) any { return c.Node.CgroupRoot }},
		"direct-volume-root":   {takes: paths(), used: func(_ *serveFlags, c driver.Config) any { return c.Node.Direct.Root }},
		"shim-root":            {takes: listOf(same("/")), used: func(_ *serveFlags, c driver.Config) any { return c.Node.Direct.Guest.ShimRoots }},
		"kata-runtime":         {takes: and(paths(), "", ""), used: func(_ *serveFlags, c driver.Config) any { return c.Node.Direct.Guest.KataRuntime }},
		"host-path-map":        {takes: map[string]string{"": "[]"}, used: func(_ *serveFlags, c driver.Config) any { return c.Node.Direct.HostPaths }},
		"first-loop-device":    {takes: map[string]string{"1": "1", "+1": "1"}, used: func(_ *serveFlags, c driver.Config) any { return c.Node.Loops.First }},
		"health-events":        {takes: bools(), used: func(_ *serveFlags, c driver.Config) any { return !c.Health.PollingOnly }},
		"coalesce-window":      {takes: map[string]string{"0": "0s", "1s": "1s"}, used: func(_ *serveFlags, c driver.Config) any { return c.Controller.CoalesceWindow }},
		"check-period":         {takes: map[string]string{"0": "0s", "1s": "1s"}, used: func(_ *serveFlags, c driver.Config) any { return c.Node.CheckPeriod }},
		"http-endpoint":        {takes: same("", "127.0.0.1:1", "192.0.2.1:1", "a:1"), used: func(_ *serveFlags, c driver.Config) any { return c.HTTPEndpoint }},
		"http-host":            {takes: listOf(words(), "a,b"), with: web, used: func(_ *serveFlags, c driver.Config) any { return c.HTTPHosts }},
		"pprof":                {takes: bools(), with: web, used: func(_ *serveFlags, c driver.Config) any { return c.Profiling }},
		"tcp-endpoint":         {takes: same("", "127.0.0.1:1"), used: func(_ *serveFlags, c driver.Config) any { return c.TCPEndpoint }},
		"proxy-endpoint":       {takes: proxied, used: func(f *serveFlags, _ driver.Config) any { return f.proxyEndpoint }},
		"proxy-listen":         {takes: proxied, used: func(f *serveFlags, _ driver.Config) any { return f.proxyListen }},
		"otlp-endpoint":        {takes: same("", "http://a:1"), used: func(_ *serveFlags, c driver.Config) any { return c.OTLPEndpoint }},
		"call-log":             {takes: filePaths(), used: func(_ *serveFlags, c driver.Config) any { return c.CallLog }},
		"call-log-secrets":     {takes: bools(), with: []string{"--call-log=ring"}, used: func(_ *serveFlags, c driver.Config) any { return c.CallLogSecrets }},
		"strict":               {takes: map[string]string{"": "", "true": "observe"}, used: func(_ *serveFlags, c driver.Config) any { return c.Strict }},
		"faults":               {takes: same(""), used: func(_ *serveFlags, c driver.Config) any { return c.Faults }},
		"enable-faults":        {takes: bools(), used: func(_ *serveFlags, c driver.Config) any { return c.EnableFaults }},
		"ready-file":           {takes: filePaths(), used: func(_ *serveFlags, c driver.Config) any { return c.ReadyFile }},
		"log-format":           {takes: map[string]string{}, used: func(f *serveFlags, _ driver.Config) any { return f.logFormat }},
		"v":                    {takes: numbers(), used: func(f *serveFlags, _ driver.Config) any { return f.verbosity }},

		"nodes": {takes: nodes, used: func(_ *serveFlags, c driver.Config) any { return c.Controller.Nodes }},
		"kubelet-registration-endpoint": {
			takes: same("", "/a\n/b", "unix:///x"), with: []string{"--kubelet-registration-dir=" + root},
			used: func(_ *serveFlags, c driver.Config) any { return c.Registration.Endpoint },
		},
		"kubelet-registration-dir":     {takes: same("", "/"), used: func(_ *serveFlags, c driver.Config) any { return c.Registration.Directory }},
		"ephemeral-mkfs-options":       {takes: bools(), used: func(_ *serveFlags, c driver.Config) any { return c.Node.EphemeralMkfsOptions }},
		"drain-timeout":                duration(func(_ *serveFlags, c driver.Config) any { return c.DrainTimeout }),
		"health-relist-period":         duration(func(_ *serveFlags, c driver.Config) any { return c.Health.RelistPeriod }),
		"health-evented-relist-period": duration(func(_ *serveFlags, c driver.Config) any { return c.Health.EventedRelistPeriod }),
		"health-probe-timeout":         duration(func(_ *serveFlags, c driver.Config) any { return c.Health.ProbeTimeout }),
		"io-error-hold":                duration(func(_ *serveFlags, c driver.Config) any { return c.Node.IOErrorHold }),
	}
}

// filePaths are those of a file that the driver makes.
func filePaths() map[string]string {
	return same("", "/a\n/b", "../x", "a=/b", "unix:///x", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1")
}

// TestEachSettingIsUsedOrRefused gives each flag each nonsense, as flag, variable and key.
func TestEachSettingIsUsedOrRefused(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	known := settingsOf(t, root)
	known[configFlag] = setting{takes: same(""), used: func(f *serveFlags, _ driver.Config) any { return f.config }}
	base := []string{
		"--endpoint=" + filepath.Join(root, "made", "csi.sock"), "--state-dir=" + filepath.Join(root, "state"),
		"--pool=default=" + filepath.Join(root, "pool"),
	}

	for _, name := range append(keys(newServeCommand().Flags()), configFlag) {
		of, there := known[name]
		require.True(t, there, "a flag without an entry here: add %s", name)

		args := append(slices.DeleteFunc(slices.Clone(base), func(arg string) bool { return strings.HasPrefix(arg, "--"+name+"=") }), of.with...)

		for _, text := range nonsense {
			asFlag := append(slices.Clone(args), "--"+name+"="+text)
			ways := map[string]func() (*serveFlags, error){
				"flag":     func() (*serveFlags, error) { return given(t, asFlag, nil, "") },
				"variable": func() (*serveFlags, error) { return given(t, args, map[string]string{envName(name): text}, "") },
				"key": func() (*serveFlags, error) {
					file, err := yaml.Marshal(map[string]string{name: text})
					require.NoError(t, err)

					return given(t, args, nil, string(file))
				},
			}

			if name == configFlag {
				delete(ways, "key")
			}

			want, taken := of.takes[text]

			for way, give := range ways {
				flags, err := give()

				var config driver.Config
				if err == nil {
					config, err = flags.complete(io.Discard)
				}

				if !taken {
					require.Error(t, err, "%.50q as %s of %s is used", text, way, name)

					continue
				}

				require.NoError(t, err, "%.50q as %s of %s", text, way, name)
				require.Equal(t, want, fmt.Sprint(of.used(flags, config)), "%.50q as %s of %s", text, way, name)
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
	require.EqualValues(t, 9007199254740993, flags.maxVolumeBytes)
	require.True(t, flags.Shared)
	require.Equal(t, []string{"1.10", "007"}, flags.Controller.Nodes)
	require.Equal(t, []string{"1.10", "007"}, flags.AllowPaths)

	for _, file := range []string{"mode: all\n---\nmode: node\n", "node-id:\n", "node-id: ~\n", "node-id: !!binary YQ==\n", `node-id: "a\0b"`} {
		_, err := given(t, nil, nil, file)
		require.Error(t, err, file)
	}
}
