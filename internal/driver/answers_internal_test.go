package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestViewsOfAVolumeAreMerged: the node's view is first, and the controller's fills what it does not
// have.
func TestViewsOfAVolumeAreMerged(t *testing.T) {
	t.Parallel()

	entry := func(status health.Status, reason health.Reason) health.ConditionReport {
		return health.ConditionReport{Entry: health.Entry{Status: status, Reason: reason}}
	}
	usage := &health.Usage{Bytes: health.Amount{Total: 1}}
	check := &health.CheckReport{Verdict: "clean"}
	node := health.VolumeReport{
		ID: "b", FSType: "ext4", CapacityBytes: 1, AccessMode: "SINGLE_NODE_WRITER", Staged: "/staged", Published: []string{"/published"},
		Usage: usage, Check: check, Conditions: []health.ConditionReport{entry(1, "z"), entry(2, "y")},
	}
	controller := health.VolumeReport{
		ID: "b", Name: "name", Pool: "pool", FSType: "other", Backing: "image", CapacityBytes: 2, AccessMode: "other", Staged: "/other",
		Published: []string{"/other"}, Usage: &health.Usage{}, Check: &health.CheckReport{},
		Conditions: []health.ConditionReport{entry(1, "x"), entry(3, "z")},
	}
	want := health.VolumeReport{
		ID: "b", Name: "name", Pool: "pool", FSType: "ext4", Backing: "image", CapacityBytes: 2, AccessMode: "SINGLE_NODE_WRITER",
		Staged: "/staged", Published: []string{"/published"}, Usage: usage, Check: check,
		Conditions: []health.ConditionReport{entry(3, "z"), entry(2, "y"), entry(1, "x"), entry(1, "z")},
	}

	require.Equal(t, []health.VolumeReport{{ID: "a"}, want, {ID: "c"}},
		mergeVolumes([]health.VolumeReport{{ID: "c"}, node}, []health.VolumeReport{controller, {ID: "a"}}))
	require.Equal(t, []health.VolumeReport{}, mergeVolumes(), "no list is null in JSON")

	// An empty view is filled from the next one, and takes nothing away.
	node.Conditions, controller.Conditions = nil, nil
	onlyName := health.VolumeReport{ID: "b", Name: "own", Pool: "own", Backing: "own"}
	require.Equal(t, "own", mergeVolume(onlyName, controller).Name)

	filled := controller
	filled.Name, filled.Pool, filled.Backing = "own", "own", "own"
	require.Equal(t, filled, mergeVolume(onlyName, controller))
	require.Equal(t, node, mergeVolume(node, health.VolumeReport{ID: "b"}))
}

// TestCallsAreLoggedAtTheirLevel: failures of the driver are logged at any verbosity, calls that
// change nothing only with a high one.
func TestCallsAreLoggedAtTheirLevel(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		method string
		code   codes.Code
		want   slog.Level
	}{
		{"/csi.v1.Controller/CreateVolume", codes.OK, LevelCalls},
		{"/csi.v1.Node/NodePublishVolume", codes.OK, LevelCalls},
		{"/csi.v1.Controller/ListVolumes", codes.OK, LevelReads},
		{"/csi.v1.Controller/ControllerGetVolume", codes.OK, LevelReads},
		{"/csi.v1.Node/NodeGetVolumeStats", codes.OK, LevelReads},
		{"/csi.v1.Identity/Probe", codes.OK, LevelReads},
		{"/csi.v1.Identity/Probe", codes.Internal, slog.LevelError},
		{"/csi.v1.Controller/CreateVolume", codes.Unknown, slog.LevelError},
		{"/csi.v1.Controller/CreateVolume", codes.DataLoss, slog.LevelError},
		{"/csi.v1.Controller/ListVolumes", codes.NotFound, slog.LevelInfo},
		{"/csi.v1.Controller/CreateVolume", codes.Unavailable, slog.LevelInfo},
	} {
		require.Equal(t, test.want, levelOf(test.method, status.Error(test.code, "")), "%s, %s", test.method, test.code)
	}
}

// TestLogLinesAreBounded: a line is bounded, and names what the request is about.
func TestLogLinesAreBounded(t *testing.T) {
	t.Parallel()

	ids := make([]string, maxSubject+1)
	require.Equal(t, []slog.Attr{slog.String("group", "g"), slog.String("snapshots", strings.Repeat(",", maxSubject-1))},
		subjectOf(&csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "g", SnapshotIds: ids}))
	require.Equal(t, []slog.Attr{slog.String("snapshots", "a,b")}, subjectOf(&csi.DeleteVolumeGroupSnapshotRequest{SnapshotIds: []string{"a", "b"}}))
	require.Equal(t, []slog.Attr{slog.String("volume", strings.Repeat("x", maxSubject-len("…"))+"…")},
		subjectOf(&csi.DeleteVolumeRequest{VolumeId: strings.Repeat("x", maxSubject+1)}))
	require.Empty(t, subjectOf("no message"), "want: what is no message has no subject")

	message := func(bytes int) string {
		return stripped{&csi.DeleteVolumeRequest{VolumeId: strings.Repeat("x", bytes)}}.LogValue().String()
	}
	frame := len(message(1)) - 1
	require.Len(t, message(maxLogged-frame), maxLogged, "want: a message of the limit is logged whole")
	require.True(t, strings.HasSuffix(message(maxLogged-frame+1), fmt.Sprintf("… (%d bytes in all)", maxLogged+1)), "want: a longer one is shortened")
	require.Equal(t, "string", stripped{"no message"}.LogValue().String())
}

// TestInvalidUTF8IsFound in any field, and nothing else is taken for it.
func TestInvalidUTF8IsFound(t *testing.T) {
	t.Parallel()

	text := func(number protowire.Number, value string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, each := range parts {
			all = append(all, each...)
		}

		return all
	}
	number := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 5)
	capabilities := func(fsType string) []byte { return text(3, string(text(2, string(text(1, fsType))))) }

	for name, test := range map[string]struct {
		wire []byte
		want string
	}{
		"nothing":                 {nil, ""},
		"the first":               {text(1, "\xff"), "name"},
		"behind a good one":       {join(text(1, "a"), capabilities("\xff")), "volume_capabilities.mount.fs_type"},
		"all good":                {join(text(1, "a"), capabilities("ext4")), ""},
		"of an unknown field":     {text(1000, "\xff"), ""},
		"behind an unknown field": {join(text(1000, "a"), number, text(1, "\xff")), "name"},
		"number in a text's place": {join(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 255),
			text(1, "a")), ""},
		"cut short": {text(1, "\xff\xff")[:2], ""},
	} {
		require.Equal(t, test.want, notUTF8((&csi.CreateVolumeRequest{}).ProtoReflect().Descriptor(), test.wire), name)
	}
}

// TestOnlyAReadyDriverAdmitsCalls, but Probe while it starts.
func TestOnlyAReadyDriverAdmitsCalls(t *testing.T) {
	t.Parallel()

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	for name, test := range map[string]struct {
		open, shut bool
		probe, any codes.Code
	}{
		"starting":              {false, false, codes.OK, codes.Canceled},
		"ready":                 {true, false, codes.OK, codes.OK},
		"draining":              {true, true, codes.Unavailable, codes.Unavailable},
		"ended before the open": {false, true, codes.Unavailable, codes.Unavailable},
	} {
		g := newGate()
		if test.open {
			g.open()
		}

		if test.shut {
			g.shut()
		}

		require.Equal(t, test.open, g.opened(), name)
		require.Equal(t, test.shut, g.shutting(), name)
		rpccode.Require(t, g.pass(ended, csi.Identity_Probe_FullMethodName), test.probe, name)
		rpccode.Require(t, g.pass(ended, csi.Node_NodeStageVolume_FullMethodName), test.any, name)
	}

	for name, test := range map[string]struct {
		end  func(g *gate)
		want codes.Code
	}{
		"until it is ready": {func(g *gate) { g.open() }, codes.OK},
		"until it drains":   {func(g *gate) { g.shut() }, codes.Unavailable},
	} {
		g, passed := newGate(), make(chan error, 1)

		go func() { passed <- g.pass(t.Context(), csi.Node_NodeStageVolume_FullMethodName) }()

		test.end(g)
		rpccode.Require(t, await.Receive(t, passed, "a call that waits "+name), test.want, name)
	}
}

// TestListEntriesAreReleasedOnce: few entries are not counted; others are given back once, by
// release or by the end of the call.
func TestListEntriesAreReleasedOnce(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		request any
		want    int64
	}{
		"no list":           {&csi.DeleteVolumeRequest{}, 0},
		"no limit":          {&csi.ListVolumesRequest{}, pageEntries},
		"few entries":       {&csi.ListVolumesRequest{MaxEntries: smallEntries}, 0},
		"more entries":      {&csi.ListSnapshotsRequest{MaxEntries: smallEntries + 1}, smallEntries + 1},
		"more than a page":  {&csi.ListVolumesRequest{MaxEntries: pageEntries + 1}, pageEntries},
		"invalid, no limit": {&csi.ListVolumesRequest{MaxEntries: -1}, pageEntries},
	} {
		limiter := newListLimiter()
		ctx, cancel := context.WithCancel(t.Context())
		release, err := limiter.acquire(ctx, test.request)
		require.NoError(t, err, name)

		left := func() int64 {
			taken := int64(0)
			for limiter.entries.TryAcquire(1) {
				taken++
			}

			limiter.entries.Release(taken)

			return taken
		}
		require.Equal(t, maxListEntries-test.want, left(), name)
		release()
		require.EqualValues(t, maxListEntries, left(), "%s: want: all entries are free again", name)
		release()
		cancel()
		require.EqualValues(t, maxListEntries, left(), "%s: want: entries are released once", name)
	}

	limiter := newListLimiter()
	ctx, cancel := context.WithCancel(t.Context())

	for range maxListEntries / pageEntries {
		_, err := limiter.acquire(ctx, &csi.ListVolumesRequest{})
		require.NoError(t, err)
	}

	ended, end := context.WithCancel(t.Context())
	end()

	_, err := limiter.acquire(ended, &csi.ListVolumesRequest{})
	rpccode.Require(t, err, codes.Canceled)

	cancel()

	_, err = limiter.acquire(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err, "want: the end of a call frees its entries")
}

// TestFailedRemovalsAreOneCondition: one condition names the first object, unless the pool or the
// state is the cause, which have a condition of their own.
func TestFailedRemovalsAreOneCondition(t *testing.T) {
	t.Parallel()

	failed := func(object string, cause error) removal.Failure { return removal.Failure{Object: object, Cause: cause} }
	busy := failed("a", &fs.PathError{Op: "unlink", Path: "/very/long", Err: unix.EBUSY})

	for name, test := range map[string]struct {
		failures []removal.Failure
		want     []health.Entry
	}{
		"none":            {nil, nil},
		"one":             {[]removal.Failure{busy}, []health.Entry{health.NewEntry(health.RemovalFailed, "cannot remove a: "+unix.EBUSY.Error())}},
		"several":         {[]removal.Failure{busy, failed("b", unix.EIO)}, []health.Entry{health.NewEntry(health.RemovalFailed, "cannot remove a and others: "+unix.EBUSY.Error())}},
		"of no path":      {[]removal.Failure{failed("b", unix.EIO)}, []health.Entry{health.NewEntry(health.RemovalFailed, "cannot remove b: "+unix.EIO.Error())}},
		"a failed pool":   {[]removal.Failure{failed("b", fmt.Errorf("open: %w", pool.ErrUnavailable))}, nil},
		"a failed state":  {[]removal.Failure{failed("b", state.ErrReadOnly)}, nil},
		"beside the pool": {[]removal.Failure{failed("b", pool.ErrUnavailable), busy}, []health.Entry{health.NewEntry(health.RemovalFailed, "cannot remove a: "+unix.EBUSY.Error())}},
	} {
		require.Equal(t, test.want, failedRemovals(test.failures), name)
	}
}

// TestPoolConditionNamesTheRemedy, and is short.
func TestPoolConditionNamesTheRemedy(t *testing.T) {
	t.Parallel()

	o := &opener{shared: shared{config: &Config{Pools: map[string]string{"a": "/pools/a"}}}}
	o.pools = pool.NewSet(o.config.Pools)

	for want, failure := range map[string]error{
		`pool "a" is not the one in the state: mount its disk (or ` + "`touchstone state forget-pool a`)": fmt.Errorf("read: %w", pool.ErrIdentity),
		`pool "a": input/output error; repair, or mount, the filesystem of /pools/a`:                      &fs.PathError{Path: "/pools/a", Err: unix.EIO},
		`pool "a": something is at ./images`:                                                              errors.New("something is at /pools/a/images"),
	} {
		require.NoError(t, o.pools.Fail("a", failure))
		require.Equal(t, condition(health.PoolUnreachable, want), o.unavailable("a"))
	}

	for err, want := range map[error]bool{
		unix.EMFILE: true, unix.ENFILE: true, unix.ENOMEM: true, unix.EIO: false, unix.ENOSPC: false, errors.ErrUnsupported: false,
	} {
		require.Equal(t, want, exhausted(fmt.Errorf("open: %w", err)), "%v", err)
	}
}

// TestInstanceNameFollowsTheStateDirectory: the same at each start, and of each driver others.
func TestInstanceNameFollowsTheStateDirectory(t *testing.T) {
	t.Parallel()

	name := (&Config{StateDir: "/a"}).instance()
	require.Equal(t, name, (&Config{StateDir: "/a", NodeID: "other"}).instance())
	require.NotEqual(t, name, (&Config{StateDir: "/b"}).instance())
	require.Regexp(t, "^touchstone-[0-9a-f]{12}$", name)
}

// TestManifestDescribesTheDriver, and leaves out what is not so.
func TestManifestDescribesTheDriver(t *testing.T) {
	t.Parallel()

	plain := manifest(&Config{Mode: ModeNode})
	require.Equal(t, "node", plain["mode"])
	require.NotContains(t, plain, "commit")
	require.NotContains(t, plain, "node")
	require.NotContains(t, plain, "strict")

	full := manifest(&Config{Mode: ModeAll, Commit: "c0ffee", SimulateNode: true, Strict: "observe"})
	require.Equal(t, []string{"c0ffee", "simulated: nothing is mounted", "observe"}, []string{full["commit"], full["node"], full["strict"]})
}

// TestNodeTopologyHasItsSegments and its id, unless all nodes have the pools.
func TestNodeTopologyHasItsSegments(t *testing.T) {
	t.Parallel()

	given := map[string]string{"zone": "z"}
	own := "topology.touchstone.dev/node"

	for name, test := range map[string]struct {
		config Config
		want   map[string]string
	}{
		"a node":                 {Config{NodeID: "n"}, map[string]string{own: "n"}},
		"a node of a zone":       {Config{NodeID: "n", Topology: given}, map[string]string{own: "n", "zone": "z"}},
		"shared pools":           {Config{NodeID: "n", Shared: true}, map[string]string{}},
		"shared pools of a zone": {Config{NodeID: "n", Shared: true, Topology: given}, given},
		"disabled":               {Config{NodeID: "n", Topology: given, Disabled: []string{"TOPOLOGY"}}, map[string]string{}},
	} {
		require.NoError(t, test.config.checkCapabilities(), name)
		require.Equal(t, test.want, test.config.segments(), name)
	}

	require.Equal(t, map[string]string{"zone": "z"}, given, "want: the configuration is left as it was")
}

// TestRegistrationEndpointIsAbsolute: it is the driver's socket, or what is configured.
func TestRegistrationEndpointIsAbsolute(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ driver, given, want string }{
		"the driver's":          {"unix:///run/csi.sock", "", "/run/csi.sock"},
		"configured":            {"unix:///run/csi.sock", "unix:///host/csi.sock", "/host/csi.sock"},
		"of a relative driver":  {"unix:csi.sock", "", "/csi.sock"},
		"beside a relative one": {"unix:csi.sock", "/host/csi.sock", "/host/csi.sock"},
	} {
		c := &Config{Mode: ModeNode, Endpoint: test.driver, DriverName: "csi.example.org", Log: slog.New(slog.DiscardHandler)}
		c.Registration.Directory, c.Registration.Endpoint = t.TempDir(), test.given
		require.NoError(t, c.completeRegistration(), name)
		require.True(t, strings.HasSuffix(c.Registration.Endpoint, test.want), "%s: the endpoint %s must end with %s", name, c.Registration.Endpoint, test.want)
		require.True(t, strings.HasPrefix(c.Registration.Endpoint, "/"), "%s: the endpoint must be absolute", name)
		require.Equal(t, "csi.example.org", c.Registration.DriverName, name)
		require.Equal(t, c.Log, c.Registration.Log, name)
	}
}
