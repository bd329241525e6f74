package ctl_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// startNamed serves a driver that lists names and reports health.
func startNamed(t *testing.T) (*fake, string) {
	t.Helper()

	reported := &reporting{report: health.Report{Volumes: []health.VolumeReport{
		{
			ID: "volume-1", Name: "data", Pool: "default", FSType: "xfs", Backing: "image", Staged: "/stage",
			Published: []string{"/mnt/data"}, Persistent: []string{"/mnt/data"}, Usage: &health.Usage{Bytes: health.Amount{Used: gibi / 2}, At: time.Now()},
		},
		{ID: "volume-2", Name: "raw", Pool: "default", Backing: "image", Conditions: []health.ConditionReport{
			{Entry: health.NewEntry(health.IOErrors, "requests failed"), View: "node", Since: time.Now()},
		}},
	}}}
	named := &names.Service{List: func(kind names.Kind) []names.Object {
		return map[names.Kind][]names.Object{
			names.Volume:   {{ID: "volume-1", Name: "data"}, {ID: "volume-2", Name: "raw"}},
			names.Snapshot: {{ID: "snapshot-1", Name: "monday"}},
			names.Group:    {{ID: "group-1", Name: "both"}},
		}[kind]
	}}

	return startFake(t, reported.register, func(to grpc.ServiceRegistrar) { named.Register(to) })
}

func TestNamesResolveToIDs(t *testing.T) {
	driver, endpoint := startNamed(t)

	for _, args := range [][]string{
		{"volume", "get", "data"},
		{"volume", "modify", "data", "--mutable", "readIOPS=500"},
		{"volume", "expand", "volume-1", "--size", "2Gi"},
		{"volume", "rm", "data", "raw"},
		{"snap", "create", "data", "tuesday"},
		{"snapshot", "get", "monday"},
		{"volume", "create", "copy", "--from-volume", "data"},
		{"volume", "create", "restored", "--from-snapshot", "monday"},
		{"group", "create", "data", "raw", "g"},
	} {
		_, err := run(t, append(args, "--endpoint", endpoint)...)
		require.NoError(t, err, args)
	}

	require.Equal(t, "volume-1", requests[*csi.ControllerModifyVolumeRequest](driver)[0].GetVolumeId())
	require.Equal(t, "volume-1", requests[*csi.ControllerExpandVolumeRequest](driver)[0].GetVolumeId())
	require.Equal(t, "volume-2", requests[*csi.DeleteVolumeRequest](driver)[1].GetVolumeId())
	require.Equal(t, "volume-1", requests[*csi.CreateSnapshotRequest](driver)[0].GetSourceVolumeId())
	require.Equal(t, "snapshot-1", requests[*csi.GetSnapshotRequest](driver)[0].GetSnapshotId())

	created := requests[*csi.CreateVolumeRequest](driver)
	require.Equal(t, "volume-1", created[0].GetVolumeContentSource().GetVolume().GetVolumeId())
	require.Equal(t, "snapshot-1", created[1].GetVolumeContentSource().GetSnapshot().GetSnapshotId())
	require.Equal(t, []string{"volume-1", "volume-2"}, requests[*csi.CreateVolumeGroupSnapshotRequest](driver)[0].GetSourceVolumeIds())
}

func TestCheckResolvesNames(t *testing.T) {
	_, endpoint := startNamed(t)

	out, err := check(t, "data", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Contains(t, out, "data  ")

	_, err = check(t, "dat", "--endpoint", endpoint)
	errtext.Require(t, err, "did you mean data?")
	require.Equal(t, 2, ctl.ExitCode(err), "want: an unknown volume exits with 2")
}

func TestUnknownNamesAreNotFound(t *testing.T) {
	driver, endpoint := startNamed(t)

	out, err := run(t, "volume", "delete", "dat", "raw", "--endpoint", endpoint)
	errtext.Require(t, err, "dat: nothing to delete: not found: no volume has the name or id dat; did you mean data?")
	require.Equal(t, 1, ctl.ExitCode(err), "want: an unknown volume exits with 1")
	require.Equal(t, "deleted raw\n", out)
	require.Len(t, requests[*csi.DeleteVolumeRequest](driver), 1, "want: the known volume alone is deleted")

	_, err = run(t, "volume", "delete", "dat", "--ignore-not-found", "--endpoint", endpoint)
	require.NoError(t, err)

	_, err = run(t, "snapshot", "get", "friday", "--endpoint", endpoint)
	errtext.Require(t, err, "no snapshot has the name or id friday")
}

func TestListPrintsNames(t *testing.T) {
	_, endpoint := startNamed(t)

	for format, want := range map[string]string{
		"table": `NAME  ID        SIZE     USED     FS         POOL     MOUNTED AT  HEALTH
data  volume-1  1.0 GiB  512 MiB  xfs        default  /mnt/data   HEALTHY
raw   volume-2  2.0 GiB  -        raw block  default  -           DEGRADED IOErrors
`,
		"wide": `NAME  ID        SIZE     USED     FS         POOL     MOUNTED AT  HEALTH             NODES          TOPOLOGY                AT START
data  volume-1  1.0 GiB  512 MiB  xfs        default  /mnt/data   HEALTHY            node-a,node-b  zone=a | rack=1,zone=b  /mnt/data
raw   volume-2  2.0 GiB  -        raw block  default  -           DEGRADED IOErrors  -              zone=a | rack=1,zone=b  -
`,
		"name": "data\nraw\n",
	} {
		out, err := run(t, "vol", "ls", "-o", format, "--endpoint", endpoint)
		require.NoError(t, err)
		require.Equal(t, want, out, format)
	}

	out, err := run(t, "volume", "list", "-o", "yaml", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Contains(t, out, "    volume_id: volume-1\n")
}

func TestMissingSocketFails(t *testing.T) {
	_, err := run(t, "volume", "list", "--endpoint", "unix://"+t.TempDir()+"/csi.sock")
	errtext.Require(t, err, "is the driver running?")
	require.Equal(t, 1, ctl.ExitCode(err), "want: a missing socket exits with 1")
}

// TestWatchPrintsChanges, and ends with its context.
func TestWatchPrintsChanges(t *testing.T) {
	t.Parallel()

	driver, endpoint := startNamed(t)
	ctx, interrupt := context.WithCancel(t.Context())
	shown, output := io.Pipe()

	command := ctl.NewCommand()
	command.SetOut(output)
	command.SetArgs([]string{"snapshot", "list", "--watch", "-o", "name", "--endpoint", endpoint})

	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(ctx) }()

	text := make([]byte, 4096)
	n, err := shown.Read(text)
	require.NoError(t, err)
	require.Contains(t, string(text[:n]), "monday")

	// It asks again, and shows nothing, as nothing has changed: the pipe would block it.
	before := len(requests[*csi.ListSnapshotsRequest](driver))
	require.Eventually(t, func() bool { return len(requests[*csi.ListSnapshotsRequest](driver)) > before+1 },
		time.Minute, 10*time.Millisecond, "want: ctl lists the snapshots again")

	interrupt()
	require.NoError(t, await.Receive(t, ended, "the end of --watch"))
}

func TestNamesAreCompleted(t *testing.T) {
	_, endpoint := startNamed(t)
	t.Setenv("TOUCHSTONE_ENDPOINT", endpoint)

	for want, args := range map[string][]string{
		"data\tvolume-1\n":     {"volume", "get", "d"},
		"raw\tvolume-2\n":      {"volume", "delete", "data", ""},
		"monday\tsnapshot-1\n": {"snapshot", "restore", ""},
		"volume-2\traw\n":      {"volume", "get", "volume-2"},
		"xfs\n":                {"volume", "create", "--fs", "x"},
		"data\tvolume-1\n:0\n": {"volume", "umount", "d"},
		":0\n":                 {"volume", "mount", "data", "/m"},
		":0":                   {"volume", "rescue", "data", "/m"},
		":4\n":                 {"volume", "create", ""},
		"monday\tsnapshot-1":   {"volume", "create", "new", "--from-snapshot", ""},
		"raw\tvolume-2":        {"snapshot", "list", "--volume", "r"},
		"monday\t":             {"snapshot", "blocks", "tuesday", "--since", ""},
		"backing=\n":           {"volume", "create", "new", "--param", "b"},
		"provisioning=\n":      {"capacity", "--param", ""},
		"consistency=\n:6\n":   {"snapshot", "create", "data", "new", "--param", ""},
		"readIOPS=\n":          {"volume", "modify", "data", "--mutable", "read"},
	} {
		out, err := run(t, append([]string{"__complete"}, args...)...)
		require.NoError(t, err)
		require.Contains(t, out, want)
	}
}
