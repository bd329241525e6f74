package sanity_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	mib = 1 << 20
	// rowVariable hands a row to the process that runs the suite for it: the
	// suite can run only once in a process.
	rowVariable = "TOUCHSTONE_SANITY_ROW"
	// suiteSpecs is how many specs csi-sanity v5.6.0 has. Should the suite
	// shrink unnoticed, the runs would mean less than they seem to.
	suiteSpecs = 102
	// embeddedBytes is plenty: volumes of the suite are sparse.
	embeddedBytes = 64 << 30
	// pathSpec is the spec that finds a target path made by the driver.
	pathSpec = "should remove target path"
)

type row struct {
	Name       string            `json:"name"`
	AccessType string            `json:"accessType"`
	Parameters map[string]string `json:"parameters"`
	// Split runs controller and node behind sockets of their own.
	Split bool `json:"split"`
	// Unprivileged runs the controller of a split driver without any privilege.
	Unprivileged bool `json:"unprivileged"`
	// Embedded has the pool in an image of its own, where copies are instant.
	Embedded bool `json:"embedded"`
	// Proxy has every call handed on.
	Proxy bool `json:"proxy"`
	// Simulated has the node mount nothing, so that the one spec that looks for the path of a
	// publication is left out.
	Simulated bool `json:"simulated"`
	// Hostpath is the network of the program hostpathplugin, unix or tcp, instead of a driver.
	Hostpath string `json:"hostpath"`
	// Disabled are capabilities, and Skips how the suite begins the reasons for
	// skipping what needs them.
	Disabled []string `json:"disabled"`
	Skips    []string `json:"skips"`
}

// hostpathSkips are the reasons of what hostpathplugin has not by default.
var hostpathSkips = []string{
	"ControllerPublishVolume not supported", "Controller Publish, UnpublishVolume not supported",
	"ControllerUnpublishVolume not supported", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported",
}

func rows() []row {
	return []row{
		{Name: "mount-ext4", AccessType: "mount", Parameters: map[string]string{"csi.storage.k8s.io/fstype": "ext4"}},
		{Name: "mount-xfs", AccessType: "mount", Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}},
		{Name: "mount-btrfs", AccessType: "mount", Parameters: map[string]string{"csi.storage.k8s.io/fstype": "btrfs"}},
		{Name: "block", AccessType: "block"},
		{Name: "directory", AccessType: "mount", Parameters: map[string]string{"backing": "directory"}},
		{Name: "embedded", AccessType: "mount", Embedded: true},
		{Name: "embedded-block", AccessType: "block", Embedded: true},
		{Name: "split", AccessType: "mount", Split: true},
		{Name: "split-unprivileged", AccessType: "mount", Split: true, Unprivileged: true},
		{Name: "proxy", AccessType: "mount", Proxy: true},
		{Name: "simulated", AccessType: "mount", Simulated: true},
		{Name: "hostpathplugin", AccessType: "mount", Hostpath: "unix", Skips: hostpathSkips},
		{Name: "hostpathplugin-block", AccessType: "block", Hostpath: "tcp", Skips: hostpathSkips},
		{Name: "simulated-block", AccessType: "block", Simulated: true},
		{
			Name: "unattached", AccessType: "mount", Disabled: []string{"PUBLISH_UNPUBLISH_VOLUME"},
			Skips: []string{
				"ControllerPublishVolume not supported", "Controller Publish, UnpublishVolume not supported",
				"ControllerUnpublishVolume not supported",
			},
		},
		{
			Name: "unstaged", AccessType: "mount", Disabled: []string{"STAGE_UNSTAGE_VOLUME"},
			Skips: []string{"NodeStageVolume not supported", "NodeUnstageVolume not supported"},
		},
		{
			Name: "unstaged-block", AccessType: "block", Disabled: []string{"STAGE_UNSTAGE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"},
			Skips: []string{
				"NodeStageVolume not supported", "NodeUnstageVolume not supported", "ControllerPublishVolume not supported",
				"Controller Publish, UnpublishVolume not supported", "ControllerUnpublishVolume not supported",
			},
		},
		{
			Name: "expanded-by-the-controller", AccessType: "mount", Disabled: []string{"node:EXPAND_VOLUME"},
			Skips: []string{"NodeExpandVolume not supported"},
		},
		{
			Name: "expanded-by-the-node", AccessType: "mount", Parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"}, Disabled: []string{"controller:EXPAND_VOLUME"},
			Skips: []string{"ControllerExpandVolume not supported"},
		},
		{
			Name: "unobserved", AccessType: "mount", Disabled: []string{"GET_VOLUME_HEALTH", "GET_STORAGE_HEALTH", "VOLUME_CONDITION"},
			Skips: []string{
				"ControllerGetVolumeHealth not supported", "ControllerListVolumeHealth not supported",
				"NodeGetVolumeHealth not supported", "NodeGetStorageHealth not supported",
			},
		},
	}
}

// rowLimit is for one run of the whole suite. It is no verdict on speed.
const rowLimit = 10 * time.Minute

func TestMain(m *testing.M) { os.Exit(namespace.Main(m)) }

// TestSanity runs each row in a process of its own and reads the suite's
// report.
func TestSanity(t *testing.T) {
	namespace.NeedRoot(t)

	for _, r := range rows() {
		t.Run(r.Name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.json")
			encoded, err := json.Marshal(r)
			require.NoError(t, err)

			run := child.CommandWithin(t, rowLimit, "/proc/self/exe",
				"-test.run=^TestSanityRow$", "-test.count=1", "--ginkgo.no-color", "--ginkgo.json-report="+report)
			if r.Simulated {
				run.Args = append(run.Args, "--ginkgo.skip="+pathSpec)
			}

			run.Env = append(os.Environ(), rowVariable+"="+string(encoded))

			output, err := run.CombinedOutput()
			require.NoError(t, err, "%s", output)
			judge(t, r, report)
		})
	}
}

func judge(t *testing.T, r row, path string) {
	t.Helper()

	content, err := os.ReadFile(path)
	require.NoError(t, err)

	var reports []types.Report

	require.NoError(t, json.Unmarshal(content, &reports))

	passed, skipped, failed := 0, 0, 0

	for _, report := range reports {
		for _, spec := range report.SpecReports {
			switch {
			case spec.LeafNodeType != types.NodeTypeIt, spec.State == types.SpecStatePending:
			case spec.State == types.SpecStatePassed:
				passed++
			case spec.State == types.SpecStateSkipped:
				skipped++

				requireExpected(t, r, spec)
			default:
				failed++

				t.Errorf("%s: %s", spec.FullText(), spec.Failure.Message)
			}
		}
	}

	t.Logf("csi-sanity: %d passed, %d failed, %d skipped as not advertised", passed, failed, skipped)
	require.Equal(t, suiteSpecs, passed+failed+skipped, "want: each spec of the suite has a result")
}

// requireExpected fails for a spec that was skipped although its capability is
// advertised, or for an unexpected reason.
func requireExpected(t *testing.T, r row, spec types.SpecReport) {
	t.Helper()

	if r.Simulated && strings.HasSuffix(spec.FullText(), pathSpec) {
		return
	}

	for _, reason := range r.Skips {
		if strings.HasPrefix(spec.Failure.Message, reason) {
			return
		}
	}

	t.Errorf("%s was skipped: %s", spec.FullText(), spec.Failure.Message)
}

// TestSanityRow is the process of one row.
func TestSanityRow(t *testing.T) {
	encoded := os.Getenv(rowVariable)
	if encoded == "" {
		t.Skip("a part of TestSanity")
	}

	var r row

	require.NoError(t, json.Unmarshal([]byte(encoded), &r))

	config := sanity.NewTestConfig()
	sized(&config)
	config.TestVolumeSize = 512 * mib
	config.TestVolumeExpandSize = 640 * mib

	if r.Split {
		// The suite asks the node's socket whether the controller can expand, and
		// so has the node expand what the controller has not.
		config.TestVolumeExpandSize = config.TestVolumeSize
	}

	config.TestVolumeAccessType = r.AccessType
	config.TestVolumeParameters = r.Parameters
	config.TestNodeVolumeAttachLimit = true
	config.TestVolumeMutableParameters = mutable(r)

	serve(t, r, &config)
	sanity.Test(t, config)
}

// mutable are the parameters that the suite creates and modifies volumes with.
func mutable(r row) map[string]string {
	if r.Parameters["backing"] == "directory" {
		return map[string]string{"checkPeriod": "24h"}
	}

	return map[string]string{"readAheadKiB": "512", "ioScheduler": "none", "checkPeriod": "24h"}
}

// serve starts what the row needs and points the suite at it.
func serve(t *testing.T, r row, config *sanity.TestConfig) {
	t.Helper()

	if r.Hostpath != "" {
		startHostpathplugin(t, r.Hostpath, config)

		return
	}

	if !r.Split {
		d := harness.Start(t, limited, func(c *driver.Config) {
			c.Disabled, c.SimulateNode = r.Disabled, r.Simulated

			if r.Embedded {
				c.PoolImageBytes = embeddedBytes
			}
		})
		config.Address = d.Config.Endpoint
		paths(config, d)

		if r.Proxy {
			config.Address = serveProxy(t, d)
		}

		return
	}

	var controller driver.Config
	if r.Unprivileged {
		controller = startUnprivileged(t)
	} else {
		controller = harness.Start(t, limited, func(c *driver.Config) { c.Mode = driver.ModeController }).Config
	}

	node := harness.Start(t, limited, func(c *driver.Config) { c.Mode, c.Pools = driver.ModeNode, controller.Pools })
	config.Address, config.ControllerAddress = node.Config.Endpoint, controller.Endpoint
	paths(config, node)
}

// serveProxy returns the endpoint of a proxy to the driver.
func serveProxy(t *testing.T, d *harness.Driver) string {
	t.Helper()

	config := driver.Defaults()
	config.Endpoint = "unix://" + filepath.Join(d.Root, "proxy.sock")

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- driver.Forward(ctx, config, d.Config.Endpoint) }()

	t.Cleanup(func() { cancel(); require.NoError(t, await.Receive(t, ended, "the proxy to end")) })

	return config.Endpoint
}

func paths(config *sanity.TestConfig, d *harness.Driver) {
	config.TargetPath = filepath.Join(d.Config.KubeletDir, "target")
	config.StagingPath = filepath.Join(d.Config.KubeletDir, "staging")
}

// limited makes the limit of attachments one that the suite can reach.
func limited(c *driver.Config) { c.MaxVolumesPerNode = 8 }
