package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/driver"
)

// nonsense are values of which each makes sense for few flags at most.
var nonsense = []string{
	"", " ", "garbage", "-1", "0", "1", "+1", "1.5", "-0x10", "1e400", "99999999999999999999", "NaN", "inf", "1Gi", "10Gb", "1e30",
	"1s", "-1s", "9999999h", "true", "no", "null", "[]", "{}", "a=b", "=", "a=", "=b", "a=-1", "a=/b", "a=5", "default=5", "default=-5", ",", "a,b", "../x", "/", "/a\n/b", "\x1b[2J",
	"\xff\xfe", "unix://", "unix:///x", "http://", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1", "127.0.0.1:99999", "127.0.0.1:1",
	"192.0.2.1:1", "a:1", `"`, strings.Repeat("x", 70000),
}

// texts are the values of nonsense that a setting takes, with the text that it then has.
type texts map[string]string

// same are values that are kept as they are.
func same(given ...string) texts {
	taken := texts{}
	for _, text := range given {
		taken[text] = text
	}

	return taken
}

// words are texts that can be names.
func words() texts {
	return same("garbage", "0", "1", "1.5", "1e400", "99999999999999999999", "NaN", "inf", "1Gi", "10Gb", "1e30", "1s", "9999999h", "true", "no", "null")
}

func paths() texts { return same("/", "/a\n/b") }

// filePaths are those of a file that the driver makes.
func filePaths() texts {
	return same("/a\n/b", "../x", "a=/b", "unix:///x", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1")
}

// ofKind are the values of a setting that its kind decides: a good one, how that arrives, and the nonsense that
// it takes, 0 included.
var ofKind = map[string]struct {
	good, arrives string
	takes         texts
}{
	"int":      {"7", "7", texts{"0": "0", "1": "1", "+1": "1"}},
	"float":    {"2.5", "2.5", texts{"0": "0", "1": "1", "+1": "1", "1.5": "1.5"}},
	"duration": {"9s", "9s", texts{"0": "0s", "1s": "1s"}},
	"size":     {"6GiB", "6442450944", texts{"0": "0", "1": "1", "+1": "1", "1.5": "2", "1Gi": "1073741824"}},
}

// ofName are a good value and the nonsense of the other settings, without the empty value.
func ofName(t *testing.T) map[string]struct {
	good  string
	takes texts
} {
	t.Helper()

	// Any text that can be printed.
	nodes := words()
	maps.Copy(nodes, same("a,b", " ", "-1", "+1", "-1s", "-0x10", "[]", "{}", "a=b", "=", "a=", "=b", "a=-1", "a=/b", "a=5", "default=5", "default=-5",
		"../x", "/", "unix://", "unix:///x", "http://", "http:// x", "ftp://a:1", "http://a:1/b", "http://a:1", "127.0.0.1:99999", "127.0.0.1:1",
		"192.0.2.1:1", "a:1"))

	hosts := words()
	hosts["a,b"] = "a,b"

	directory := t.TempDir()
	kubeconfig, faults := filepath.Join(directory, "kubeconfig"), filepath.Join(directory, "faults.yaml")
	require.NoError(t, os.WriteFile(faults, []byte("rules: []\n"), 0o600))
	require.NoError(t, os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\ncurrent-context: a\n"+
		"contexts: [{name: a, context: {cluster: a, user: a}}]\n"+
		"clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: a, user: {}}]\n"), 0o600))

	proxied := same("/a\n/b", "unix:///x", "127.0.0.1:1")

	return map[string]struct {
		good  string
		takes texts
	}{
		"mode": {"controller", nil}, "log-format": {"json", nil}, "pool-image-fs": {"btrfs", nil},
		"strict":      {"refuse", texts{"true": "observe"}},
		"endpoint":    {"unix:///x/y.sock", same("/a\n/b", "../x", "a=/b", "unix:///x")},
		"driver-name": {"a.b", words()}, "node-id": {"n-1", words()}, "nodes": {"m-1,m-2", nodes},
		"state-dir": {"/s", paths()}, "kubelet-dir": {"/k", paths()}, "cgroup-root": {"/c", paths()},
		"direct-volume-root": {"/d", paths()}, "kata-runtime": {"/kr", paths()},
		"allow-path": {"/a", same("/")}, "shim-root": {"/sr", same("/")}, "host-path-map": {"/f=/t", nil},
		"pool": {"p=/p", same("a=/b")}, "capacity": {"default=5", same("default=5")},
		"topology": {"k=v", same("a=b", "a=5", "default=5")}, "disable-capability": {"GET_VOLUME", nil},
		"http-endpoint": {"127.0.0.1:1", same("127.0.0.1:1", "192.0.2.1:1", "a:1")}, "http-host": {"a.b", hosts},
		"tcp-endpoint": {"127.0.0.1:2", same("127.0.0.1:1")}, "otlp-endpoint": {"http://127.0.0.1:4317", same("http://a:1")},
		"proxy-endpoint": {"/p.sock", proxied}, "proxy-listen": {"127.0.0.1:3", proxied},
		"call-log": {"ring", filePaths()}, "ready-file": {"/r", filePaths()},
		"kubeconfig": {kubeconfig, nil}, "faults": {faults, nil},
		"kubelet-registration-dir": {directory, same("/")}, "kubelet-registration-endpoint": {"/kr.sock", same("/a\n/b", "unix:///x")},
		"startup-taint": {"a.b/c", words()},
		configFlag:      {os.DevNull, nil},
	}
}

// attempt is a setting with a good value, how that arrives, and the nonsense that it takes.
type attempt struct {
	driver.Setting

	good, arrives string
	takes         texts
}

// attempts are those of all settings. What 0 and an empty value are is the table's.
func attempts(t *testing.T) []attempt {
	t.Helper()

	config := driver.Defaults()
	named, all := ofName(t), []attempt{}

	for _, each := range driver.Settings(&config) {
		a := attempt{each, named[each.Name].good, named[each.Name].good, maps.Clone(named[each.Name].takes)}

		if kind, ok := ofKind[each.Value.Type()]; ok {
			a = attempt{each, kind.good, kind.arrives, maps.Clone(kind.takes)}
		} else if each.Value.Type() == "bool" {
			opposite := strconv.FormatBool(each.Value.String() == "false")
			a = attempt{each, opposite, opposite, texts{"true": "true", "1": "true", "0": "false"}}
		} else if each.Zero != "" {
			a.takes = same("")
			maps.Copy(a.takes, named[each.Name].takes)
		}

		if each.Zero == "" && each.IsNumber() {
			delete(a.takes, "0")
		}

		require.NotEmpty(t, a.good, "want: a good value of %s in ofName", each.Name)
		all = append(all, a)
	}

	return all
}

// others are the flags beside a flag whose values are tried.
func (a *attempt) others(root string) []string {
	beside := map[string]string{
		"http-host": "--http-endpoint=:0", "pprof": "--http-endpoint=:0", "call-log-secrets": "--call-log=ring",
		"kubelet-registration-endpoint": "--kubelet-registration-dir=" + root, "startup-taint": "--kubelet-registration-dir=" + root,
		"topology": "--shared", // any prefix, as there is no segment of the driver's own
	}
	base := []string{
		"--endpoint=" + filepath.Join(root, "made", "csi.sock"), "--state-dir=" + filepath.Join(root, "state"),
		"--pool=default=" + filepath.Join(root, "pool"),
	}
	base = slices.DeleteFunc(base, func(arg string) bool { return strings.HasPrefix(arg, "--"+a.Name+"=") })

	if more, ok := beside[a.Name]; ok {
		base = append(base, more)
	}

	return base
}

// waysOf give a value as flag, variable and key, beside other flags.
func waysOf(t *testing.T, others []string, name, text string) map[string]func() (*driver.Config, error) {
	t.Helper()

	ways := map[string]func() (*driver.Config, error){
		"flag": func() (*driver.Config, error) {
			return given(t, append(slices.Clone(others), "--"+name+"="+text), nil, "")
		},
		"variable": func() (*driver.Config, error) { return given(t, others, map[string]string{envName(name): text}, "") },
	}

	if name != configFlag {
		ways["key"] = func() (*driver.Config, error) {
			settings, err := yaml.Marshal(map[string]string{name: text})
			require.NoError(t, err)

			// Thousands of files on a disk would take most of the test's time.
			memory, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
			require.NoError(t, err)

			defer unix.Close(memory)

			file := fmt.Sprintf("/proc/self/fd/%d", memory)
			require.NoError(t, os.WriteFile(file, settings, 0o600))

			return given(t, append(slices.Clone(others), "--config="+file), nil, "")
		}
	}

	return ways
}

// TestEachSettingIsUsedOrRefused gives each flag each nonsense, as flag, variable and key.
func TestEachSettingIsUsedOrRefused(t *testing.T) {
	t.Parallel()

	root, command := t.TempDir(), newRootCommand()
	command.ResetCommands() // Only serve is called.
	command.SetErr(io.Discard)

	for _, of := range attempts(t) {
		for _, text := range nonsense {
			want, taken := of.takes[text]

			for way, give := range waysOf(t, of.others(root), of.Name, text) {
				config, err := give()
				if err == nil {
					err = complete(config, io.Discard)
				}

				if !taken {
					require.Error(t, err, "%.50q as %s of %s is used", text, way, of.Name)

					continue
				}

				require.NoError(t, err, "%.50q as %s of %s", text, way, of.Name)
				require.Equal(t, want, valuesOf(config)[of.Name], "%.50q as %s of %s", text, way, of.Name)
			}

			if !taken {
				serve := newServeCommand()
				command.AddCommand(serve)
				command.SetArgs(append(append([]string{"serve"}, of.others(root)...), "--"+of.Name+"="+text))
				require.Equal(t, exitCannot, ctl.ExitCode(command.ExecuteContext(t.Context())), "%.50q of %s", text, of.Name)
				command.RemoveCommand(serve)
			}
		}
	}

	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left, "a refused start has made something")
}

// valuesOf are the values of all settings.
func valuesOf(config *driver.Config) map[string]string {
	values := map[string]string{}
	for _, each := range driver.Settings(config) {
		values[each.Name] = each.Value.String()
	}

	return values
}

// textSchema is what the chart's schema says of a text.
type textSchema struct {
	Type      any           `json:"type"`
	Items     *textSchema   `json:"items"`
	Enum      []string      `json:"enum"`
	Pattern   string        `json:"pattern"`
	AllOf     []*textSchema `json:"allOf"`
	MinLength int           `json:"minLength"`
}

func (s *textSchema) takes(text string) bool {
	if s.Items != nil {
		return s.Items.takes(text)
	}

	return (s.Type == nil || strings.Contains(fmt.Sprint(s.Type), "string")) && len(text) >= s.MinLength &&
		(s.Enum == nil || slices.Contains(s.Enum, text)) && regexp.MustCompile(s.Pattern).MatchString(text) &&
		!slices.ContainsFunc(s.AllOf, func(other *textSchema) bool { return !other.takes(text) })
}

// TestChartTakesWhatTheDriverTakes, as a text or as the value of a list, as far as a pattern can say it.
func TestChartTakesWhatTheDriverTakes(t *testing.T) {
	t.Parallel()

	var schema struct {
		Defs struct {
			Settings struct {
				Properties map[string]*textSchema `json:"properties"`
			} `json:"settings"`
		} `json:"$defs"`
	}

	text, err := os.ReadFile("../../deploy/helm/touchstone/values.schema.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &schema))

	root := t.TempDir()
	tried := append(slices.Clone(nonsense), "many", "50Gigs", "1..5h", "tempo", "http://10.0.0.5", "relative", "NONSENSE", "x", "a b",
		"0.0.0.0:1", "10GiB", "a=1..5Gi",
		"0s", "0.0h0m", "1h30m", "0.5s", "5μs", "localhost:65535", "localhost:65536", "localhost:65999", "localhost:70000", "localhost:00080",
		"tcp://127.255.0.9:80", "127.0.0.256:80", "127.1:80", "[::1]:80", "[01]:80", "[0:::1]:80",
		"http://a:65535/", "http://a:65536", "https://-a:1", "http://a..b:1", "http://[::1]:1", "/x/", "unix:///x/", "unix:x", "unix:///", "//",
		"node:EXPAND_VOLUME", "controller:VOLUME_CONDITION", "node:GET_VOLUME", "pool:EXPAND_VOLUME", "node:", "TOPOLOGY", "node:TOPOLOGY",
		"a..b/c", "a.-b/c", "A/c", "a/b/c", "topology.touchstone.dev/zone=a", "topology.touchstone.dev/-=a", "zone=-")

	for _, length := range []int{63, 64} {
		label := strings.Repeat("x", length)
		tried = append(tried, label, "a."+label+".b", label+"/c", label+"=a", "a="+label, "http://"+label+":1", label+"/zone=a")
	}

	for _, length := range []int{106, 107} {
		path := "/" + strings.Repeat("x", length)
		tried = append(tried, path, "unix:"+path, "unix://"+path)
	}

	for _, of := range attempts(t) {
		known, chosen := schema.Defs.Settings.Properties[of.Name]
		if !chosen || !strings.Contains(fmt.Sprint(known), "string") && known.Items == nil || of.Name == "faults" || of.Name == configFlag {
			continue // set by the chart; no text; whether there is such a file
		}

		for _, text := range append(tried, of.good) {
			// No text of JSON; several values; a range; the name of no pool; an alias.
			if slices.Contains([]string{"\xff\xfe", "/a\n/b", "9999999h", "a=5", "true"}, text) {
				continue
			}

			value := any(text)
			if known.Items != nil {
				value = []string{text}
			}

			file, err := yaml.Marshal(map[string]any{of.Name: value})
			require.NoError(t, err)

			config, err := given(t, of.others(root), nil, string(file))
			if err == nil {
				err = complete(config, io.Discard)
			}

			require.Equal(t, err == nil, known.takes(text), "want: the chart takes %.50q as %s if the driver does: %v", text, of.Name, err)
		}
	}
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
	require.EqualValues(t, 9007199254740993, flags.MaxVolumeBytes, "want: a large integer keeps its digits")
	require.True(t, flags.Shared, "want: yes is true")
	require.Equal(t, []string{"1.10", "007"}, flags.Controller.Nodes)
	require.Equal(t, []string{"1.10", "007"}, flags.AllowPaths)

	for _, file := range []string{"mode: all\n---\nmode: node\n", "node-id:\n", "node-id: ~\n", "node-id: !!binary YQ==\n", `node-id: "a\0b"`} {
		_, err := given(t, nil, nil, file)
		require.Error(t, err, file)
	}
}
