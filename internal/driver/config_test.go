package driver_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/socket"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// checks are changes of a configuration that works, each with a part of the error; "" is accepted.
type checks map[string]struct {
	change func(c *driver.Config)
	says   string
}

func (all checks) run(t *testing.T) {
	t.Helper()

	for name, test := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			config, _ := configFor(t)
			test.change(&config)

			err := config.Check()
			if test.says == "" {
				require.NoError(t, err)

				return
			}

			require.ErrorIs(t, err, driver.ErrConfig)
			errtext.Require(t, err, test.says)
			require.NotContains(t, err.Error(), "\n", "want: the error is about the change alone")
		})
	}
}

// onNode makes a configuration with a node service.
func onNode(change func(c *driver.Config)) func(c *driver.Config) {
	return func(c *driver.Config) {
		c.Mode = driver.ModeNode
		change(c)
	}
}

// TestConfigNumbersAreLimited: each has a value at its limits and beyond.
func TestConfigNumbersAreLimited(t *testing.T) {
	t.Parallel()

	const negative = "cannot be negative"

	checks{
		"nothing changed":                {func(*driver.Config) {}, ""},
		"overcommit 0":                   {func(c *driver.Config) { c.Overcommit = 0 }, "overcommit 0"},
		"overcommit below 0":             {func(c *driver.Config) { c.Overcommit = -1 }, "overcommit -1"},
		"overcommit that is no number":   {func(c *driver.Config) { c.Overcommit = math.NaN() }, "overcommit NaN"},
		"least overcommit":               {func(c *driver.Config) { c.Overcommit = math.SmallestNonzeroFloat64 }, ""},
		"largest overcommit":             {func(c *driver.Config) { c.Overcommit = 1e6 }, ""},
		"overcommit above":               {func(c *driver.Config) { c.Overcommit = 1e6 + 1 }, "overcommit 1.000001e+06"},
		"first loop device below 0":      {func(c *driver.Config) { c.Node.Loops.First = -1 }, "first-loop-device -1"},
		"largest first loop device":      {func(c *driver.Config) { c.Node.Loops.First = loop.MaxNumber }, ""},
		"first loop device above":        {func(c *driver.Config) { c.Node.Loops.First = loop.MaxNumber + 1 }, "first-loop-device 1048576"},
		"drain timeout":                  {func(c *driver.Config) { c.DrainTimeout = -1 }, "drain-timeout -1ns " + negative},
		"coalesce window":                {func(c *driver.Config) { c.Controller.CoalesceWindow = -1 }, "coalesce-window -1ns " + negative},
		"no coalesce window":             {func(c *driver.Config) { c.Controller.CoalesceWindow = 0 }, ""},
		"no check":                       {func(c *driver.Config) { c.Node.CheckPeriod = 0 }, ""},
		"no relist period":               {func(c *driver.Config) { c.Health.RelistPeriod = 0 }, "health-relist-period 0 is not above 0"},
		"no drain":                       {func(c *driver.Config) { c.DrainTimeout = 0 }, "drain-timeout 0 is not above 0"},
		"no first loop device":           {func(c *driver.Config) { c.Node.Loops.First = 0 }, "first-loop-device 0 is not above 0"},
		"no cgroups":                     {func(c *driver.Config) { c.Node.CgroupRoot = "" }, "cgroup-root is empty"},
		"no shims":                       {func(c *driver.Config) { c.Node.Direct.Guest.ShimRoots = nil }, "shim-root is empty"},
		"relist period":                  {func(c *driver.Config) { c.Health.RelistPeriod = -1 }, negative},
		"evented relist period":          {func(c *driver.Config) { c.Health.EventedRelistPeriod = -1 }, negative},
		"probe timeout":                  {func(c *driver.Config) { c.Health.ProbeTimeout = -1 }, negative},
		"hold of I/O errors":             {func(c *driver.Config) { c.Node.IOErrorHold = -1 }, negative},
		"check period":                   {func(c *driver.Config) { c.Node.CheckPeriod = -1 }, negative},
		"largest volume":                 {func(c *driver.Config) { c.MaxVolumeBytes = -1 }, "max-volume-size"},
		"volumes of a node":              {func(c *driver.Config) { c.MaxVolumesPerNode = -1 }, "max-volumes-per-node"},
		"limits of volumes":              {func(c *driver.Config) { c.MaxVolumeBytes, c.MaxVolumesPerNode = 1, 1 }, ""},
		"capacity of the pool":           {func(c *driver.Config) { c.Capacities = map[string]int64{"default": 0} }, ""},
		"capacity below 0":               {func(c *driver.Config) { c.Capacities = map[string]int64{"default": -1} }, `capacity default=-1 ` + negative},
		"capacity of no pool":            {func(c *driver.Config) { c.Capacities = map[string]int64{"other": 1} }, `the pool "other", and there are default`},
		"image of a pool":                {func(c *driver.Config) { c.PoolImageBytes = 1 }, ""},
		"image of a pool below 0":        {func(c *driver.Config) { c.PoolImageBytes = -1 }, "pool-image-size -1 " + negative},
		"image of a shared pool":         {func(c *driver.Config) { c.PoolImageBytes, c.Shared = 1, true }, "shared or pool-image-size"},
		"no image of a shared pool":      {func(c *driver.Config) { c.Shared = true }, ""},
		"filesystem of an image":         {func(c *driver.Config) { c.PoolImageFS = "btrfs" }, ""},
		"unknown filesystem of an image": {func(c *driver.Config) { c.PoolImageFS = "vfat" }, `pool-image-fs "vfat"`},
	}.run(t)
}

// TestConfigNamesAreValidated, of each kind.
func TestConfigNamesAreValidated(t *testing.T) {
	t.Parallel()

	printable := "has unprintable characters"

	checks{
		"longest driver name":     {func(c *driver.Config) { c.DriverName = strings.Repeat("n", 63) }, ""},
		"no driver name":          {func(c *driver.Config) { c.DriverName = "" }, "driver-name is empty"},
		"no node id":              {func(c *driver.Config) { c.NodeID, c.Shared = "", true }, ""},
		"longest node id":         {func(c *driver.Config) { c.NodeID, c.Shared = strings.Repeat("n", 256), true }, ""},
		"another node":            {func(c *driver.Config) { c.Controller.Nodes = []string{"node-b"} }, ""},
		"another node without id": {func(c *driver.Config) { c.Controller.Nodes = []string{"node-b", ""} }, "has 0 bytes"},
		"another node, too long":  {func(c *driver.Config) { c.Controller.Nodes = []string{strings.Repeat("n", 257)} }, "has 257 bytes"},
		"unprintable node id":     {func(c *driver.Config) { c.NodeID, c.Shared = "a\x1bb", true }, "node-id \"a\\x1bb\" " + printable},
		"unprintable node":        {func(c *driver.Config) { c.Controller.Nodes = []string{"a\nb"} }, "nodes \"a\\nb\" " + printable},
		"pool that is not UTF-8":  {func(c *driver.Config) { c.Pools = map[string]string{"\xff": "/pool"} }, "pool \"\\xff\": \"\\xff\" " + printable},
		"mode":                    {func(c *driver.Config) { c.Mode = "both" }, `mode "both"`},
		"capability":              {func(c *driver.Config) { c.Disabled = []string{"FLY"} }, "disable-capability"},
		"mount group":             {func(c *driver.Config) { c.VolumeMountGroup = true }, ""},
		"secrets without a log":   {func(c *driver.Config) { c.CallLogSecrets = true }, "call-log-secrets needs call-log"},
		"secrets in a log":        {func(c *driver.Config) { c.CallLogSecrets, c.CallLog = true, "ring" }, ""},
		"longest prefix of topology": {func(c *driver.Config) {
			c.Shared, c.Topology = true, map[string]string{strings.Repeat("p", 63) + "/zone": "a"}
		}, ""},
		"prefix of topology, too long": {func(c *driver.Config) {
			c.Shared, c.Topology = true, map[string]string{strings.Repeat("p", 64) + "/zone": "a"}
		}, "lower-case domain name of at most 63"},
	}.run(t)
}

// TestConfigPathsAreAbsolute where the working directory must not matter.
func TestConfigPathsAreAbsolute(t *testing.T) {
	t.Parallel()

	absolute := "is not an absolute path"
	noFile := "is no path of a file"

	checks{
		"state":                        {func(c *driver.Config) { c.StateDir = "state" }, `state-dir "state" ` + absolute},
		"state with a NUL":             {func(c *driver.Config) { c.StateDir = "/a\x00b" }, absolute},
		"no pool":                      {func(c *driver.Config) { c.Pools = nil }, "pool is empty"},
		"pool":                         {func(c *driver.Config) { c.Pools = map[string]string{"a": "pool"} }, `pool "a": "pool" ` + absolute},
		"kubelet of a controller":      {func(c *driver.Config) { c.KubeletDir = "kubelet" }, "kubelet-dir "},
		"kubelet of a node":            {onNode(func(*driver.Config) {}), ""},
		"no kubelet of a node":         {onNode(func(c *driver.Config) { c.KubeletDir = "" }), "kubelet-dir "},
		"allowed path":                 {func(c *driver.Config) { c.AllowPaths = []string{"/mnt", "mnt"} }, `allow-path "mnt" ` + absolute},
		"cgroups":                      {func(c *driver.Config) { c.Node.CgroupRoot = "cgroup" }, "cgroup-root "},
		"direct volumes":               {func(c *driver.Config) { c.Node.Direct.Root = "direct" }, "direct-volume-root "},
		"kata-runtime":                 {func(c *driver.Config) { c.Node.Direct.Guest.KataRuntime = "kata-runtime" }, "kata-runtime "},
		"absolute kata-runtime":        {func(c *driver.Config) { c.Node.Direct.Guest.KataRuntime = "/usr/bin/kata-runtime" }, ""},
		"shims":                        {func(c *driver.Config) { c.Node.Direct.Guest.ShimRoots = []string{"/run/vc", "vc"} }, `shim-root "vc" `},
		"map of host paths":            {func(c *driver.Config) { c.Node.Direct.HostPaths = []string{"a"} }, "host-path-map: "},
		"endpoint":                     {func(c *driver.Config) { c.Endpoint = "unix:csi.sock" }, ""},
		"call log in memory":           {func(c *driver.Config) { c.CallLog = "ring" }, ""},
		"call log, a word":             {func(c *driver.Config) { c.CallLog = "true" }, `call-log "true" ` + noFile},
		"call log in the directory":    {func(c *driver.Config) { c.CallLog = "./calls" }, ""},
		"call log, a directory":        {func(c *driver.Config) { c.CallLog = "/calls/" }, `call-log "/calls/" ` + noFile},
		"call log with a NUL":          {func(c *driver.Config) { c.CallLog = "/a\x00b" }, noFile},
		"ready-file, a word":           {func(c *driver.Config) { c.ReadyFile = "ring" }, `ready-file "ring" ` + noFile},
		"no ready-file":                {func(c *driver.Config) { c.ReadyFile = "" }, ""},
		"fault rules":                  {func(c *driver.Config) { c.Faults = "/nonexistent" }, "faults: "},
		"kubeconfig":                   {func(c *driver.Config) { c.Claims.Kubeconfig = "/nonexistent" }, "/nonexistent"},
		"kubeconfig of a node":         {onNode(func(c *driver.Config) { c.Claims.Kubeconfig = "/nonexistent" }), "kubeconfig is for the controller only"},
		"registration of a controller": {func(c *driver.Config) { c.Registration.Directory = "/tmp" }, "mode controller has none"},
		"registration at an endpoint":  {func(c *driver.Config) { c.Registration.Endpoint = "/csi.sock" }, "without kubelet-registration-dir"},
		"registration of a node":       {onNode(func(c *driver.Config) { c.Registration.Directory = "/tmp" }), ""},
		"registration, its endpoint": {onNode(func(c *driver.Config) {
			c.Registration.Directory, c.Registration.Endpoint = "/tmp", "unix:///csi.sock"
		}), ""},
		"registration, relative endpoint": {onNode(func(c *driver.Config) {
			c.Registration.Directory, c.Registration.Endpoint = "/tmp", "unix:csi.sock"
		}), `"csi.sock" is not an absolute path`},
		"registration, no endpoint": {onNode(func(c *driver.Config) {
			c.Registration.Directory, c.Registration.Endpoint = "/tmp", "csi.sock"
		}), "kubelet-registration-dir: "},
		"registration elsewhere": {onNode(func(c *driver.Config) { c.Registration.Directory = "/nonexistent" }), "/nonexistent"},
	}.run(t)
}

// TestConfigAddressesAreValidated: one is refused where a server or client would use another one.
func TestConfigAddressesAreValidated(t *testing.T) {
	t.Parallel()

	otlp := func(endpoint string) func(c *driver.Config) {
		return func(c *driver.Config) { c.OTLPEndpoint = endpoint }
	}
	http := func(endpoint string, hosts ...string) func(c *driver.Config) {
		return func(c *driver.Config) { c.HTTPEndpoint, c.HTTPHosts = endpoint, hosts }
	}
	tcp := func(endpoint string) func(c *driver.Config) {
		return func(c *driver.Config) { c.TCPEndpoint = endpoint }
	}

	checks{
		"traces by http":           {otlp("http://127.0.0.1:4317"), ""},
		"traces by https":          {otlp("https://collector.example.org:4317/"), ""},
		"traces, no port of http":  {otlp("http://10.0.0.5"), "otlp-endpoint"},
		"traces, no port of https": {otlp("https://tempo-1"), "otlp-endpoint"},
		"traces to IPv6":           {otlp("http://[::1]:4317"), ""},
		"traces, no scheme":        {otlp("127.0.0.1:4317"), "otlp-endpoint"},
		"traces, other scheme":     {otlp("grpc://127.0.0.1:4317"), "otlp-endpoint"},
		"traces, a path":           {otlp("http://127.0.0.1:4317/v1"), "otlp-endpoint"},
		"traces, no host":          {otlp("http://:4317"), "otlp-endpoint"},
		"traces, no name":          {otlp("http://a_b:4317"), "otlp-endpoint"},
		"traces, port above":       {otlp("http://a:65536"), "otlp-endpoint"},
		"traces, no URL":           {otlp("http://%zz"), "otlp-endpoint"},
		"HTTP, all addresses":      {http(":65535"), ""},
		"HTTP, a name":             {http("localhost:0", "a.b", "c."), ""},
		"HTTP, IPv6":               {http("[::1]:80"), ""},
		"HTTP, longest name":       {http(":80", "a"+strings.Repeat(".a", 126)), ""},
		"HTTP, name too long":      {http(":80", "aa"+strings.Repeat(".a", 126)), "http-host"},
		"HTTP, longest label":      {http(":80", strings.Repeat("a", 63)), ""},
		"HTTP, label too long":     {http(":80", strings.Repeat("a", 64)), "http-host"},
		"HTTP, two dots":           {http(":80", "a.."), "http-host"},
		"HTTP, hosts only":         {http("", "a"), "no effect without http-endpoint"},
		"HTTP, profiles":           {func(c *driver.Config) { c.HTTPEndpoint, c.Profiling = ":80", true }, ""},
		"TCP, the loopback":        {tcp("127.0.0.1:1"), ""},
		"TCP, its name":            {tcp("localhost:1"), ""},
		"TCP, another machine":     {tcp("192.0.2.1:1"), "tcp-endpoint "},
		"TCP, all addresses":       {tcp(":1"), "tcp-endpoint "},
		"TCP, a socket":            {tcp("/csi.sock"), `"/csi.sock" is no host:port`},
		"TCP, no port of a number": {tcp("localhost:http"), "tcp-endpoint "},
	}.run(t)
}

// TestConfigEndpointIsValidated: a bad endpoint has an error of its own.
func TestConfigEndpointIsValidated(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	config.Endpoint = "csi"
	require.ErrorIs(t, config.Check(), driver.ErrEndpoint)
}

// TestConfigFilesAreRead: Check reads the rules and the kubeconfig, and changes nothing.
func TestConfigFilesAreRead(t *testing.T) {
	t.Parallel()

	config, _ := configFor(t)
	directory := t.TempDir()
	config.Faults, config.Claims.Kubeconfig = filepath.Join(directory, "faults"), filepath.Join(directory, "kubeconfig")
	require.NoError(t, os.WriteFile(config.Faults, []byte("rules: []\n"), 0o600))
	require.NoError(t, os.WriteFile(config.Claims.Kubeconfig, []byte("apiVersion: v1\nkind: Config\ncurrent-context: a\n"+
		"contexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"), 0o600))
	require.NoError(t, config.Check())
	require.NoDirExists(t, config.StateDir)
}

// TestConfigOfAProxyIsValidated: CheckProxy refuses what a proxy could not forward to.
func TestConfigOfAProxyIsValidated(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		endpoint, to string
		want         error
	}{
		"another socket":         {"/run/a/csi.sock", "unix:///run/b/csi.sock", nil},
		"a port":                 {"/run/a/csi.sock", "127.0.0.1:10000", nil},
		"itself":                 {"/run/a/csi.sock", "unix:///run/a/csi.sock", socket.ErrAddress},
		"itself by another path": {"unix:/run/a/../a/csi.sock", "unix:///run//a/csi.sock", socket.ErrAddress},
		"another machine":        {"/run/a/csi.sock", "192.0.2.1:10000", socket.ErrAddress},
		"no endpoint":            {"csi", "127.0.0.1:10000", driver.ErrEndpoint},
	} {
		err := (&driver.Config{Endpoint: test.endpoint}).CheckProxy(test.to)
		require.ErrorIs(t, err, test.want, name)
	}

	require.Equal(t, 25*time.Second, driver.DefaultDrainTimeout, "want: the drain ends before Kubernetes kills the process")
}
