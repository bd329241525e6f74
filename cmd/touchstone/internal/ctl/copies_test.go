package ctl_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/ctl"
	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestCopiesPrintTables(t *testing.T) {
	_, endpoint := startFake(t)

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"create": {[]string{"snapshot", "create", "volume-1", "one"}, `
snapshot one is ready
Name:           one
Snapshot ID:    snapshot-1
Source volume:  volume-1
Size:           1.0 GiB
Created:        2026-11-21T09:08:07.006Z
Ready to use:   true
Group:          -
Topology:       zone=a
`},
		"get": {[]string{"snapshot", "get", "snapshot-1"}, `
Snapshot ID:    snapshot-1
Source volume:  volume-1
Size:           1.0 GiB
Created:        2026-11-21T09:08:07.006Z
Ready to use:   true
Group:          -
Topology:       zone=a
`},
		"list": {[]string{"snapshot", "list"}, `
NAME  SNAPSHOT ID  SOURCE VOLUME  SIZE     CREATED                   READY  GROUP
-     snapshot-1   volume-1       1.0 GiB  2026-11-21T09:08:07.006Z  true   -
-     snapshot-2   volume-2       2.0 GiB  2026-11-21T09:08:07.006Z  true   group-1
-     snapshot-3   volume-3       3.0 GiB  2026-11-21T09:08:07.006Z  true   group-1
`},
		"delete": {[]string{"snapshot", "delete", "snapshot-1", "gone"}, `
deleted snapshot-1
deleted gone
`},
		"restore": {[]string{"snapshot", "restore", "snapshot-1", "new"}, `
volume new is ready
Name:       new
Volume ID:  volume-1
Capacity:   1.0 GiB
Topology:   zone=a | rack=1,zone=b
Context:    backing=image,pool=default
`},
		"blocks": {[]string{"snapshot", "blocks", "snapshot-1"}, `
OFFSET   LENGTH
0        4096
1048576  528384
`},
		"changed blocks": {[]string{"snapshot", "blocks", "snapshot-1", "--since", "snapshot-0"}, `
OFFSET  LENGTH
8192    4096
`},
		"group": {[]string{"group", "get", "group-1"}, `
Name:          -
Group ID:      group-1
Created:       2026-11-21T09:08:07.006Z
Ready to use:  true

SNAPSHOT ID  SOURCE VOLUME  SIZE     CREATED                   READY  GROUP
snapshot-2   volume-2       2.0 GiB  2026-11-21T09:08:07.006Z  true   group-1
snapshot-3   volume-3       3.0 GiB  2026-11-21T09:08:07.006Z  true   group-1
`},
		"group delete": {[]string{"group", "delete", "group-1"}, `
deleted group-1
`},
		"operations": {[]string{"operation", "list"}, `
KIND  NAME  DONE  FOR
`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(test.args, "--endpoint", endpoint)...)
			require.NoError(t, err)
			require.Equal(t, test.want, "\n"+out)
		})
	}
}

func TestCopiesPrintJSON(t *testing.T) {
	_, endpoint := startFake(t)

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"blocks": {[]string{"snapshot", "blocks", "snapshot-1"}, `{
			"block_metadata_type": "VARIABLE_LENGTH", "volume_capacity_bytes": "1073741824",
			"block_metadata": [{"byte_offset": "0", "size_bytes": "4096"}, {"byte_offset": "1048576", "size_bytes": "528384"}]
		}`},
		"delete":     {[]string{"snapshot", "delete", "snapshot-1"}, `{"deleted": ["snapshot-1"]}`},
		"operations": {[]string{"operation", "list"}, `{"operations": []}`},
		"get": {[]string{"snapshot", "get", "snapshot-1"}, `{"snapshot": {
			"snapshot_id": "snapshot-1", "source_volume_id": "volume-1", "size_bytes": "1073741824",
			"creation_time": "2026-11-21T09:08:07.006Z", "ready_to_use": true, "group_snapshot_id": "",
			"accessible_topology": [{"segments": {"zone": "a"}}]
		}}`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(test.args, "-o", "json", "--endpoint", endpoint)...)
			require.NoError(t, err)
			require.JSONEq(t, test.want, out)
		})
	}

	out, err := run(t, "snapshot", "list", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)

	var list struct {
		Entries   []json.RawMessage `json:"entries"`
		NextToken *string           `json:"next_token"`
	}

	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list.Entries, 3, "the entries of all pages")
	require.Empty(t, *list.NextToken, "want: the document of all pages has no token of a next one")
}

func TestFlagsSetTheRequest(t *testing.T) {
	driver, endpoint := startFake(t)
	must := func(args ...string) {
		t.Helper()

		_, err := run(t, append(args, "--endpoint", endpoint)...)
		require.NoError(t, err)
	}

	must("snapshot", "create", "volume-1", "one", "--param", "consistency=none")
	requireAsked(t, driver, &csi.CreateSnapshotRequest{
		SourceVolumeId: "volume-1", Name: "one", Parameters: map[string]string{"consistency": "none"},
	})

	must("snapshot", "list", "--volume", "volume-1", "--max-entries", "7")
	requireAsked(t, driver, &csi.ListSnapshotsRequest{SourceVolumeId: "volume-1", MaxEntries: 7})

	must("snapshot", "blocks", "snapshot-2", "--since", "snapshot-1", "--starting-offset", "4Ki", "--max-results", "5")
	requireAsked(t, driver, &csi.GetMetadataDeltaRequest{
		BaseSnapshotId: "snapshot-1", TargetSnapshotId: "snapshot-2", StartingOffset: 4096, MaxResults: 5,
	})

	must("group", "create", "volume-1", "volume-2", "both", "--param", "consistency=none")
	requireAsked(t, driver, &csi.CreateVolumeGroupSnapshotRequest{
		Name: "both", SourceVolumeIds: []string{"volume-1", "volume-2"}, Parameters: map[string]string{"consistency": "none"},
	})

	writer := csiclient.BlockCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)

	must("capacity", "--param", "pool=fast", "--topology", "zone=a,rack=1", "--block")
	requireAsked(t, driver, &csi.GetCapacityRequest{
		Parameters: map[string]string{"pool": "fast"}, VolumeCapabilities: []*csi.VolumeCapability{writer},
		AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a", "rack": "1"}},
	})

	must("volume", "stats", "volume-1", "--path", "/target", "--staging", "/staging")
	requireAsked(t, driver, &csi.NodeGetVolumeStatsRequest{VolumeId: "volume-1", VolumePath: "/target", StagingTargetPath: "/staging"})

	must("volume", "expand", "volume-1", "--size", "2Gi", "--limit", "3Gi", "--path", "/target", "--staging", "/staging", "--block")
	requireAsked(t, driver, &csi.ControllerExpandVolumeRequest{
		VolumeId: "volume-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gibi, LimitBytes: 3 * gibi}, VolumeCapability: writer,
	})
	requireAsked(t, driver, &csi.NodeExpandVolumeRequest{
		VolumeId: "volume-1", VolumePath: "/target", StagingTargetPath: "/staging", VolumeCapability: writer,
		CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gibi},
	})

	members := []string{"snapshot-2", "snapshot-3"}

	must("group", "get", "group-1")
	requireAsked(t, driver, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "group-1", SnapshotIds: members})
	must("group", "delete", "group-1")
	requireAsked(t, driver, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-1", SnapshotIds: members})
	must("group", "delete", "group-1", "--snapshot", "x")
	requireAsked(t, driver, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "group-1", SnapshotIds: []string{"x"}})
}

// requireAsked compares with the last request of this type.
func requireAsked[T proto.Message](t *testing.T, driver *fake, want T) {
	t.Helper()

	asked := requests[T](driver)
	require.NotEmpty(t, asked, "want: the driver is called")
	requireSame(t, want, asked[len(asked)-1])
}

func TestCreateCopiesTheSource(t *testing.T) {
	fromSnapshot := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snapshot-1"},
	}}
	fromVolume := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "volume-1"},
	}}

	// The fake does not know the size of this one.
	fromUnknown := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snapshot-0"},
	}}

	for name, test := range map[string]struct {
		args   []string
		source *csi.VolumeContentSource
		size   *csi.CapacityRange
	}{
		"restore of a size that is unknown": {[]string{"snapshot", "restore", "snapshot-0", "new"}, fromUnknown, nil},
		"restore with a limit alone": {
			[]string{"snapshot", "restore", "snapshot-0", "new", "--limit", "1Gi"}, fromUnknown, &csi.CapacityRange{LimitBytes: gibi},
		},
		"restore, as large as the snapshot": {
			[]string{"snapshot", "restore", "snapshot-1", "new"}, fromSnapshot, &csi.CapacityRange{RequiredBytes: gibi},
		},
		"restore, larger": {
			[]string{"snapshot", "restore", "snapshot-1", "new", "--size", "2Gi"}, fromSnapshot, &csi.CapacityRange{RequiredBytes: 2 * gibi},
		},
		"create of a snapshot": {[]string{"volume", "create", "new", "--from-snapshot", "snapshot-1"}, fromSnapshot, nil},
		"create of a volume":   {[]string{"volume", "create", "new", "--from-volume", "volume-1"}, fromVolume, nil},
		"create of nothing":    {[]string{"volume", "create", "new"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			driver, endpoint := startFake(t)

			_, err := run(t, append(test.args, "--endpoint", endpoint, "--fs", "xfs", "--param", "pool=fast")...)
			require.NoError(t, err)

			asked := requests[*csi.CreateVolumeRequest](driver)
			require.Len(t, asked, 1, "want: CreateVolume is called once")
			require.Equal(t, "new", asked[0].GetName())
			requireSame(t, test.source, asked[0].GetVolumeContentSource())
			requireSame(t, test.size, asked[0].GetCapacityRange())
			require.Equal(t, map[string]string{"pool": "fast"}, asked[0].GetParameters())
			require.Equal(t, "xfs", asked[0].GetVolumeCapabilities()[0].GetMount().GetFsType())
		})
	}
}

func TestWaitPollsUntilReady(t *testing.T) {
	t.Parallel()

	driver, endpoint := startFake(t)

	out, err := run(t, "snapshot", "create", "volume-1", "copied", "--endpoint", endpoint, "--wait")
	require.NoError(t, err)
	require.Contains(t, out, "Ready to use:   true")
	require.Len(t, requests[*csi.CreateSnapshotRequest](driver), 2, "want: --wait calls CreateSnapshot until the snapshot is ready")

	out, err = run(t, "group", "create", "volume-2", "volume-3", "both", "--endpoint", endpoint, "--wait")
	require.NoError(t, err)
	require.Contains(t, out, "Ready to use:  true")
	require.Len(t, requests[*csi.CreateVolumeGroupSnapshotRequest](driver), 2, "want: --wait calls CreateVolumeGroupSnapshot until the group is ready")
}

func TestWithoutWaitNotReadyIsPrinted(t *testing.T) {
	driver, endpoint := startFake(t)

	out, err := run(t, "snapshot", "create", "volume-1", "copied", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Contains(t, out, "Ready to use:   false")
	require.Len(t, requests[*csi.CreateSnapshotRequest](driver), 1, "want: without --wait CreateSnapshot is called once")
}

func TestFailedWaitPrintsTheSnapshot(t *testing.T) {
	_, endpoint := startFake(t)

	out, err := run(t, "snapshot", "create", "volume-1", "lost", "--endpoint", endpoint, "--wait")
	errtext.Require(t, err, "CreateSnapshot: RESOURCE_EXHAUSTED: the pool is full")
	require.Contains(t, out, "snapshot-1")
}

func TestProgressIsPrintedToStderr(t *testing.T) {
	driver, endpoint := startFake(t)

	// Other work, which this command does not print.
	defer driver.tasks.Start("snapshot", "another", "", gibi).End(nil)

	var side bytes.Buffer

	out, err := runBeside(t, &side, "snapshot", "restore", "snapshot-1", "slow", "--progress=10ms", "-o", "json", "--endpoint", endpoint)
	require.NoError(t, err)
	require.True(t, json.Valid([]byte(out)), out)
	require.Regexp(t, `^(restore of slow: 512 MiB of 1\.0 GiB \(50 %\), .+/s\n)+$`, side.String())
}

func TestProgressOfACompleteCopyIsSyncing(t *testing.T) {
	driver, endpoint := startFake(t)

	// Begun by an earlier call, which this one may have joined.
	task := driver.tasks.Start("restore", "first", "", gibi)
	defer task.End(nil)

	task.Set(gibi, gibi)

	var side bytes.Buffer

	_, err := runBeside(t, &side, "snapshot", "restore", "snapshot-1", "slow", "--progress=10ms", "--endpoint", endpoint)
	require.NoError(t, err)
	require.Contains(t, side.String(), "restore of first: 1.0 GiB of 1.0 GiB (100 %), syncing to disk\n")
	require.Contains(t, side.String(), "restore of slow: 512 MiB")
}

func TestWithoutATerminalProgressNeedsTheFlag(t *testing.T) {
	t.Parallel()

	driver, endpoint := startFake(t)

	// The copy that the command's call begins, or joins.
	defer driver.tasks.Start("restore", "volume-9", "slow", gibi).End(nil)

	var side bytes.Buffer

	_, err := runBeside(t, &side, "snapshot", "restore", "snapshot-1", "slow", "--timeout", "2s", "--endpoint", endpoint)
	errtext.Require(t, err, "DEADLINE_EXCEEDED")
	require.Empty(t, side.String(), "want: no progress is written without a terminal")
	errtext.Require(t, err, "the driver continues to copy: touchstone ctl operation list shows how far it is, operation wait slow waits")
	require.Len(t, requests[*emptypb.Empty](driver), 1, "want: the driver is asked for progress at the end only")
}

func TestTerminalShowsABarUntilTheAnswer(t *testing.T) {
	t.Parallel()

	driver, endpoint := startFake(t)
	driver.release = make(chan struct{})
	terminal, screen := openTerminal(t)

	ended := make(chan error, 1)

	go func() {
		_, err := runBeside(t, terminal, "snapshot", "restore", "snapshot-1", "slow", "--endpoint", endpoint)
		ended <- err
	}()

	readScreen(t, screen, `restore of slow \[=+>-+\] 512 MiB of 1\.0 GiB \(50 %\), .+/s`)
	close(driver.release)
	require.NoError(t, await.Receive(t, ended, "the restore"))
	requireCleared(t, terminal, screen)
}

func TestTerminalShowsABarUntilTheVerdict(t *testing.T) {
	t.Parallel()

	driver, endpoint := startReporting(t)
	driver.release = make(chan struct{})
	terminal, screen := openTerminal(t)

	var out bytes.Buffer

	command := ctl.NewCheckCommand()
	command.SetOut(&out)
	command.SetErr(terminal)
	command.SetArgs([]string{"volume-1", "--endpoint", endpoint})

	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(t.Context()) }()

	readScreen(t, screen, `check of volume-1 \[-+\] 1 of 1, \d+s`)
	close(driver.release)
	require.NoError(t, await.Receive(t, ended, "the check"))
	require.Contains(t, out.String(), "volume-1  clean")
	requireCleared(t, terminal, screen)
}

// readScreen reads until the screen matches.
func readScreen(t *testing.T, screen io.Reader, want string) {
	t.Helper()

	var shown []byte

	await.Return(t, func() {
		for part := make([]byte, 4096); !regexp.MustCompile(want).Match(shown); {
			n, err := screen.Read(part)
			if err != nil {
				return
			}

			shown = append(shown, part[:n]...)
		}
	}, "a progress bar")
	require.Regexp(t, want, string(shown))
}

// requireCleared requires that a terminal's last output removes a line.
func requireCleared(t *testing.T, terminal, screen *os.File) {
	t.Helper()
	require.NoError(t, terminal.Close())

	var shown []byte

	await.Return(t, func() { shown, _ = io.ReadAll(screen) }, "the terminal to end") // it ends with EIO
	require.Regexp(t, `\x1b\[1A\x1b\[J$`, string(shown))
}

// openTerminal returns both ends of a pseudo-terminal.
func openTerminal(t *testing.T) (terminal, screen *os.File) {
	t.Helper()

	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("needs pseudo-terminals: ", err)
	}

	t.Cleanup(func() { require.NoError(t, screen.Close()) })
	require.NoError(t, unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))

	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)

	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)

	require.NoError(t, unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}))

	return terminal, screen
}

func TestCopyErrorsNameTheCall(t *testing.T) {
	const member = "it is a member of group snapshot group-1 and goes with it; touchstone ctl group delete group-1"

	_, endpoint := startFake(t)

	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"refused by the driver": {
			[]string{"snapshot", "create", "volume-1", "mounted"}, "CreateSnapshot: FAILED_PRECONDITION: volume-1 is in use", 1,
		},
		"no such snapshot": {[]string{"snapshot", "get", "none"}, "GetSnapshot: NOT_FOUND: no snapshot none", 1},
		"restore of nothing": {
			[]string{"snapshot", "restore", "none", "new"}, "GetSnapshot: NOT_FOUND: no snapshot none", 1,
		},
		"a member alone": {
			[]string{"snapshot", "delete", "snapshot-2"}, "snapshot-2: DeleteSnapshot: INVALID_ARGUMENT: " + member, 1,
		},
		"a member alone, as a question": {
			[]string{"snapshot", "delete", "snapshot-2", "--dry-run"},
			"snapshot-2: the driver would refuse this: " + member, 1,
		},
		"a stream that breaks": {[]string{"snapshot", "blocks", "broken"}, "GetMetadataAllocated: INTERNAL: lost my place", 1},
		"two sources": {
			[]string{"volume", "create", "new", "--from-snapshot", "a", "--from-volume", "b"}, "one source", 2,
		},
		"a snapshot without a name": {[]string{"snapshot", "create", "volume-1"}, "snapshot create VOLUME NAME", 2},
		"an empty snapshot":         {[]string{"volume", "create", "new", "--from-snapshot", ""}, "must not be empty", 2},
		"an empty volume":           {[]string{"volume", "create", "new", "--from-volume="}, "must not be empty", 2},
		"an empty base":             {[]string{"snapshot", "blocks", "snapshot-1", "--since", ""}, "must not be empty", 2},
		"the snapshots of nothing":  {[]string{"snapshot", "list", "--volume", ""}, "must not be empty", 2},
		"a group of nothing":        {[]string{"group", "create", "both"}, "group create VOLUME… NAME", 2},
		"bad parameter":             {[]string{"snapshot", "create", "volume-1", "x", "--param", "consistency"}, "must be KEY=VALUE", 2},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(test.args, "--endpoint", endpoint)...)
			errtext.Require(t, err, test.want)
			require.Equal(t, test.code, ctl.ExitCode(err), "want: the exit code is the one of this failure")
			require.NotContains(t, out, "OFFSET", "half a list is none")
		})
	}
}

// TestDryRunOfWhatIsNotListed: a driver that does not report it is not said to refuse.
func TestDryRunOfWhatIsNotListed(t *testing.T) {
	t.Parallel()

	endpoint := startForeign(t, []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS}, nil)

	for _, kind := range []string{"snapshot", "volume"} {
		out, err := run(t, kind, "delete", "unlisted", "--dry-run", "--endpoint", endpoint)
		require.NoError(t, err)
		require.Contains(t, out, "would delete "+kind+" unlisted")
	}
}
