package ctl_test

import (
	"bytes"
	"encoding/json"
	"io"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
)

func TestMain(m *testing.M) {
	examineIfAsked()
	harness.Main(m)
}

// run is `touchstone ctl args…`.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()

	return runBeside(t, io.Discard, args...)
}

// runBeside is run with its standard error.
func runBeside(t *testing.T, side io.Writer, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	command := ctl.NewCommand()
	command.SetOut(&out)
	command.SetErr(side)

	err := ctl.Execute(t.Context(), command, args)

	return out.String(), err
}

func TestCommandsPrintTables(t *testing.T) {
	_, endpoint := startFake(t)
	staging, target := filepath.Join(t.TempDir(), "staging"), filepath.Join(t.TempDir(), "target")

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"create": {[]string{"volume", "create", "one"}, `
volume one is ready
Name:       one
Volume ID:  volume-1
Capacity:   1.0 GiB
Topology:   zone=a | rack=1,zone=b
Context:    backing=image,pool=default
`},
		"get": {[]string{"volume", "get", "volume-1"}, `
Volume ID:     volume-1
Capacity:      1.0 GiB
Published to:  node-a
Topology:      zone=a | rack=1,zone=b
Context:       backing=image,pool=default
`},
		"list": {[]string{"volume", "list"}, `
NAME  ID        SIZE     USED  FS  POOL  MOUNTED AT  HEALTH
-     volume-1  1.0 GiB  -     -   -     -           -
-     volume-2  2.0 GiB  -     -   -     -           -
`},
		"delete": {[]string{"volume", "delete", "volume-1", "volume-2"}, `
deleted volume-1
deleted volume-2
`},
		"expand": {[]string{"volume", "expand", "volume-1", "--size", "3Gi", "--path", target, "--staging", staging}, `
volume volume-1 has 3.0 GiB now
Volume:       volume-1
Capacity:     3.0 GiB
Node's part:  done
`},
		"modify": {[]string{"volume", "modify", "volume-1", "--mutable", "readIOPS=500"}, `
modified volume-1
`},
		"stats": {[]string{"volume", "stats", "volume-1", "--path", target}, `
UNIT    TOTAL   USED    AVAILABLE
BYTES   64 MiB  16 MiB  48 MiB
INODES  16,384  12      16,372
`},
		"node info": {[]string{"node", "info"}, `
Node ID:       node-a
Most volumes:  16
Topology:      zone=a
`},
		"capacity": {[]string{"capacity"}, `
Available:        5.0 GiB
Smallest volume:  1.0 MiB
Largest volume:   -
`},
		"capabilities": {[]string{"capabilities"}, `
SERVICE           CAPABILITY
identity          fake.example.org 1.2.3, not ready
plugin            CONTROLLER_SERVICE
plugin            GROUP_CONTROLLER_SERVICE
plugin            VOLUME_EXPANSION ONLINE
controller        PUBLISH_UNPUBLISH_VOLUME
controller        GET_VOLUME
controller        GET_SNAPSHOT
group_controller  CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT
node              STAGE_UNSTAGE_VOLUME
`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(test.args, "--endpoint", endpoint)...)
			require.NoError(t, err)
			require.Equal(t, test.want, "\n"+out)
		})
	}
}

func TestJSONIsTheResponse(t *testing.T) {
	_, endpoint := startFake(t)

	out, err := run(t, "volume", "list", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"entries": [
			{"volume": {
				"volume_id": "volume-1", "capacity_bytes": "1073741824",
				"volume_context": {"backing": "image", "pool": "default"},
				"accessible_topology": [{"segments": {"zone": "a"}}, {"segments": {"rack": "1", "zone": "b"}}]
			}, "status": {"published_node_ids": ["node-a", "node-b"]}},
			{"volume": {
				"volume_id": "volume-2", "capacity_bytes": "2147483648",
				"volume_context": {"backing": "image", "pool": "default"},
				"accessible_topology": [{"segments": {"zone": "a"}}, {"segments": {"rack": "1", "zone": "b"}}]
			}, "status": {"published_node_ids": []}}
		],
		"next_token": ""
	}`, out)
}

func TestEveryCommandPrintsJSON(t *testing.T) {
	_, endpoint := startFake(t)
	staging, target := filepath.Join(t.TempDir(), "staging"), filepath.Join(t.TempDir(), "target")

	for _, args := range [][]string{
		{"volume", "create", "one"},
		{"volume", "get", "volume-1"},
		{"volume", "delete", "volume-1"},
		{"volume", "expand", "volume-1", "--size", "3Gi", "--path", target},
		{"volume", "publish", "volume-1", "--staging", staging, "--target", target},
		{"volume", "unpublish", "volume-1", "--staging", staging, "--target", target},
		{"volume", "stats", "volume-1", "--path", target},
		{"node", "info"},
		{"capacity"},
		{"capabilities"},
	} {
		t.Run(args[0]+" "+args[len(args)-1], func(t *testing.T) {
			out, err := run(t, append(args, "-o", "json", "--endpoint", endpoint)...)
			require.NoError(t, err)

			var document map[string]any
			require.NoError(t, json.Unmarshal([]byte(out), &document), out)
			require.NotEmpty(t, document, "want: the JSON document is not empty")
		})
	}
}

func TestCreateFlagsSetTheRequest(t *testing.T) {
	driver, endpoint := startFake(t)

	_, err := run(t, "volume", "create", "data", "--endpoint", endpoint, "--size", "1Gi", "--limit", "2G",
		"--fs", "xfs", "--mount-flag", "noatime", "--access-mode", "single-node-single-writer",
		"--param", "mkfsOptions=-m reflink=1,crc=1", "--param", "pool=fast",
		"--topology", "zone=a,rack=1", "--topology", "zone=b")
	require.NoError(t, err)

	_, err = run(t, "volume", "create", "raw", "--endpoint", endpoint, "--block")
	require.NoError(t, err)

	asked := requests[*csi.CreateVolumeRequest](driver)
	require.Len(t, asked, 2, "want: each creation is one CreateVolume")

	places := []*csi.Topology{
		{Segments: map[string]string{"zone": "a", "rack": "1"}},
		{Segments: map[string]string{"zone": "b"}},
	}
	requireSame(t, &csi.CreateVolumeRequest{
		Name:          "data",
		CapacityRange: &csi.CapacityRange{RequiredBytes: gibi, LimitBytes: 2_000_000_000},
		Parameters:    map[string]string{"mkfsOptions": "-m reflink=1,crc=1", "pool": "fast"},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType: "xfs", MountFlags: []string{"noatime"},
			}},
			AccessMode: &csi.VolumeCapability_AccessMode{
				Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
			},
		}},
		AccessibilityRequirements: &csi.TopologyRequirement{Requisite: places, Preferred: places},
	}, asked[0])
	requireSame(t, &csi.CreateVolumeRequest{
		Name: "raw",
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	}, asked[1])
}

func requireSame(t *testing.T, want, got proto.Message) {
	t.Helper()
	require.True(t, proto.Equal(want, got), "want %v\ngot  %v", want, got)
}

func TestPublishPassesOnEachResponse(t *testing.T) {
	driver, endpoint := startFake(t)
	staging, target := filepath.Join(t.TempDir(), "staging"), filepath.Join(t.TempDir(), "pod", "target")
	where := []string{"volume-1", "--staging", staging, "--target", target, "--endpoint", endpoint}

	out, err := run(t, append([]string{"volume", "publish", "--readonly"}, where...)...)
	require.NoError(t, err)
	require.Regexp(t, `(?s)ControllerPublishVolume .*NodeStageVolume .*NodePublishVolume `, out)

	volumeContext := map[string]string{"pool": "default", "backing": "image"}
	publishContext := map[string]string{"slot": "7"}

	attached := requests[*csi.ControllerPublishVolumeRequest](driver)
	require.Len(t, attached, 1, "want: ControllerPublishVolume is called once")
	require.Equal(t, "node-a", attached[0].GetNodeId(), "the node behind the socket is the default")
	require.Equal(t, volumeContext, attached[0].GetVolumeContext())
	require.True(t, attached[0].GetReadonly(), "want: --read-only attaches read-only")

	staged := requests[*csi.NodeStageVolumeRequest](driver)
	require.Len(t, staged, 1, "want: NodeStageVolume is called once")
	require.Equal(t, publishContext, staged[0].GetPublishContext())
	require.Equal(t, staging, staged[0].GetStagingTargetPath())
	require.DirExists(t, staging, "the staging directory is the orchestrator's to make")

	published := requests[*csi.NodePublishVolumeRequest](driver)
	require.Len(t, published, 1, "want: NodePublishVolume is called once")
	require.Equal(t, publishContext, published[0].GetPublishContext())
	require.Equal(t, volumeContext, published[0].GetVolumeContext())
	require.True(t, published[0].GetReadonly(), "want: --read-only publishes read-only")
	require.DirExists(t, filepath.Dir(target))
	require.NoDirExists(t, target, "the target itself is the driver's to make")

	out, err = run(t, append([]string{"volume", "unpublish"}, where...)...)
	require.NoError(t, err)
	require.Regexp(t, `(?s)NodeUnpublishVolume .*NodeUnstageVolume .*ControllerUnpublishVolume `, out)
	require.Equal(t, "node-a", requests[*csi.ControllerUnpublishVolumeRequest](driver)[0].GetNodeId())
}

func TestListFollowsPages(t *testing.T) {
	driver, endpoint := startFake(t)

	_, err := run(t, "volume", "list", "--max-entries", "1", "--endpoint", endpoint)
	require.NoError(t, err)

	asked := requests[*csi.ListVolumesRequest](driver)
	require.Len(t, asked, 2, "want: both pages are asked for")
	require.EqualValues(t, 1, asked[1].GetMaxEntries(), "want: the second page has only what --limit leaves")
	require.Equal(t, "2", asked[1].GetStartingToken())
}

func TestTheEnvironmentNamesTheEndpoint(t *testing.T) {
	driver, endpoint := startFake(t)
	t.Setenv("CSI_ENDPOINT", endpoint)

	_, err := run(t, "volume", "list")
	require.NoError(t, err)

	t.Setenv("CSI_ENDPOINT", "unix:///nowhere/csi.sock")
	t.Setenv("TOUCHSTONE_ENDPOINT", endpoint)

	_, err = run(t, "volume", "list")
	require.NoError(t, err)
	require.NotEmpty(t, requests[*csi.ListVolumesRequest](driver), "want: the driver of TOUCHSTONE_ENDPOINT is asked")

	_, err = run(t, "volume", "list", "--endpoint", "unix:///nowhere/csi.sock")
	errtext.Require(t, err, "ListVolumes: UNAVAILABLE", "the flag wins over the environment")
	errtext.Require(t, err, "/nowhere/csi.sock")
}

func TestErrorsNameTheCall(t *testing.T) {
	_, endpoint := startFake(t)

	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"refused by the driver":      {[]string{"volume", "create", "taken"}, "CreateVolume: ALREADY_EXISTS: volume taken has another size", 1},
		"no such volume":             {[]string{"volume", "get", "none"}, "ControllerGetVolume: NOT_FOUND: no volume none", 1},
		"publish an unknown volume":  {[]string{"volume", "publish", "none", "--staging", "/s", "--target", "/t"}, "NOT_FOUND", 1},
		"too slow":                   {[]string{"volume", "list", "--timeout", "1ns"}, "ListVolumes: DEADLINE_EXCEEDED", 1},
		"no argument":                {[]string{"volume", "create"}, "an argument is missing", 2},
		"unknown flag":               {[]string{"volume", "list", "--colour"}, "unknown flag: --colour", 2},
		"unknown command":            {[]string{"volume", "crate"}, `unknown command "crate"`, 2},
		"bad output":                 {[]string{"volume", "list", "-o", "xml"}, "must be table, wide, json, yaml or name", 2},
		"misspelt command":           {[]string{"volume", "delet"}, "did you mean ctl volume delete VOLUME…?", 2},
		"bad size":                   {[]string{"volume", "create", "x", "--size", "many"}, `"many" is not a size`, 2},
		"size beyond the spec":       {[]string{"volume", "create", "x", "--size", "10000000T"}, "is more than CSI can say", 2},
		"negative size":              {[]string{"volume", "create", "x", "--size=-1Gi"}, "is not a size", 2},
		"bad access mode":            {[]string{"volume", "create", "x", "--access-mode", "RWO"}, "known are MULTI_NODE_MULTI_WRITER", 2},
		"block with a filesystem":    {[]string{"volume", "create", "x", "--block", "--fs", "xfs"}, "--block has no filesystem", 2},
		"bad parameter":              {[]string{"volume", "create", "x", "--param", "pool"}, "must be KEY=VALUE", 2},
		"bad topology":               {[]string{"volume", "create", "x", "--topology", "zone=a,b"}, "must be KEY=VALUE", 2},
		"expand to less":             {[]string{"volume", "expand", "volume-1", "--size", "1023Mi"}, "has 1073741824 bytes (1.0 GiB), and --size is 1072693248", 1},
		"expand without a path":      {[]string{"volume", "expand", "volume-1", "--size", "3Gi"}, "on node-a run touchstone ctl volume expand volume-1 --size 3221225472 --path PATH", 1},
		"expand to what":             {[]string{"volume", "expand", "volume-1"}, "a flag is missing: --size", 2},
		"publish without a target":   {[]string{"volume", "publish", "volume-1"}, "a flag is missing: --target", 2},
		"publish without staging":    {[]string{"volume", "publish", "volume-1", "--target", "/t"}, "a staging path is needed", 2},
		"capacity of which place":    {[]string{"capacity", "--topology", "zone"}, "must be KEY=VALUE", 2},
		"statistics of which volume": {[]string{"volume", "stats", "--path", "/x"}, "an argument is missing", 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, append(test.args, "--endpoint", endpoint)...)
			errtext.Require(t, err, test.want)
			require.Equal(t, test.code, ctl.ExitCode(err), "want: the exit code is the one of this failure")
		})
	}

	require.Zero(t, ctl.ExitCode(nil), "want: success exits with 0")
}

func TestDeleteGoesOnAfterARefusal(t *testing.T) {
	driver, endpoint := startFake(t)

	out, err := run(t, "volume", "delete", "busy", "volume-1", "--endpoint", endpoint)
	errtext.Require(t, err, "busy: DeleteVolume: FAILED_PRECONDITION: it is attached to node-a")
	require.Equal(t, 1, ctl.ExitCode(err), "want: a refused deletion exits with 1")
	require.Equal(t, "deleted volume-1\n", out)
	require.Len(t, requests[*csi.DeleteVolumeRequest](driver), 2, "want: the volume after the refused one is deleted too")
}
