package requests_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// call is an RPC with a request in which nothing required is missing.
type call struct {
	method   string
	request  proto.Message
	required []string
	// unknown is the answer for a volume that does not exist.
	unknown codes.Code
}

func (c call) name() string { return c.method[strings.LastIndex(c.method, "/")+1:] }

// calls are all RPCs that name a volume, and CreateVolume.
func calls(d *harness.Driver) []call {
	capability := csiclient.MountCapability(harness.Writer, "")
	staging, target := filepath.Join(d.Config.KubeletDir, "staging"), filepath.Join(d.Config.KubeletDir, "target")

	return []call{
		{
			"/csi.v1.Controller/CreateVolume",
			&csi.CreateVolumeRequest{Name: "pvc", VolumeCapabilities: []*csi.VolumeCapability{capability}},
			[]string{"name", "volume_capabilities"},
			codes.OK,
		},
		{"/csi.v1.Controller/DeleteVolume", &csi.DeleteVolumeRequest{VolumeId: harness.UnknownVolume}, []string{"volume_id"}, codes.OK},
		{
			"/csi.v1.Controller/ControllerPublishVolume",
			&csi.ControllerPublishVolumeRequest{VolumeId: harness.UnknownVolume, NodeId: harness.NodeID, VolumeCapability: capability},
			[]string{"volume_id", "node_id", "volume_capability"},
			codes.NotFound,
		},
		{
			"/csi.v1.Controller/ControllerUnpublishVolume",
			&csi.ControllerUnpublishVolumeRequest{VolumeId: harness.UnknownVolume, NodeId: harness.NodeID},
			[]string{"volume_id"},
			codes.OK,
		},
		{
			"/csi.v1.Controller/ValidateVolumeCapabilities",
			&csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: harness.UnknownVolume, VolumeCapabilities: []*csi.VolumeCapability{capability},
			},
			[]string{"volume_id", "volume_capabilities"},
			codes.NotFound,
		},
		{"/csi.v1.Controller/ControllerGetVolume", &csi.ControllerGetVolumeRequest{VolumeId: harness.UnknownVolume}, []string{"volume_id"}, codes.NotFound},
		{
			"/csi.v1.Controller/ControllerExpandVolume",
			&csi.ControllerExpandVolumeRequest{VolumeId: harness.UnknownVolume, CapacityRange: harness.RequiredBytes(harness.MiB)},
			[]string{"volume_id", "capacity_range"},
			codes.NotFound,
		},
		{
			"/csi.v1.Node/NodeStageVolume",
			&csi.NodeStageVolumeRequest{VolumeId: harness.UnknownVolume, StagingTargetPath: staging, VolumeCapability: capability},
			[]string{"volume_id", "staging_target_path", "volume_capability"},
			codes.NotFound,
		},
		{
			"/csi.v1.Node/NodeUnstageVolume",
			&csi.NodeUnstageVolumeRequest{VolumeId: harness.UnknownVolume, StagingTargetPath: staging},
			[]string{"volume_id", "staging_target_path"},
			codes.OK,
		},
		{
			"/csi.v1.Node/NodePublishVolume",
			&csi.NodePublishVolumeRequest{
				VolumeId: harness.UnknownVolume, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability,
			},
			[]string{"volume_id", "target_path", "volume_capability"},
			codes.FailedPrecondition,
		},
		{
			"/csi.v1.Node/NodeUnpublishVolume",
			&csi.NodeUnpublishVolumeRequest{VolumeId: harness.UnknownVolume, TargetPath: target},
			[]string{"volume_id", "target_path"},
			codes.OK,
		},
		{
			"/csi.v1.Node/NodeGetVolumeStats",
			&csi.NodeGetVolumeStatsRequest{VolumeId: harness.UnknownVolume, VolumePath: target},
			[]string{"volume_id", "volume_path"},
			codes.NotFound,
		},
		{
			"/csi.v1.Node/NodeExpandVolume",
			&csi.NodeExpandVolumeRequest{VolumeId: harness.UnknownVolume, VolumePath: target},
			[]string{"volume_id", "volume_path"},
			codes.NotFound,
		},
	}
}

// wire is a connection that sends bytes as they are, and reads no answer but
// its code.
type wire struct{ *grpc.ClientConn }

func dial(t *testing.T, d *harness.Driver) wire {
	t.Helper()

	connection, err := grpc.NewClient(d.Config.Endpoint, append(await.Calls(t), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(asIs{})))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })

	return wire{connection}
}

func (w wire) send(t *testing.T, method string, request proto.Message) error {
	t.Helper()

	encoded, err := proto.Marshal(request)
	require.NoError(t, err)

	return w.sendBytes(t, method, encoded)
}

func (w wire) sendBytes(t *testing.T, method string, encoded []byte) error {
	t.Helper()

	var answer []byte

	return w.Invoke(t.Context(), method, encoded, &answer)
}

// asIs is a codec for what no proper client can say.
type asIs struct{}

func (asIs) Name() string                       { return "proto" }
func (asIs) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (asIs) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }

func field(t *testing.T, message proto.Message, name string) protoreflect.FieldDescriptor {
	t.Helper()

	found := message.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name))
	require.NotNil(t, found, name)

	return found
}

func TestMissingFields(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	connection := dial(t, d)
	before := harness.Everything(t, d)

	for _, each := range calls(d) {
		for _, name := range each.required {
			t.Run(each.name()+" "+name, func(t *testing.T) {
				request := proto.Clone(each.request)
				request.ProtoReflect().Clear(field(t, request, name))

				// Of what is repeated the message may name one.
				harness.RequireCode(t, connection.send(t, each.method, request), codes.InvalidArgument, strings.TrimSuffix(name, "ies"))
			})
		}
	}

	require.Equal(t, before, harness.Everything(t, d))
}

func TestIncompleteCapabilities(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	connection := dial(t, d)

	bad := map[string]*csi.VolumeCapability{
		"empty":                  {},
		"no access type":         {AccessMode: &csi.VolumeCapability_AccessMode{Mode: harness.Writer}},
		"no access mode":         {AccessType: csiclient.BlockCapability(harness.Writer).GetAccessType()},
		"UNKNOWN access mode":    csiclient.MountCapability(csi.VolumeCapability_AccessMode_UNKNOWN, ""),
		"unknown access mode":    csiclient.MountCapability(99, ""),
		"negative access mode":   csiclient.BlockCapability(-1),
		"unknown filesystem":     csiclient.MountCapability(harness.Writer, "../ext4"),
		"flag of another device": csiclient.MountCapability(harness.Writer, "", "loop=/dev/loop0"),
		"long filesystem":        csiclient.MountCapability(harness.Writer, strings.Repeat("f", 120)),
		"remount":                csiclient.MountCapability(harness.Writer, "", "noatime,remount"),
	}

	volume := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	before := harness.Everything(t, d)

	for name, capability := range bad {
		for _, each := range calls(d) {
			request := proto.Clone(each.request)

			switch r := request.(type) {
			case *csi.CreateVolumeRequest:
				r.VolumeCapabilities = []*csi.VolumeCapability{capability}
			case *csi.ControllerPublishVolumeRequest:
				r.VolumeId, r.VolumeCapability = volume.VolumeID, capability
			case *csi.NodeStageVolumeRequest:
				r.VolumeId, r.VolumeCapability = volume.VolumeID, capability
			case *csi.NodePublishVolumeRequest:
				r.VolumeId, r.VolumeCapability = volume.VolumeID, capability
			default:
				continue
			}

			t.Run(each.name()+" "+name, func(t *testing.T) {
				harness.RequireCode(t, connection.send(t, each.method, request), codes.InvalidArgument)
			})
		}

		t.Run("ValidateVolumeCapabilities "+name, func(t *testing.T) {
			answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: volume.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{capability},
			})

			if name == "empty" || strings.Contains(name, "access") {
				harness.RequireCode(t, err, codes.InvalidArgument, "volume_capabilities")
				return
			}

			require.NoError(t, err)
			require.Nil(t, answer.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", answer.GetMessage())
			require.NotEmpty(t, answer.GetMessage())
			require.LessOrEqual(t, len(answer.GetMessage()), 128)
		})
	}

	require.Equal(t, before, harness.Everything(t, d))
}

func TestHostileIDs(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	connection := dial(t, d)
	kept := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()})
	harness.WriteFile(t, filepath.Join(d.Pool(), "directories", kept.VolumeID, "data"), "kept")

	require.NoError(t, os.MkdirAll(filepath.Join(d.Root, "x"), 0o700))
	harness.WriteFile(t, filepath.Join(d.Root, "x.img"), "outside")

	before := harness.Tree(t, d.Root)

	for name, test := range map[string]struct {
		id      string
		hostile bool
	}{
		"parent":                 {"../x", true},
		"up and up":              {"../../../../etc", true},
		"the pool's directories": {"..", true},
		"the directory":          {".", true},
		"absolute":               {"/etc/passwd", true},
		"beneath a volume":       {kept.VolumeID + "/data", true},
		"through a volume":       {kept.VolumeID + "/../" + kept.VolumeID, true},
		"backslash":              {`..\x`, true},
		"NUL":                    {kept.VolumeID + "\x00", true},
		"newline":                {kept.VolumeID + "\n", true},
		"empty":                  {"", true},
		"a MiB":                  {strings.Repeat("a", harness.MiB), true},
		"129 bytes":              {strings.Repeat("a", 129), true},
		"a volume's prefix":      {kept.VolumeID[:35], false},
		"capitals":               {strings.ToUpper(kept.VolumeID), false},
		"braces":                 {"{" + kept.VolumeID + "}", false},
		"urn":                    {"urn:uuid:" + kept.VolumeID, false},
		"another version":        {"6ba7b810-9dad-11d1-80b4-00c04fd430c8", false},
		"a space":                {" ", false},
		"an option":              {"--help", false},
		"the image":              {kept.VolumeID + ".img", false},
		"no volume":              {harness.UnknownVolume, false},
	} {
		for _, each := range calls(d)[1:] {
			t.Run(each.name()+" "+name, func(t *testing.T) {
				request := proto.Clone(each.request)
				request.ProtoReflect().Set(field(t, request, "volume_id"), protoreflect.ValueOfString(test.id))
				err := connection.send(t, each.method, request)

				if test.hostile {
					harness.RequireCode(t, err, codes.InvalidArgument)
				} else {
					require.Contains(t, []codes.Code{each.unknown, codes.NotFound}, status.Code(err), "%v", err)
				}

				require.Less(t, len(fmt.Sprint(err)), 1000)
			})
		}
	}

	for _, each := range calls(d)[1:] {
		t.Run(each.name()+" not UTF-8", func(t *testing.T) {
			encoded, err := proto.Marshal(each.request)
			require.NoError(t, err)

			broken := bytes.Replace(encoded, []byte(harness.UnknownVolume), []byte("\xff\xfe\x80"+harness.UnknownVolume[3:]), 1)
			harness.RequireCode(t, connection.sendBytes(t, each.method, broken), codes.InvalidArgument, "volume_id", "UTF-8")
			harness.RequireCode(t, connection.sendBytes(t, each.method, encoded[:len(encoded)-1]), codes.InvalidArgument)
		})
	}

	require.Equal(t, before, harness.Tree(t, d.Root))
	require.Equal(t, []string{kept.VolumeID}, harness.ListAll(t, d))
}

func TestCallsOutOfOrder(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, kind := range []struct {
		name       string
		parameters map[string]string
		capability *csi.VolumeCapability
	}{
		{"ext4", nil, csiclient.MountCapability(harness.Writer, "ext4")},
		{"block", nil, csiclient.BlockCapability(harness.Writer)},
		{"directory", harness.DirectoryBacked(), csiclient.MountCapability(harness.Writer, "")},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()

			ctx := t.Context()
			d := harness.Start(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				Parameters: kind.parameters, VolumeCapabilities: []*csi.VolumeCapability{kind.capability},
			})
			remove := func() error {
				_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})

				return err
			}

			harness.RequireCode(t, d.Publish(ctx, claim), codes.FailedPrecondition, "NodeStageVolume")
			require.NoFileExists(t, claim.TargetPath)
			require.NoDirExists(t, claim.TargetPath)
			require.NoError(t, d.Unpublish(ctx, claim))
			require.NoError(t, d.Unstage(ctx, claim))
			require.NoError(t, d.Detach(ctx, claim))

			require.NoError(t, d.Attach(ctx, claim))
			harness.RequireCode(t, remove(), codes.FailedPrecondition, d.Config.NodeID)
			harness.RequireCode(t, d.Publish(ctx, claim), codes.FailedPrecondition, "NodeStageVolume")

			require.NoError(t, d.Stage(ctx, claim))

			elsewhere := *claim
			elsewhere.StagingPath += "-elsewhere"
			harness.RequireCode(t, d.Publish(ctx, &elsewhere), codes.FailedPrecondition, claim.StagingPath)
			harness.RequireCode(t, d.Stage(ctx, &elsewhere), codes.FailedPrecondition, claim.StagingPath)
			require.NoError(t, d.Unstage(ctx, &elsewhere))

			require.NoError(t, d.Publish(ctx, claim))

			path := claim.TargetPath
			if kind.capability.GetMount() != nil {
				path = filepath.Join(path, "data")
			}

			file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
			require.NoError(t, err)
			_, err = file.WriteString("precious")
			require.NoError(t, errors.Join(err, file.Sync(), file.Close()))

			harness.RequireCode(t, d.Unstage(ctx, claim), codes.FailedPrecondition, claim.TargetPath)

			harness.RequireCode(t, d.Detach(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
			harness.RequireCode(t, remove(), codes.FailedPrecondition)
			d.Restart(t)
			harness.RequireCode(t, d.Detach(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
			harness.RequireCode(t, remove(), codes.FailedPrecondition)

			got := make([]byte, len("precious"))
			file, err = os.Open(path)
			require.NoError(t, err)
			_, err = file.ReadAt(got, 0)
			require.NoError(t, errors.Join(err, file.Close()))
			require.Equal(t, "precious", string(got))

			require.NoError(t, d.Unpublish(ctx, claim))
			harness.RequireCode(t, d.Detach(ctx, claim), codes.FailedPrecondition, claim.StagingPath)
			require.NoError(t, d.Unstage(ctx, claim))
			require.NoError(t, d.Detach(ctx, claim))
			require.NoError(t, remove())
			require.NoError(t, remove())
			require.Empty(t, harness.ListAll(t, d))
		})
	}
}

// TestUnpublishWhileInUse shows that a volume to which a process still writes
// stays.
func TestUnpublishWhileInUse(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)

	file, err := os.Create(filepath.Join(claim.TargetPath, "open"))
	require.NoError(t, err)
	harness.RequireCode(t, d.Unpublish(t.Context(), claim), codes.FailedPrecondition, "open")

	_, err = file.WriteString("still there")
	require.NoError(t, errors.Join(err, file.Sync(), file.Close()))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))
	harness.RequireFile(t, filepath.Join(claim.TargetPath, "open"), "still there")
}
