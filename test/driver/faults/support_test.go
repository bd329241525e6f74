package faults_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// unknownSnapshot is a valid id of no snapshot.
const unknownSnapshot = "01890a5d-ac96-774b-bcce-b302099a8058"

// faulty is a driver with fault rules, a client whose responses are not checked, since rules break
// them on purpose, and the client of the rules.
type faulty struct {
	*harness.Driver

	co    *csiclient.Client
	rules faults.Client
}

func enabled(c *driver.Config) { c.EnableFaults = true }

func start(t *testing.T, options ...harness.Option) *faulty {
	t.Helper()

	return connect(t, harness.Start(t, append([]harness.Option{enabled, harness.WithMountGroup}, options...)...))
}

func connect(t *testing.T, d *harness.Driver) *faulty {
	t.Helper()

	co, err := csiclient.Connect(d.Config.Endpoint, awaitcall.Options(t)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, co.Close()) })

	return &faulty{Driver: d, co: co, rules: faults.Client{Connection: d.Conn()}}
}

// add adds rules and clears all when the test ends.
func (f *faulty) add(t *testing.T, document string) {
	t.Helper()

	_, err := f.rules.Add(t.Context(), document)
	require.NoError(t, err, "%s", document)
	t.Cleanup(func() { f.clear(t) })
}

func (f *faulty) clear(t *testing.T) {
	t.Helper()

	_, err := f.rules.Clear(context.WithoutCancel(t.Context()), "")
	require.NoError(t, err)
}

// status returns the status of the only rule.
func (f *faulty) status(t *testing.T) faults.Status {
	t.Helper()

	listed, err := f.rules.List(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	require.Len(t, listed.Rules, 1, "want: the rule is active")

	return listed.Rules[0]
}

// until waits until the only rule has a status.
func (f *faulty) until(t *testing.T, what string, is func(faults.Status) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return is(f.status(t)) }, await.Limit, time.Millisecond, what)
}

// method is one RPC of CSI.
type method struct {
	name string
	full string
	of   protoreflect.MethodDescriptor
}

func allMethods() []method {
	var found []method

	services := (&csi.ProbeRequest{}).ProtoReflect().Descriptor().ParentFile().Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			of := services.Get(i).Methods().Get(j)
			found = append(found, method{string(of.Name()), "/" + string(of.Parent().FullName()) + "/" + string(of.Name()), of})
		}
	}

	return found
}

func newMessage(of protoreflect.MessageDescriptor) proto.Message {
	found, err := protoregistry.GlobalTypes.FindMessageByName(of.FullName())
	if err != nil {
		panic(err)
	}

	return found.New().Interface()
}

// call makes one call. A stream's last message is its answer.
func (f *faulty) call(ctx context.Context, of method, request proto.Message) (proto.Message, error) {
	answer := newMessage(of.of.Output())

	if !of.of.IsStreamingServer() {
		return answer, f.co.Conn().Invoke(ctx, of.full, request, answer)
	}

	stream, err := f.co.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, of.full)
	if err != nil {
		return nil, err
	}

	if err := stream.SendMsg(request); err != nil {
		return nil, err
	}

	if err := stream.CloseSend(); err != nil {
		return nil, err
	}

	for {
		message := newMessage(of.of.Output())
		if err := stream.RecvMsg(message); err == io.EOF { //nolint:errorlint // gRPC returns it as it is
			return answer, nil
		} else if err != nil {
			return answer, err
		}

		answer = message
	}
}

// world has the objects that valid requests of every RPC need. Each of its requests succeeds, and
// again when it is repeated.
type world struct {
	claim, other *csiclient.Publication
	snapshot     string
	second       string
	group        *csi.VolumeGroupSnapshot
}

func newWorld(t *testing.T, f *faulty) *world {
	t.Helper()

	w := &world{
		claim: harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "claim"}),
		other: harness.NewVolume(t, f.Driver, &csi.CreateVolumeRequest{Name: "other", Parameters: harness.DirectoryBacked()}),
	}
	harness.BringUp(t, f.Driver, w.claim)

	w.snapshot = harness.TakeSnapshot(t, f.Driver, w.claim.VolumeID, "snapshot")
	w.second = harness.TakeSnapshot(t, f.Driver, w.claim.VolumeID, "second")

	group, err := f.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{w.claim.VolumeID, w.other.VolumeID},
	})
	require.NoError(t, err)

	w.group = group.GetGroupSnapshot()

	return w
}

// request is a valid request of the RPC.
func (w *world) request(name string) proto.Message {
	c := w.claim
	size := harness.RequiredBytes(64 * harness.MiB)
	secrets := map[string]string{"token": "secret"}

	switch name {
	case "CreateVolume":
		return &csi.CreateVolumeRequest{
			Name: "claim", VolumeCapabilities: []*csi.VolumeCapability{c.Capability}, CapacityRange: size, Secrets: secrets,
		}
	case "DeleteVolume":
		return &csi.DeleteVolumeRequest{VolumeId: harness.UnknownVolume}
	case "ControllerPublishVolume":
		return &csi.ControllerPublishVolumeRequest{VolumeId: c.VolumeID, NodeId: c.NodeID, VolumeCapability: c.Capability}
	case "ControllerUnpublishVolume":
		return &csi.ControllerUnpublishVolumeRequest{VolumeId: harness.UnknownVolume, NodeId: c.NodeID}
	case "ValidateVolumeCapabilities":
		return &csi.ValidateVolumeCapabilitiesRequest{VolumeId: c.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{c.Capability}}
	case "ControllerGetVolumeHealth":
		return &csi.ControllerGetVolumeHealthRequest{VolumeId: c.VolumeID}
	case "CreateSnapshot":
		return &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: c.VolumeID}
	case "DeleteSnapshot":
		return &csi.DeleteSnapshotRequest{SnapshotId: unknownSnapshot}
	case "GetSnapshot":
		return &csi.GetSnapshotRequest{SnapshotId: w.snapshot}
	case "ControllerExpandVolume":
		return &csi.ControllerExpandVolumeRequest{VolumeId: c.VolumeID, CapacityRange: size}
	case "ControllerGetVolume":
		return &csi.ControllerGetVolumeRequest{VolumeId: c.VolumeID}
	case "ControllerModifyVolume":
		return &csi.ControllerModifyVolumeRequest{VolumeId: c.VolumeID, MutableParameters: map[string]string{"checkPeriod": "48h"}}
	case "CreateVolumeGroupSnapshot":
		return &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{c.VolumeID, w.other.VolumeID}}
	case "DeleteVolumeGroupSnapshot":
		return &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: unknownSnapshot}
	case "GetVolumeGroupSnapshot":
		ids := []string{}
		for _, each := range w.group.GetSnapshots() {
			ids = append(ids, each.GetSnapshotId())
		}

		return &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: w.group.GetGroupSnapshotId(), SnapshotIds: ids}
	case "GetMetadataAllocated":
		return &csi.GetMetadataAllocatedRequest{SnapshotId: w.snapshot}
	case "GetMetadataDelta":
		return &csi.GetMetadataDeltaRequest{BaseSnapshotId: w.snapshot, TargetSnapshotId: w.second}
	default:
		return w.nodeRequest(name)
	}
}

func (w *world) nodeRequest(name string) proto.Message {
	c := w.claim

	switch name {
	case "NodeStageVolume":
		return &csi.NodeStageVolumeRequest{
			VolumeId: c.VolumeID, StagingTargetPath: c.StagingPath, VolumeCapability: c.Capability, VolumeContext: c.VolumeContext,
			PublishContext: c.PublishContext,
		}
	case "NodeUnstageVolume":
		return &csi.NodeUnstageVolumeRequest{VolumeId: harness.UnknownVolume, StagingTargetPath: c.StagingPath + "-unknown"}
	case "NodePublishVolume":
		return &csi.NodePublishVolumeRequest{
			VolumeId: c.VolumeID, StagingTargetPath: c.StagingPath, TargetPath: c.TargetPath, VolumeCapability: c.Capability,
			VolumeContext: c.VolumeContext, PublishContext: c.PublishContext,
		}
	case "NodeUnpublishVolume":
		return &csi.NodeUnpublishVolumeRequest{VolumeId: harness.UnknownVolume, TargetPath: c.StagingPath + "-unknown"}
	case "NodeGetVolumeStats":
		return &csi.NodeGetVolumeStatsRequest{VolumeId: c.VolumeID, VolumePath: c.TargetPath}
	case "NodeGetVolumeHealth":
		return &csi.NodeGetVolumeHealthRequest{VolumeId: c.VolumeID}
	case "NodeExpandVolume":
		return &csi.NodeExpandVolumeRequest{VolumeId: c.VolumeID, VolumePath: c.TargetPath, StagingTargetPath: c.StagingPath}
	default:
		for _, each := range allMethods() {
			if each.name == name {
				return newMessage(each.of.Input())
			}
		}

		panic(name)
	}
}
