package faults_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/served"
)

// TestWithoutTheFlagsThereAreNoFaults: no service, no rules, no entry in the manifest.
func TestWithoutTheFlagsThereAreNoFaults(t *testing.T) {
	d := harness.Start(t)

	_, err := faults.Client{Connection: d.Conn()}.Add(t.Context(), "{act: {unimplemented: true}}")
	harness.RequireCode(t, err, codes.Unimplemented)

	info, err := d.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.NotContains(t, info.GetManifest(), "faults")
}

// TestActiveRulesAreShown in the manifest, the metrics, the health report and the list.
func TestActiveRulesAreShown(t *testing.T) {
	address := served.Address()
	f := start(t, func(c *driver.Config) { c.HTTPEndpoint = address })
	f.add(t, "{name: shown, match: {method: Probe}, act: {patch: .ready = false}}")

	probed, err := f.co.Probe(t.Context(), &csi.ProbeRequest{})
	require.NoError(t, err)
	require.False(t, probed.GetReady().GetValue(), "Probe says ready")

	info, err := f.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	require.NoError(t, err)
	require.Equal(t, "shown", info.GetManifest()["faults"])

	require.Contains(t, get(t, address, "/metrics"), `touchstone_fault_hits_total{rule="shown"} 1`)
	require.Contains(t, get(t, address, "/metrics"), `touchstone_fault_rules_active 1`)
	require.Contains(t, get(t, address, "/health.json"), `"faults":[{"rule":"shown","at":"Probe","act":"patch","hits":1}]`)

	log, err := f.rules.Log(t.Context())
	require.NoError(t, err)
	require.Len(t, log, 1, "want: the log has the one hit")
	require.Equal(t, "Probe", log[0].Method)
}

func get(t *testing.T, address, path string) string {
	t.Helper()

	text, err := served.Get(t.Context(), address, path)
	require.NoError(t, err)

	return text
}

// TestMistakesAreRefused with the code and the line.
func TestMistakesAreRefused(t *testing.T) {
	f := start(t)

	_, err := f.rules.Add(t.Context(), "- act:\n    lose: it\n")
	harness.RequireCode(t, err, codes.InvalidArgument, "line 2")

	f.add(t, "{name: a, act: {unimplemented: true}}")

	_, err = f.rules.Add(t.Context(), "{name: a, act: {unimplemented: true}}")
	harness.RequireCode(t, err, codes.AlreadyExists)

	_, err = f.rules.Clear(t.Context(), "b")
	harness.RequireCode(t, err, codes.NotFound)

	_, err = f.rules.Release(t.Context(), "b")
	harness.RequireCode(t, err, codes.NotFound)
}

// TestNumbersOfRulesAreBounded: a number of a rule that no message can have is refused, and the
// largest ones that are taken cost neither the process nor its memory.
func TestNumbersOfRulesAreBounded(t *testing.T) {
	f := start(t)
	claim := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	patched := func(patch string) string {
		return "{match: {method: ControllerGetVolume}, act: {patch: '" + patch + "'}}"
	}

	for name, document := range map[string]string{
		"quantity":            patched(".volume.capacity_bytes = 1e30"),
		"quantity with cost":  patched(`.volume.capacity_bytes = "1e-999999999"`),
		"more than the field": patched(".volume.capacity_bytes = 9223372036854775808"),
		"elements":            patched(`.status.published_node_ids[1000000] = "x"`),
		"enum":                `{match: {method: NodeGetVolumeHealth}, act: {patch: '.volume_health.health_statuses = [{status: 4294967297, reason: "X"}]'}}`,
		"cut":                 "{match: {method: GetMetadataAllocated}, act: {cut: -1}}",
		"calls":               "{match: {calls: 1-99999999999999999999}, act: {unimplemented: true}}",
		"every":               "{match: {calls: every 0}, act: {unimplemented: true}}",
		"probability":         "{match: {probability: .nan}, act: {unimplemented: true}}",
		"hits":                "{until: {hits: -1}, act: {unimplemented: true}}",
		"delay":               "{act: {delay: {before: 999999999h}}}",
	} {
		_, err := f.rules.Add(t.Context(), document)
		harness.RequireCode(t, err, codes.InvalidArgument)
		require.NotEmpty(t, err.Error(), name)
	}

	// What depends on the response fails the call.
	for patch, want := range map[string]codes.Code{
		".volume.volume_id *= 400000":              codes.OK,
		".volume.volume_id *= 500000":              codes.Internal,
		".volume.volume_id *= 9223372036854775807": codes.Internal,
		".volume.volume_id |= tonumber":            codes.Internal,
	} {
		f.clear(t)
		f.add(t, patched(patch))

		_, err := f.co.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: claim.VolumeID}, grpc.MaxCallRecvMsgSize(64<<20))
		require.Equal(t, want, status.Code(err), "%s: %v", patch, err)
	}
}

// TestAPredicateThatFailsMatchesNoCall, and the list shows why.
func TestAPredicateThatFailsMatchesNoCall(t *testing.T) {
	f := start(t)
	f.add(t, `{match: {method: CreateVolume, where: '.parameters.zone | startswith("a")'}, act: {unimplemented: true}}`)
	harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "v", Parameters: harness.DirectoryBacked()})
	require.Zero(t, f.status(t).Calls, "want: no call matches")
	require.Contains(t, f.status(t).Problem, "startswith")
}

// TestAStartIsDelayed by the file, whose mistakes fail the start.
func TestAStartIsDelayed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, []byte("- {name: slow, act: {start: {delay: 300ms}}}\n"), 0o600))

	began := time.Now()
	d := harness.Start(t, func(c *driver.Config) { c.Faults = file })
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond, "want: the start is delayed")

	config := d.Config
	config.Faults = filepath.Join(t.TempDir(), "absent.yaml")

	_, err := driver.New(t.Context(), config)
	require.ErrorIs(t, err, driver.ErrConfig)

	require.NoError(t, os.WriteFile(config.Faults, []byte("- {act: {}}\n"), 0o600))

	_, err = driver.New(t.Context(), config)
	errtext.Require(t, err, "line 1")
}

// TestDetailsArrive with the status.
func TestDetailsArrive(t *testing.T) {
	f := start(t)
	f.add(t, `{act: {before: {code: UNAVAILABLE, details: [{"@type": type.googleapis.com/google.rpc.RetryInfo, retryDelay: 5s}]}}}`)

	_, err := f.co.Probe(t.Context(), &csi.ProbeRequest{})
	require.Len(t, status.Convert(err).Details(), 1, "want: the error has its detail")
	require.Equal(t, int64(5), status.Convert(err).Details()[0].(*errdetails.RetryInfo).GetRetryDelay().GetSeconds(), "want: the detail has its delay")
}

// TestPagesBreak: an endless list repeats its pages and never ends, and an expired token is ABORTED.
func TestPagesBreak(t *testing.T) {
	f := start(t)
	for _, name := range []string{"a", "b", "c"} {
		harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: name, Parameters: harness.DirectoryBacked()})
	}

	f.add(t, "{match: {method: ListVolumes}, act: {endless: true}}")

	token, seen := "", map[string]int{}

	for range 10 {
		page, err := f.co.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: token})
		require.NoError(t, err)
		require.NotEmpty(t, page.GetNextToken(), "want: a broken page has a next one")

		token = page.GetNextToken()

		for _, entry := range page.GetEntries() {
			seen[entry.GetVolume().GetVolumeId()]++
		}
	}

	require.Len(t, seen, 3, "want: the broken pages repeat the three volumes")
	f.clear(t)
	f.add(t, `{match: {method: ListVolumes}, act: {patch: '.next_token = "expired"'}}`)

	page, err := f.co.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 1})
	require.NoError(t, err)

	_, err = f.co.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: 1, StartingToken: page.GetNextToken()})
	harness.RequireCode(t, err, codes.Aborted)
}

// TestListsArePatched in what many volumes share too, and the others keep it.
func TestListsArePatched(t *testing.T) {
	f := start(t)
	for _, name := range []string{"a", "b"} {
		harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: name, Parameters: harness.DirectoryBacked()})
	}

	list := func(patch string) []*csi.ListVolumesResponse_Entry {
		t.Helper()
		f.clear(t)
		f.add(t, "{match: {method: ListVolumes}, act: {patch: '"+patch+"'}}")

		listed, err := f.co.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		require.NoError(t, err)

		return listed.GetEntries()
	}

	for _, each := range list("del(.entries[].volume.volume_context)") {
		require.Empty(t, each.GetVolume().GetVolumeContext(), "want: the context is taken away")
		require.NotEmpty(t, each.GetVolume().GetAccessibleTopology(), "want: the topology is kept")
	}

	for _, each := range list(`.entries[].volume.volume_context.backing = "other"`) {
		require.Equal(t, "other", each.GetVolume().GetVolumeContext()["backing"], "want: the key is changed")
	}

	for _, each := range list(`.entries[].volume.accessible_topology = [{"segments": {"zone": "a"}}]`) {
		require.Len(t, each.GetVolume().GetAccessibleTopology(), 1, "want: the topology is replaced")
	}

	left := list(".entries |= .[:1]")
	require.Len(t, left, 1, "want: one volume is left")
	require.Equal(t, "directory", left[0].GetVolume().GetVolumeContext()["backing"], "want: it keeps its context")
	require.NotEmpty(t, left[0].GetVolume().GetAccessibleTopology(), "want: it keeps its topology")
}

// TestResponsesArePatched in each way.
func TestResponsesArePatched(t *testing.T) {
	f := start(t)
	claim := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	require.NoError(t, f.Attach(t.Context(), claim))

	volume := func(patch string) *csi.ControllerGetVolumeResponse {
		t.Helper()
		f.clear(t)
		f.add(t, "{match: {method: ControllerGetVolume}, act: {patch: '"+patch+"'}}")

		found, err := f.co.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: claim.VolumeID})
		require.NoError(t, err)

		return found
	}

	require.Equal(t, int64(5<<30), volume(".volume.capacity_bytes = 5*1024*1024*1024").GetVolume().GetCapacityBytes(), "want: the response has the patched size")
	require.Empty(t, volume("del(.volume.volume_id)").GetVolume().GetVolumeId(), "want: the response has no id")
	require.Len(t, volume(".volume.volume_id *= 10").GetVolume().GetVolumeId(), 10*len(claim.VolumeID), "want: the response has the repeated id")
	require.Equal(t, []string{"gone"}, volume(`.status.published_node_ids = ["gone"]`).GetStatus().GetPublishedNodeIds())
	require.Empty(t, volume("del(.status.published_node_ids)").GetStatus().GetPublishedNodeIds(), "a lost attachment")
	require.Equal(t, "v", volume(`.volume.volume_context.k = "v"`).GetVolume().GetVolumeContext()["k"])

	f.clear(t)
	f.add(t, `{match: {method: NodeGetInfo}, act: {patch: '.node_id = ["b", "a"][$hit % 2] | .accessible_topology.segments = {zone: "z"}'}}`)

	for _, want := range []string{"a", "b", "a"} {
		info, err := f.co.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		require.NoError(t, err)
		require.Equal(t, want, info.GetNodeId())
		require.Equal(t, map[string]string{"zone": "z"}, info.GetAccessibleTopology().GetSegments())
	}

	f.clear(t)
	f.add(t, "{match: {method: ControllerGetVolume}, act: {patch: .status.published_node_ids = ($previous // .).status.published_node_ids}}")

	get := func() []string {
		found, err := f.co.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: claim.VolumeID})
		require.NoError(t, err)

		return found.GetStatus().GetPublishedNodeIds()
	}

	require.Equal(t, []string{harness.NodeID}, get(), "the first response has no previous one")
	require.NoError(t, f.Detach(t.Context(), claim))
	require.Equal(t, []string{harness.NodeID}, get(), "the attachment is stale")
	require.Empty(t, get(), "want: the attachment is not stale after the rule")

	f.clear(t)
	f.add(t, `{match: {method: NodeGetVolumeHealth}, act: {patch: '.volume_health.health_statuses = [{status: 99, reason: "X"}]'}}`)

	unhealthy, err := f.co.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)
	require.Equal(t, csi.VolumeHealthErrorType(99), unhealthy.GetVolumeHealth().GetHealthStatuses()[0].GetStatus(), "an unknown enum value")
}

// TestCapabilitiesFlap: every second response lacks one.
func TestCapabilitiesFlap(t *testing.T) {
	f := start(t)
	f.add(t, `{match: {method: NodeGetCapabilities, calls: even}, act: {patch: 'del(.capabilities[] | select(.rpc.type == "EXPAND_VOLUME"))'}}`)

	for _, want := range []bool{true, false, true, false} {
		caps, err := f.co.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
		require.NoError(t, err)
		require.Equal(t, want, csiclient.Capabilities{Node: caps.GetCapabilities()}.HasNodeRPC(csi.NodeServiceCapability_RPC_EXPAND_VOLUME), "want: the capability comes and goes")
	}
}

// TestAStreamIsCut after its first message.
func TestAStreamIsCut(t *testing.T) {
	namespace.NeedRoot(t)

	f := start(t)
	claim := harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{})
	harness.BringUp(t, f.Driver, claim)

	snapshot := harness.TakeSnapshot(t, f.Driver, claim.VolumeID, "s")

	f.add(t, "{match: {method: GetMetadataAllocated}, act: {cut: 1}}")

	stream, err := f.co.GetMetadataAllocated(t.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: snapshot, MaxResults: 1})
	require.NoError(t, err)

	_, err = stream.Recv()
	require.NoError(t, err)

	_, err = stream.Recv()
	harness.RequireCode(t, err, codes.Unavailable, "after 1 messages")
}

// TestADrainReleasesHeldCalls, so that the driver ends in time.
func TestADrainReleasesHeldCalls(t *testing.T) {
	f := start(t)

	_, err := f.rules.Add(t.Context(), "[{match: {method: Probe}, act: {hold: here}}, {match: {method: GetCapacity}, act: {lose: hang}}]")
	require.NoError(t, err)

	ended := make(chan error, 2)
	ctx := context.WithoutCancel(t.Context())

	go func() {
		_, err := f.co.Probe(ctx, &csi.ProbeRequest{})
		ended <- err
	}()

	go func() {
		_, err := f.co.GetCapacity(ctx, &csi.GetCapacityRequest{})
		ended <- err
	}()

	require.Eventually(t, func() bool {
		listed, err := f.rules.List(t.Context())

		return err == nil && listed.Rules[0].Holding == 1 && listed.Rules[1].Hits == 1
	}, 30*time.Second, time.Millisecond, "want: one call is held and the other hit")

	began := time.Now()

	f.Stop()
	require.Less(t, time.Since(began), driver.DefaultDrainTimeout/2, "want: the drain releases held calls")

	for range 2 {
		await.Receive(t, ended, "a call to end with the driver")
	}
}

// TestACallKeepsItsOwnError: an effect that did not happen is not reported as one that did.
func TestACallKeepsItsOwnError(t *testing.T) {
	f := start(t)
	f.add(t, "{act: {after: {code: INTERNAL}}}")

	_, err := f.co.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: unknownSnapshot})
	harness.RequireCode(t, err, codes.NotFound)
	require.Equal(t, 1, f.status(t).Hits, "want: the rule is hit once")
}
