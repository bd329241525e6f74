package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	controller = "/csi.v1.Controller/"
	someNode   = "/csi.v1.Node/"
)

func block() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func creation(change func(r *csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{block()}}
	change(request)

	return request
}

func created(id string, contexts ...string) *csi.CreateVolumeResponse {
	volume := &csi.Volume{VolumeId: id}
	for _, each := range contexts {
		volume.VolumeContext = map[string]string{"key": each}
	}

	return &csi.CreateVolumeResponse{Volume: volume}
}

// TestConditionsOfARequest has a request for each condition that a request alone decides.
func TestConditionsOfARequest(t *testing.T) {
	t.Parallel()

	for want, request := range map[string]*csi.CreateVolumeRequest{
		"plain":                                creation(func(*csi.CreateVolumeRequest) {}),
		"name missing":                         creation(func(r *csi.CreateVolumeRequest) { r.Name = "" }),
		"name and volume_capabilities missing": {},
		"volume_capabilities.access_type missing": creation(func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities[0].AccessType = nil }),
		"volume_capabilities.access_mode.mode missing": creation(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode = &csi.VolumeCapability_AccessMode{}
			r.VolumeCapabilities = append(r.VolumeCapabilities, r.GetVolumeCapabilities()[0])
		}),
		"volume_content_source.type missing": creation(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = &csi.VolumeContentSource{} }),
		"capacity_range empty":               creation(func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{} }),
		"accessibility_requirements empty": creation(func(r *csi.CreateVolumeRequest) {
			r.AccessibilityRequirements = &csi.TopologyRequirement{}
		}),
		"capacity_range.limit_bytes negative": creation(func(r *csi.CreateVolumeRequest) { r.CapacityRange = &csi.CapacityRange{LimitBytes: -1} }),
		"name over its limit":                 creation(func(r *csi.CreateVolumeRequest) { r.Name = strings.Repeat("n", 129) }),
		"parameters over its limit": creation(func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"key": strings.Repeat("v", 4094)}
		}),
		"volume_content_source.snapshot.snapshot_id unknown": creation(func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "s"},
			}}
		}),
	} {
		found := NewWorld().conditions(controller+"CreateVolume", request)
		require.Equal(t, want, found[0])
		require.Equal(t, want == Plain, found[0] == Plain, "want: a request without a condition is plain")
		require.NotContains(t, found[1:], Plain)
	}

	largest := creation(func(r *csi.CreateVolumeRequest) {
		r.Name, r.Parameters = strings.Repeat("n", 128), map[string]string{"key": strings.Repeat("v", 4093)}
	})
	require.Equal(t, []string{Plain, "parameters given", "SINGLE_NODE_WRITER given"}, NewWorld().conditions(controller+"CreateVolume", largest))
}

// TestConditionsOfAWorld has the conditions that earlier calls decide.
func TestConditionsOfAWorld(t *testing.T) {
	t.Parallel()

	w := NewWorld()
	conditions := func(method string, request proto.Message) []string {
		return slices.DeleteFunc(w.conditions(method, request), func(c string) bool { return strings.HasSuffix(c, " given") })
	}
	first := creation(func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{"key": "1"} })

	require.Contains(t, conditions(controller+"CreateVolume", first), Plain)
	w.learn("CreateVolume", first, created("v"))
	require.Contains(t, conditions(controller+"CreateVolume", first), "repeated")
	require.Contains(t, conditions(controller+"CreateVolume", creation(func(*csi.CreateVolumeRequest) {})), "other parameters")
	require.Contains(t, conditions(controller+"CreateVolume", creation(func(r *csi.CreateVolumeRequest) {
		r.CapacityRange = &csi.CapacityRange{RequiredBytes: 1}
	})), "other capacity_range and parameters")

	publication := func(node string) *csi.ControllerPublishVolumeRequest {
		return &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: node, VolumeCapability: block()}
	}
	require.Equal(t, []string{Plain, "not published to the node"}, conditions(controller+"ControllerPublishVolume", publication("a")))
	w.learn("ControllerPublishVolume", publication("a"), &csi.ControllerPublishVolumeResponse{})
	require.Equal(t, []string{"repeated", "published to a node"}, conditions(controller+"ControllerPublishVolume", publication("a")))
	require.Equal(t, []string{Plain, "published to a node", "not published to the node", "published to another node"},
		conditions(controller+"ControllerPublishVolume", publication("b")))

	deletion := &csi.DeleteVolumeRequest{VolumeId: "v"}
	require.Equal(t, []string{Plain, "published to a node"}, conditions(controller+"DeleteVolume", deletion))
	w.learn("ControllerPublishVolume", publication("b"), &csi.ControllerPublishVolumeResponse{})
	w.learn("ControllerUnpublishVolume", &csi.ControllerUnpublishVolumeRequest{VolumeId: "v"}, &csi.ControllerUnpublishVolumeResponse{})
	require.Equal(t, []string{Plain}, conditions(controller+"DeleteVolume", deletion), "no node is each node")

	w.learn("NodeStageVolume", &csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}, &csi.NodeStageVolumeResponse{})
	w.learn("NodePublishVolume", &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/t"}, &csi.NodePublishVolumeResponse{})
	require.Equal(t, []string{Plain, "staged", "published at a path"},
		conditions(someNode+"NodeExpandVolume", &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/t"}))
	require.Equal(t, []string{"volume_capability missing", "staged", "published at a path", "published at another path"},
		conditions(someNode+"NodePublishVolume", &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: "/u"}))
	w.learn("NodeUnpublishVolume", &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "/t"}, &csi.NodeUnpublishVolumeResponse{})
	w.learn("NodeUnstageVolume", &csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "/s"}, &csi.NodeUnstageVolumeResponse{})

	require.Equal(t, []string{Plain, "not staged", "published at no path"},
		conditions(someNode+"NodeExpandVolume", &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/t"}))

	end := w.begin(controller+"DeleteVolume", deletion)
	require.Equal(t, []string{Plain, "while another runs"}, conditions(controller+"DeleteVolume", deletion))
	end()
	require.Equal(t, []string{Plain}, conditions(controller+"DeleteVolume", deletion))

	w.learn("DeleteVolume", deletion, &csi.DeleteVolumeResponse{})
	require.Equal(t, []string{"volume_id deleted", "repeated"}, conditions(controller+"DeleteVolume", deletion))
	require.Equal(t, []string{Plain}, conditions(controller+"CreateVolume", first), "its name is free")
	require.Equal(t, []string{"volume_id unknown"}, conditions(controller+"DeleteVolume", &csi.DeleteVolumeRequest{VolumeId: "w"}))
}

// TestConditionsOfADriver has what it advertises and which of its services it has.
func TestConditionsOfADriver(t *testing.T) {
	t.Parallel()

	w := NewWorld()
	request := &csi.NodeGetInfoRequest{}
	require.Equal(t, []string{Plain}, w.conditions(someNode+"NodeGetInfo", request))

	response := &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_EXPAND_VOLUME},
	}}}}
	w.learn("NodeGetCapabilities", &csi.NodeGetCapabilitiesRequest{}, response)
	require.Contains(t, w.conditions(someNode+"NodeGetInfo", request), "with EXPAND_VOLUME")
	require.Contains(t, w.conditions(someNode+"NodeGetInfo", request), "without STAGE_UNSTAGE_VOLUME")
	require.NotContains(t, w.conditions(controller+"GetCapacity", &csi.GetCapacityRequest{}), "with EXPAND_VOLUME", "of another service")
	require.Contains(t, advertisements("NodeGetCapabilities", response), "advertises EXPAND_VOLUME")
	require.Contains(t, advertisements("NodeGetCapabilities", response), "does not advertise STAGE_UNSTAGE_VOLUME")

	plugin := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_VolumeExpansion_{
		VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE},
	}}}}
	w.learn("GetPluginCapabilities", &csi.GetPluginCapabilitiesRequest{}, plugin)
	require.Contains(t, w.conditions(controller+"GetCapacity", &csi.GetCapacityRequest{}), "with ONLINE")
	require.Contains(t, w.conditions(controller+"GetCapacity", &csi.GetCapacityRequest{}), "without CONTROLLER_SERVICE")

	w.Started("node")
	require.Equal(t, []string{Plain, "node plugin", "while it starts"}, w.conditions(someNode+"NodeGetInfo", request), "what it advertises now is not known")
	w.learn("Probe", &csi.ProbeRequest{}, &csi.ProbeResponse{Ready: wrapperspb.Bool(false)})
	require.Contains(t, w.conditions(someNode+"NodeGetInfo", request), "while it starts")
	w.learn("Probe", &csi.ProbeRequest{}, &csi.ProbeResponse{Ready: wrapperspb.Bool(true)})
	require.Equal(t, []string{Plain, "node plugin"}, w.conditions(someNode+"NodeGetInfo", request))
}

// TestProperties has a response for each property, and one without it.
func TestProperties(t *testing.T) {
	t.Parallel()

	sized := func(size int64) *csi.CreateVolumeResponse {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", CapacityBytes: size}}
	}
	in := func(segments ...string) *csi.Topology {
		topology := &csi.Topology{Segments: map[string]string{}}
		for i := 0; i < len(segments); i += 2 {
			topology.Segments[segments[i]] = segments[i+1]
		}

		return topology
	}
	at := func(topologies ...*csi.Topology) *csi.CreateVolumeResponse {
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v", AccessibleTopology: topologies}}
	}
	ranged := &csi.CreateVolumeRequest{Name: "a", CapacityRange: &csi.CapacityRange{RequiredBytes: 10, LimitBytes: 20}}
	placed := &csi.CreateVolumeRequest{AccessibilityRequirements: &csi.TopologyRequirement{
		Requisite: []*csi.Topology{in("Zone", "a"), in("zone", "b")}, Preferred: []*csi.Topology{in("zone", "b")},
	}}
	page := &csi.ListVolumesResponse{Entries: []*csi.ListVolumesResponse_Entry{{}, {}}}
	named := func(name string) proto.Message { return &csi.GetPluginInfoResponse{Name: name} }
	unhealthy := func(reasons ...string) proto.Message {
		health := &csi.VolumeHealth{VolumeId: "v"}
		for _, each := range reasons {
			health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Reason: each})
		}

		return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health}
	}
	none := &csi.GetPluginInfoRequest{}

	for _, test := range []struct {
		property                string
		request, with, violated proto.Message
	}{
		{"capacity_bytes at least required_bytes", ranged, sized(10), sized(9)},
		{"capacity_bytes at most limit_bytes", ranged, sized(20), sized(21)},
		{"entries at most max_entries", &csi.ListVolumesRequest{MaxEntries: 2}, page, nil},
		{"entries at most max_entries", &csi.ListVolumesRequest{MaxEntries: 1}, nil, page},
		{"accessible_topology within requisite", placed, at(in("zone", "a", "node", "n")), at(in("zone", "c"))},
		{"accessible_topology within preferred", placed, at(in("zone", "b")), at(in("zone", "a"))},
		{"name is a domain name", none, named("a.b-c.dev"), named("a..b")},
		{"name is a domain name", none, named(strings.Repeat("n", 63)), named(strings.Repeat("n", 64))},
		{"segments have proper keys and values", none, at(in("p.dev/a", "x", "b", "y")), at(in("a", "x", "A", "y"))},
		{"segments have proper keys and values", none, at(in("p.dev/a", "x")), at(in("p.dev/a", "x", "q.dev/b", "y"))},
		{"segments have proper keys and values", none, at(in("p.dev/a", "x")), at(in("P.dev/a", "x"))},
		{"segments have proper keys and values", none, at(in("a", "x")), at(in("a", ""))},
		{"segments have proper keys and values", none, at(in("a", "x")), at(in("a", strings.Repeat("x", 64)))},
		{"no status and reason twice", none, unhealthy("A", "B"), unhealthy("A", "A")},
		{"has volume.capacity_bytes", none, sized(1), sized(0)},
		{"lacks volume.accessible_topology", none, sized(1), at(in("a", "b"))},
		{"has ready false", none, &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}},
		{"has ready.value", none, &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, &csi.ProbeResponse{}},
		{"lacks maximum_volume_size", none, &csi.GetCapacityResponse{}, &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(1)}},
	} {
		if test.with != nil {
			require.Contains(t, properties(test.request, test.with), test.property)
		}

		if test.violated != nil {
			require.NotContains(t, properties(test.request, test.violated), test.property)
		}
	}
}

// TestRememberedResponses has the rules that compare a response with earlier ones.
func TestRememberedResponses(t *testing.T) {
	t.Parallel()

	w := NewWorld()
	first := creation(func(*csi.CreateVolumeRequest) {})

	kept, _ := w.remembered("CreateVolume", first, created("v", "1"))
	require.Equal(t, []string{"a new id"}, kept)
	w.learn("CreateVolume", first, created("v", "1"))

	kept, broken := w.remembered("CreateVolume", first, created("v", "1"))
	require.Equal(t, []string{"as before", "the same volume_context"}, kept)
	require.Empty(t, broken, "want: the same volume breaks no rule")

	kept, broken = w.remembered("CreateVolume", first, created("v", "2"))
	require.Empty(t, kept, "want: another volume for the same name keeps no rule")
	require.Equal(t, []string{"the same volume_context"}, broken)

	entry := func(id string, nodes ...string) *csi.ListVolumesResponse_Entry {
		return &csi.ListVolumesResponse_Entry{
			Volume: created(id).GetVolume(), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes},
		}
	}
	listed := func(entries ...*csi.ListVolumesResponse_Entry) []string {
		kept, _ := w.remembered("ListVolumes", &csi.ListVolumesRequest{}, &csi.ListVolumesResponse{Entries: entries})

		return kept
	}

	require.Contains(t, listed(entry("v")), "every volume")
	require.NotContains(t, listed(), "every volume")
	require.NotContains(t, listed(entry("v"), entry("w")), "every volume")
	require.NotContains(t, listed(entry("v")), "published_node_ids as published", "it is not published")

	kept, _ = w.remembered("ListVolumes", &csi.ListVolumesRequest{MaxEntries: 1}, &csi.ListVolumesResponse{NextToken: "v"})
	require.Contains(t, kept, "next_token where volumes are left")
	kept, _ = w.remembered("ListVolumes", &csi.ListVolumesRequest{MaxEntries: 1}, &csi.ListVolumesResponse{})
	require.Empty(t, kept, "want: a whole list keeps no rule about a next page")

	w.learn("ControllerPublishVolume", &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n"}, &csi.ControllerPublishVolumeResponse{})
	require.Contains(t, listed(entry("v", "n")), "published_node_ids as published")
	require.NotContains(t, listed(entry("v")), "published_node_ids as published")
	require.NotContains(t, listed(entry("v", "n", "m")), "published_node_ids as published")
	require.NotContains(t, listed(entry("v", "m")), "published_node_ids as published")
}
