package ctl

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/internal/quantity"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestRulesAreReadFromInputFileOrArgument(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "rules")
	require.NoError(t, os.WriteFile(file, []byte("of the file"), 0o600))

	for argument, want := range map[string]string{"-": "of the input", file: "of the file", "{match: {}}": "{match: {}}"} {
		found, err := readRules(strings.NewReader("of the input"), argument)
		require.NoError(t, err)
		require.Equal(t, want, found)
	}

	_, err := readRules(nil, filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	errtext.Require(t, err, "a rule itself is YAML")

	_, err = readRules(iotest.ErrReader(io.ErrUnexpectedEOF), "-")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	require.Equal(t, "active", faultState(faults.Status{}))
	require.Equal(t, "ended", faultState(faults.Status{Ended: true}))
}

// TestProgressWithoutATotalHasNoShare, and what is all copied is on its way to the disk.
func TestProgressWithoutATotalHasNoShare(t *testing.T) {
	t.Parallel()

	began := time.Now().Add(-time.Hour)

	for want, entry := range map[string]progress.Entry{
		"512 MiB of 1.0 GiB (50 %)":  {Done: 512 << 20, Total: 1 << 30},
		"1.0 GiB of 1.0 GiB (100 %)": {Done: 1 << 30, Total: 1 << 30},
		"7 B of 1.0 KiB (0 %)":       {Done: 7, Total: 1 << 10},
		"7 B":                        {Done: 7},
		"0 B":                        {},
		"8 B":                        {Done: 8, Total: -1},
	} {
		entry.Started = began
		require.Equal(t, want, formatProgress(entry))

		if entry.Total > 0 && entry.Done == entry.Total {
			require.Equal(t, want+", syncing to disk", formatPace(entry))
		} else {
			require.Regexp(t, `^`+strings.NewReplacer("(", `\(`, ")", `\)`).Replace(want)+`, .+/s$`, formatPace(entry))
		}
	}

	require.Contains(t, formatPace(progress.Entry{Started: began, Done: 36 << 20, Total: 1 << 30}), ", 10 KiB/s")
	require.Equal(t, "snapshot of data", copyOf(progress.Entry{Kind: "snapshot", Object: "data"}).title)
	require.Equal(t, "-5", formatBytes(-5))
	require.Equal(t, "0 B", formatBytes(0))
}

func TestUsedSaysItsAge(t *testing.T) {
	t.Parallel()

	for want, at := range map[string]time.Time{
		"": {}, "512 MiB": time.Now(), "512 MiB (3m ago)": time.Now().Add(-3 * time.Minute),
	} {
		measured := volume{known: health.VolumeReport{Usage: &health.Usage{Bytes: health.Amount{Used: 512 << 20}, At: at}}}
		require.Equal(t, want, measured.used(), "want: an old measurement says so")
	}

	require.Empty(t, volume{}.used(), "want: no usage is no number")
}

// TestTheCapabilityOfAStagingIsTheDefault: what is not given is as the volume is staged, or as a new one.
func TestTheCapabilityOfAStagingIsTheDefault(t *testing.T) {
	t.Parallel()

	writer := csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	raw := health.VolumeReport{Backing: "image"}
	xfs := health.VolumeReport{Backing: "image", FSType: "xfs"}
	directory := health.VolumeReport{Backing: "directory", AccessMode: "MULTI_NODE_READER_ONLY"}

	for name, test := range map[string]struct {
		flags capabilityFlags
		known health.VolumeReport
		want  *csi.VolumeCapability
		err   error
	}{
		"raw block":             {capabilityFlags{}, raw, csiclient.BlockCapability(writer), nil},
		"raw block, asked for":  {capabilityFlags{block: true}, raw, csiclient.BlockCapability(writer), nil},
		"a filesystem on it":    {capabilityFlags{fs: "xfs"}, raw, nil, errRawBlock},
		"a flag on it":          {capabilityFlags{mountFlags: []string{"ro"}}, raw, nil, errRawBlock},
		"a filesystem":          {capabilityFlags{}, xfs, csiclient.MountCapability(writer, ""), nil},
		"with flags":            {capabilityFlags{fs: "xfs", mountFlags: []string{"ro"}}, xfs, csiclient.MountCapability(writer, "xfs", "ro"), nil},
		"as it is staged":       {capabilityFlags{}, directory, csiclient.MountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""), nil},
		"a mode":                {capabilityFlags{mode: writer}, directory, csiclient.MountCapability(writer, ""), nil},
		"of another driver":     {capabilityFlags{}, health.VolumeReport{}, csiclient.MountCapability(writer, ""), nil},
		"a mode that is wrong":  {capabilityFlags{}, health.VolumeReport{AccessMode: "RWO"}, nil, errUnknownMode},
		"block with filesystem": {capabilityFlags{block: true, fs: "xfs"}, xfs, nil, errBlockAndFS},
	} {
		got, err := test.flags.capabilityFor(test.known)
		require.ErrorIs(t, err, test.err, name)
		require.Equal(t, test.want.String(), got.String(), name)
	}
}

func TestOnlyMountsHaveAnID(t *testing.T) {
	t.Parallel()

	plain := t.TempDir()
	ids := mountIDs("/proc", plain)
	require.NotEqual(t, uint64(noMount), ids[0], "want: a mount has an id")
	require.Equal(t, uint64(noMount), ids[1], "want: a directory is no mount")
	require.Equal(t, [2]uint64{noMount, ids[0]}, mountIDs(filepath.Join(plain, "missing"), "/proc"))
}

// TestAReadOnlyMountIsRefusedForWriting, and accepted of what need not be writable.
func TestAReadOnlyMountIsRefusedForWriting(t *testing.T) {
	t.Parallel()

	writer := csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	at := t.TempDir()

	require.NoError(t, checkWritable(&csiclient.Publication{TargetPath: at, Capability: csiclient.MountCapability(writer, "")}))
	require.NoError(t, checkWritable(&csiclient.Publication{TargetPath: "/missing", Capability: csiclient.MountCapability(writer, "")}))

	for name, test := range map[string]struct {
		claim csiclient.Publication
		want  bool
	}{
		"for writing":     {csiclient.Publication{Capability: csiclient.MountCapability(writer, "")}, true},
		"read-only":       {csiclient.Publication{Capability: csiclient.MountCapability(writer, ""), ReadOnly: true}, false},
		"with ro":         {csiclient.Publication{Capability: csiclient.MountCapability(writer, "", "ro")}, false},
		"of a raw device": {csiclient.Publication{Capability: csiclient.BlockCapability(writer)}, false},
		"for readers":     {csiclient.Publication{Capability: csiclient.MountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")}, false},
	} {
		require.Equal(t, test.want, isForWriting(&test.claim), "whether a publication is for writing: %s", name)
	}

	for name, test := range map[string]struct {
		stat unix.Statfs_t
		want bool
	}{
		"read-only":         {unix.Statfs_t{Flags: unix.ST_RDONLY | unix.ST_NODEV}, true},
		"writable":          {unix.Statfs_t{Flags: unix.ST_NODEV}, false},
		"a virtual machine": {unix.Statfs_t{Flags: unix.ST_RDONLY, Type: unix.TMPFS_MAGIC}, false},
	} {
		require.Equal(t, test.want, isReadOnly(&test.stat), "whether a mount is read-only: %s", name)
	}
}

func TestOnlyARefusedPathNamesTheFlag(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		err  error
		want bool
	}{
		{status.Error(codes.InvalidArgument, "/mnt: outside; it must be beneath /kubelet"), true},
		{status.Error(codes.InvalidArgument, "/mnt: not a plain path"), false},
		{status.Error(codes.Internal, "it must be beneath /kubelet"), false},
	} {
		err := explainPath(test.err, health.VolumeReport{}, "/mnt/data")
		require.ErrorIs(t, err, test.err)
		require.Equal(t, test.want, strings.HasSuffix(err.Error(), "start the driver with --allow-path /mnt to mount there"), err)
	}
}

func TestExpansionPrintsTheCommandThatRemains(t *testing.T) {
	t.Parallel()

	known := health.VolumeReport{ID: "v", Published: []string{"/mnt/a"}, AccessMode: "SINGLE_NODE_WRITER"}
	readers := known
	readers.AccessMode = "MULTI_NODE_READER_ONLY"
	several, kept := known, known
	several.Published = []string{"/mnt/b c", "/mnt/a"}
	several.ReadOnly, several.Persistent = several.Published[:1], several.Published[:1]
	kept.ReadOnly, kept.Persistent, kept.MountFlags = known.Published, known.Published, 2

	for want, e := range map[string]expansion{
		"touchstone ctl volume expand v --size 4096 --path PATH":         {id: "v"},
		"touchstone ctl volume expand v --size 4096 --path /p":           {id: "v", path: "/p"},
		"touchstone ctl volume expand v --size 4096 --path /q":           {id: "v", path: "/q", known: known},
		"touchstone ctl volume expand v --size 4096":                     {id: "v", known: known},
		"touchstone ctl volume expand v --size 4096 --block":             {id: "v", known: known, use: capabilityFlags{block: true}},
		"touchstone ctl volume expand w --size 4096 --path PATH --block": {id: "w", use: capabilityFlags{block: true}},
	} {
		e.answer = &csi.ControllerExpandVolumeResponse{CapacityBytes: 4096}
		require.Equal(t, want, e.command())
	}

	again := "touchstone ctl volume umount v && touchstone ctl volume mount v /mnt/a"

	without := known
	without.AccessMode = ""

	require.Equal(t, "touchstone ctl volume umount v", mountAgain(health.VolumeReport{ID: "v"}))
	require.Equal(t, again, mountAgain(known))
	require.Equal(t, again, mountAgain(without))
	require.Equal(t, "touchstone ctl volume umount '/mnt/b c' && touchstone ctl volume umount /mnt/a && mv f g && "+
		"touchstone ctl volume mount v /mnt/a && touchstone ctl volume mount v '/mnt/b c' --readonly --persist",
		mountAgain(several, "mv f g"), "want: the commands for each path")
	require.Equal(t, again+" --access-mode MULTI_NODE_READER_ONLY", mountAgain(readers))
	require.Equal(t, again+" --readonly --persist --mount-flag FLAG --mount-flag FLAG", mountAgain(kept))
}

// TestRemediesForPeople are commands, unless an orchestrator has published the volume.
func TestRemediesForPeople(t *testing.T) {
	t.Parallel()

	const again = "touchstone ctl volume umount data && touchstone ctl volume mount data /mnt/data"

	mounted := health.VolumeReport{ID: "v", Name: "data", Staged: "/mnt/.touchstone-v", Published: []string{"/mnt/data"}}

	for message, want := range map[string]string{
		"it is not mounted there; restart its pod: /mnt/data":                        "it is not mounted there; " + again,
		"it was made read-only; see the kernel's log, unstage it and stage it again": "it was made read-only; see the kernel's log, " + again,
		"volume v is attached to n1; unpublish it there first":                       "volume v is attached to n1; touchstone ctl volume umount data",
		"it is full; delete files, or expand it":                                     "it is full; delete files, or expand it",
		"copy its device: touchstone ctl volume rescue VOLUME FILE":                  "copy its device: touchstone ctl volume rescue data FILE",
	} {
		require.Equal(t, want, forPeople(mounted, message))

		for _, staged := range []string{"/var/lib/kubelet/plugins/csi/mount", "/mnt/.touchstone-w", "/mnt/.touchstone-"} {
			published := mounted
			published.Staged = staged

			if !strings.Contains(message, "rescue") {
				require.Equal(t, message, forPeople(published, message), "want: the orchestrator's remedy stays, %s", staged)
			}
		}
	}

	mounted.Published = []string{"/mnt/a", "/mnt/b"}
	require.Equal(t, "touchstone ctl volume umount /mnt/b && touchstone ctl volume umount /mnt/a",
		forPeople(mounted, "unpublish it first"), "want: the command for each path")
}

// TestExpandDecidesTheNodesPart without asking the node.
func TestExpandDecidesTheNodesPart(t *testing.T) {
	t.Parallel()

	needed, notNeeded := &csi.ControllerExpandVolumeResponse{NodeExpansionRequired: true}, &csi.ControllerExpandVolumeResponse{}
	staged := health.VolumeReport{ID: "v", Staged: "/s", Backing: "image"}
	byHand := health.VolumeReport{ID: "v", Staged: "/mnt/.touchstone-v", Backing: "image"}
	directory := health.VolumeReport{ID: "v", Staged: "/s", Backing: "directory"}
	controller := csiclient.Capabilities{HasController: true}
	advertised := csiclient.Capabilities{HasController: true, Node: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME}},
	}}}

	for name, test := range map[string]struct {
		e      expansion
		answer *csi.ControllerExpandVolumeResponse
		nodes  []string
		want   string
		err    error
		says   string
	}{
		"done by the controller":          {expansion{id: "v", caps: controller}, notNeeded, nil, "not needed", nil, ""},
		"a directory":                     {expansion{id: "v", caps: controller, known: directory}, notNeeded, nil, "not needed", nil, ""},
		"advertised":                      {expansion{id: "v", caps: advertised, known: staged}, notNeeded, nil, "not needed", nil, ""},
		"not advertised":                  {expansion{id: "v", caps: controller, known: staged}, notNeeded, nil, "needed", errNodePart, "have the orchestrator unstage it"},
		"not advertised, mounted by hand": {expansion{id: "v", caps: controller, known: byHand}, notNeeded, nil, "needed", errNodePart, "run touchstone ctl volume umount v"},
		"without controller or path":      {expansion{id: "v"}, needed, nil, "needed", errNoPath, "volume v"},
		"elsewhere":                       {expansion{id: "v", caps: controller}, needed, []string{"b", "c"}, "needed", errNodePart, "on b, c run"},
		"somewhere":                       {expansion{id: "v", caps: controller}, needed, nil, "needed", errNodePart, "where it is in use run"},
		"not in use, as Touchstone says": {
			expansion{id: "v", caps: controller, known: health.VolumeReport{ID: "v", FSType: "xfs"}},
			needed, nil,
			"not in use: its filesystem grows when it is staged", nil, "",
		},
		"not in use, without a filesystem": {
			expansion{id: "v", caps: controller, known: health.VolumeReport{ID: "v"}}, needed, nil, "not needed", nil, "",
		},
	} {
		test.e.answer, test.e.nodes = test.answer, test.nodes
		grown, state, err := test.e.onNode(t.Context())
		require.Nil(t, grown, "want: the node is not asked of %s", name)
		require.Equal(t, test.want, state, name)
		require.ErrorIs(t, err, test.err, name)

		if err != nil {
			errtext.Require(t, err, test.says, name)
		}
	}
}

func TestSinceIsATimeOrADuration(t *testing.T) {
	t.Parallel()

	none, err := (&callFilter{}).filter()
	require.NoError(t, err)
	require.Nil(t, none.Since, "want: without --since there is no time")

	at, err := (&callFilter{since: "2026-11-21T09:08:07Z"}).filter()
	require.NoError(t, err)
	require.Equal(t, time.Date(2026, 11, 21, 9, 8, 7, 0, time.UTC), at.Since.UTC())

	for text, ago := range map[string]time.Duration{"1h": time.Hour, "0s": 0} {
		found, err := (&callFilter{since: text}).filter()
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(-ago), *found.Since, time.Minute, text)
	}

	for _, text := range []string{"yesterday", "-1h", "2026-11-21"} {
		_, err := (&callFilter{since: text}).filter()
		require.ErrorIs(t, err, errSince, text)
		require.Equal(t, 2, ExitCode(err), "want: wrong usage")
	}
}

// TestArgumentsAreKnownByTheirOrder: what an argument says of the others of its verb holds for all verbs.
func TestArgumentsAreKnownByTheirOrder(t *testing.T) {
	t.Parallel()

	checked := 0

	var check func(v verb)

	check = func(v verb) {
		last := len(v.arguments) - 1

		for at, each := range v.arguments {
			checked++

			require.True(t, !each.repeated || at == 0, "want: a repeated argument comes first: %s", v.usage())
			require.True(t, !each.optional || at == last, "want: an optional argument comes last: %s", v.usage())

			if first := v.arguments[0].kind; each.kind != first {
				require.Empty(t, each.kind, "want: arguments of one kind: %s", v.usage())
				require.True(t, at == last && !each.optional, "want: one argument without a kind behind the others: %s", v.usage())
			}
		}

		for _, each := range v.verbs {
			check(each)
		}
	}
	check(allVerbs(&settings{}))
	require.Greater(t, checked, 20, "want: the verbs have arguments")
}

func TestFlagsShowTheirDefaultAndRefuseOthers(t *testing.T) {
	t.Parallel()

	var (
		bytes  int64
		pairs  map[string]string
		period = time.Minute
		mode   = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	)

	require.Empty(t, size(&bytes).String(), "want: no size has no text")
	require.NoError(t, size(&bytes).Set("1Ki"))

	for text, want := range map[string]error{"-1": quantity.ErrSyntax, "x": quantity.ErrSyntax, "8Ei": quantity.ErrRange, "-8Ei": quantity.ErrRange} {
		require.ErrorIs(t, size(&bytes).Set(text), want, text)
		require.EqualValues(t, 1024, bytes, "want: %s, which is refused, leaves the size", text)
	}

	require.Equal(t, "1m0s", span(&period).String(), "want: the default of a time is its text")
	require.ErrorIs(t, span(&period).Set("-1s"), errNegative)
	errtext.Require(t, span(&period).Set("x"), `invalid duration "x"`)
	require.Equal(t, time.Minute, period, "want: a time that is refused leaves the one before")

	require.ErrorIs(t, accessMode(&mode).Set("SOME"), errUnknownMode)
	require.Equal(t, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, mode, "want: a mode that is refused leaves the one before")
	require.Equal(t, "1.0 GiB", formatBytes(1<<30))
	require.Equal(t, "a=1,b=2", formatPairs(map[string]string{"b": "2", "a": "1"}))
	require.Empty(t, keyValues(&pairs).String(), "want: no pairs have no text")
	require.ErrorIs(t, keyValues(&pairs).Set("=value"), errNotPair)
	require.ErrorIs(t, keyValues(&pairs).Set("key"), errNotPair)
	require.NoError(t, keyValues(&pairs).Set("key="))
	require.Equal(t, map[string]string{"key": ""}, pairs)

	for _, is := range []bool{
		(&createFlags{required: 1}).isGiven(), (&createFlags{limit: 1}).isGiven(), (&createFlags{parameters: map[string]string{"a": "b"}}).isGiven(),
		(&createFlags{mutable: map[string]string{"a": "b"}}).isGiven(), (&createFlags{topology: []string{"a=b"}}).isGiven(),
	} {
		require.True(t, is, "want: a flag of a new volume is given")
	}

	require.False(t, (&createFlags{use: capabilityFlags{fs: "xfs"}}).isGiven(), "want: a flag of each mount is none of a new volume")
}

// failing is a writer that fails.
type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

// TestUnwritableChangesFail: the error of the output is returned.
func TestUnwritableChangesFail(t *testing.T) {
	t.Parallel()

	full := errors.New("no space left on device")
	s := &session{printer: &printer{out: failing{full}}}
	require.ErrorIs(t, s.watching(t.Context(), func(context.Context) error { return s.printLine("text") }), full)
}

// TestTimesHaveMilliseconds, and an unknown time is a dash.
func TestTimesHaveMilliseconds(t *testing.T) {
	t.Parallel()

	require.Equal(t, dash, formatTime(nil))
	require.Equal(t, "1970-01-01T00:00:01.002Z", formatTime(&timestamppb.Timestamp{Seconds: 1, Nanos: 2_000_000}))
}

// TestDeletedAmong finds the device of a deleted image, also where another image has its name.
func TestDeletedAmong(t *testing.T) {
	t.Parallel()

	other, there := loop.Attachment{Number: 1, BackingPath: "/pool/b.img", BackingDeleted: true}, loop.Attachment{Number: 2, BackingPath: "/pool/a.img"}
	deleted := loop.Attachment{Number: 3, BackingPath: "/pool/a.img", BackingDeleted: true}

	_, err := deletedAmong([]loop.Attachment{other}, "a")
	require.ErrorIs(t, err, errNoDevice)

	_, err = deletedAmong([]loop.Attachment{other, there}, "a")
	require.ErrorIs(t, err, errImageThere)

	found, err := deletedAmong([]loop.Attachment{other, there, deleted}, "a")
	require.NoError(t, err)
	require.Equal(t, deleted, found, "want: the device whose image was deleted")
}

// TestRemediesOfConnections: an error that the driver itself gave has none, nor one after Ctrl-C.
func TestRemediesOfConnections(t *testing.T) {
	t.Parallel()

	failure := errors.New("UNAVAILABLE")
	dir := t.TempDir()
	socket, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, socket.Close()) })

	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Close()) })

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()

	late, end := context.WithTimeout(t.Context(), 0)
	t.Cleanup(end)

	for name, test := range map[string]struct {
		ctx            context.Context //nolint:containedctx // a case
		endpoint, want string
	}{
		"a socket that is served":    {t.Context(), "unix://" + socket.Addr().String(), ""},
		"a port that is served":      {t.Context(), port.Addr().String(), ""},
		"a port, after Ctrl-C":       {cancelled, port.Addr().String(), ""},
		"a port, late":               {late, port.Addr().String(), "--timeout has passed"},
		"a port without a server":    {t.Context(), "127.0.0.1:0", "where a CSI driver listens"},
		"no socket":                  {t.Context(), "unix:" + dir, "is no socket"},
		"a socket that is not there": {t.Context(), "unix:" + dir + "/absent", "there is no socket"},
	} {
		err := explainConnection(test.ctx, test.endpoint, failure)
		require.ErrorIs(t, err, failure, name)
		require.Contains(t, err.Error(), test.want, name)

		if test.want == "" {
			require.Equal(t, failure.Error(), err.Error(), "want: no remedy for %s", name)
		}
	}
}
