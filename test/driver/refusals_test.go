package driver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

// nobody is an id that could be a volume's.
const nobody = "01890a5d-ac96-774b-bcce-b302099a8057"

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
	capability := csiclient.MountCapability(writer, "")
	staging, target := filepath.Join(d.Config.KubeletDir, "staging"), filepath.Join(d.Config.KubeletDir, "target")

	return []call{
		{
			"/csi.v1.Controller/CreateVolume",
			&csi.CreateVolumeRequest{Name: "pvc", VolumeCapabilities: []*csi.VolumeCapability{capability}},
			[]string{"name", "volume_capabilities"},
			codes.OK,
		},
		{"/csi.v1.Controller/DeleteVolume", &csi.DeleteVolumeRequest{VolumeId: nobody}, []string{"volume_id"}, codes.OK},
		{
			"/csi.v1.Controller/ControllerPublishVolume",
			&csi.ControllerPublishVolumeRequest{VolumeId: nobody, NodeId: harness.NodeID, VolumeCapability: capability},
			[]string{"volume_id", "node_id", "volume_capability"},
			codes.NotFound,
		},
		{
			"/csi.v1.Controller/ControllerUnpublishVolume",
			&csi.ControllerUnpublishVolumeRequest{VolumeId: nobody, NodeId: harness.NodeID},
			[]string{"volume_id"},
			codes.OK,
		},
		{
			"/csi.v1.Controller/ValidateVolumeCapabilities",
			&csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: nobody, VolumeCapabilities: []*csi.VolumeCapability{capability},
			},
			[]string{"volume_id", "volume_capabilities"},
			codes.NotFound,
		},
		{"/csi.v1.Controller/ControllerGetVolume", &csi.ControllerGetVolumeRequest{VolumeId: nobody}, []string{"volume_id"}, codes.NotFound},
		{
			"/csi.v1.Controller/ControllerExpandVolume",
			&csi.ControllerExpandVolumeRequest{VolumeId: nobody, CapacityRange: required(mib)},
			[]string{"volume_id", "capacity_range"},
			codes.NotFound,
		},
		{
			"/csi.v1.Node/NodeStageVolume",
			&csi.NodeStageVolumeRequest{VolumeId: nobody, StagingTargetPath: staging, VolumeCapability: capability},
			[]string{"volume_id", "staging_target_path", "volume_capability"},
			codes.NotFound,
		},
		{
			"/csi.v1.Node/NodeUnstageVolume",
			&csi.NodeUnstageVolumeRequest{VolumeId: nobody, StagingTargetPath: staging},
			[]string{"volume_id", "staging_target_path"},
			codes.OK,
		},
		{
			"/csi.v1.Node/NodePublishVolume",
			&csi.NodePublishVolumeRequest{
				VolumeId: nobody, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability,
			},
			[]string{"volume_id", "target_path", "volume_capability"},
			codes.FailedPrecondition,
		},
		{
			"/csi.v1.Node/NodeUnpublishVolume",
			&csi.NodeUnpublishVolumeRequest{VolumeId: nobody, TargetPath: target},
			[]string{"volume_id", "target_path"},
			codes.OK,
		},
		{
			"/csi.v1.Node/NodeGetVolumeStats",
			&csi.NodeGetVolumeStatsRequest{VolumeId: nobody, VolumePath: target},
			[]string{"volume_id", "volume_path"},
			codes.NotFound,
		},
		{
			"/csi.v1.Node/NodeExpandVolume",
			&csi.NodeExpandVolumeRequest{VolumeId: nobody, VolumePath: target},
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
	before := everything(t, d)

	for _, each := range calls(d) {
		for _, name := range each.required {
			t.Run(each.name()+" "+name, func(t *testing.T) {
				request := proto.Clone(each.request)
				request.ProtoReflect().Clear(field(t, request, name))

				// Of what is repeated the message may name one.
				fails(t, connection.send(t, each.method, request), codes.InvalidArgument, strings.TrimSuffix(name, "ies"))
			})
		}
	}

	require.Equal(t, before, everything(t, d))
}

func TestIncompleteCapabilities(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	connection := dial(t, d)

	bad := map[string]*csi.VolumeCapability{
		"empty":                  {},
		"no access type":         {AccessMode: &csi.VolumeCapability_AccessMode{Mode: writer}},
		"no access mode":         {AccessType: csiclient.BlockCapability(writer).GetAccessType()},
		"UNKNOWN access mode":    csiclient.MountCapability(csi.VolumeCapability_AccessMode_UNKNOWN, ""),
		"access mode of nobody":  csiclient.MountCapability(99, ""),
		"negative access mode":   csiclient.BlockCapability(-1),
		"filesystem of nobody":   csiclient.MountCapability(writer, "../ext4"),
		"flag of another device": csiclient.MountCapability(writer, "", "loop=/dev/loop0"),
		"remount":                csiclient.MountCapability(writer, "", "noatime,remount"),
	}

	volume := newVolume(t, d, &csi.CreateVolumeRequest{})
	before := everything(t, d)

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
				fails(t, connection.send(t, each.method, request), codes.InvalidArgument)
			})
		}

		t.Run("ValidateVolumeCapabilities "+name, func(t *testing.T) {
			answer, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
				VolumeId: volume.VolumeID, VolumeCapabilities: []*csi.VolumeCapability{capability},
			})
			require.NoError(t, err)
			require.Nil(t, answer.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", answer.GetMessage())
			require.NotEmpty(t, answer.GetMessage())
		})
	}

	require.Equal(t, before, everything(t, d))
}

func TestHostileIDs(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	connection := dial(t, d)
	kept := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	writeFile(t, filepath.Join(d.Pool(), "directories", kept.VolumeID, "data"), "kept")

	require.NoError(t, os.MkdirAll(filepath.Join(d.Root, "x"), 0o700))
	writeFile(t, filepath.Join(d.Root, "x.img"), "outside")

	before := tree(t, d.Root)

	for name, test := range map[string]struct {
		id      string
		hostile bool
	}{
		"parent":            {"../x", true},
		"up and up":         {"../../../../etc", true},
		"the pool's rooms":  {"..", true},
		"the room":          {".", true},
		"absolute":          {"/etc/passwd", true},
		"beneath a volume":  {kept.VolumeID + "/data", true},
		"through a volume":  {kept.VolumeID + "/../" + kept.VolumeID, true},
		"backslash":         {`..\x`, true},
		"NUL":               {kept.VolumeID + "\x00", true},
		"newline":           {kept.VolumeID + "\n", true},
		"empty":             {"", true},
		"a MiB":             {strings.Repeat("a", mib), true},
		"129 bytes":         {strings.Repeat("a", 129), true},
		"a volume's prefix": {kept.VolumeID[:35], false},
		"capitals":          {strings.ToUpper(kept.VolumeID), false},
		"braces":            {"{" + kept.VolumeID + "}", false},
		"urn":               {"urn:uuid:" + kept.VolumeID, false},
		"another version":   {"6ba7b810-9dad-11d1-80b4-00c04fd430c8", false},
		"a space":           {" ", false},
		"an option":         {"--help", false},
		"the image":         {kept.VolumeID + ".img", false},
		"no volume":         {nobody, false},
	} {
		for _, each := range calls(d)[1:] {
			t.Run(each.name()+" "+name, func(t *testing.T) {
				request := proto.Clone(each.request)
				request.ProtoReflect().Set(field(t, request, "volume_id"), protoreflect.ValueOfString(test.id))
				err := connection.send(t, each.method, request)

				if test.hostile {
					fails(t, err, codes.InvalidArgument)
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

			broken := bytes.Replace(encoded, []byte(nobody), []byte("\xff\xfe\x80"+nobody[3:]), 1)
			fails(t, connection.sendBytes(t, each.method, broken), codes.InvalidArgument, "volume_id", "UTF-8")
			fails(t, connection.sendBytes(t, each.method, encoded[:len(encoded)-1]), codes.InvalidArgument)
		})
	}

	require.Equal(t, before, tree(t, d.Root))
	require.Equal(t, []string{kept.VolumeID}, listAll(t, d))
}

// outside is a directory that is not the driver's to touch.
func outside(t *testing.T) string {
	t.Helper()

	directory := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(directory, "sub", "mount"), 0o700))
	writeFile(t, filepath.Join(directory, "sub", "file"), "not yours")
	writeFile(t, filepath.Join(directory, "sub", "empty"), "")

	return directory
}

func requireNothingMounted(t *testing.T, beneath string) {
	t.Helper()

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(beneath))
	require.NoError(t, err)
	require.Empty(t, mounts)
}

func TestTargetPathsOutside(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	foreign := outside(t)
	kubelet := d.Config.KubeletDir
	inside := filepath.Join(kubelet, "pods")

	require.NoError(t, os.MkdirAll(inside, 0o700))
	require.NoError(t, os.Symlink(foreign, filepath.Join(inside, "link")))
	require.NoError(t, os.Symlink(filepath.Join(foreign, "sub", "mount"), filepath.Join(inside, "target")))
	require.NoError(t, os.Symlink(filepath.Join(foreign, "nothing"), filepath.Join(inside, "dangling")))
	require.NoError(t, os.Symlink("/proc/self/cwd", filepath.Join(inside, "magic")))
	writeFile(t, filepath.Join(inside, "file"), "")

	claim := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	bringUp(t, d, claim)

	block := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(multiWriter)},
	})
	bringUp(t, d, block)

	fresh := newVolume(t, d, &csi.CreateVolumeRequest{Name: "fresh", Parameters: directoryBacked()})
	before := tree(t, foreign, d.Pool(), d.Config.KubeletDir)

	for name, test := range map[string]struct {
		path string
		// gone says that there is nothing to unpublish, which is no error.
		gone bool
	}{
		"relative":                     {path: "pods/x"},
		"a dot":                        {path: "."},
		"dots":                         {path: filepath.Join(inside, "x") + "/../../../etc"},
		"dots that stay inside":        {path: inside + "/../pods/x"},
		"a dot segment":                {path: inside + "/./x"},
		"outside":                      {path: filepath.Join(foreign, "sub", "mount")},
		"the root":                     {path: "/"},
		"the kubelet's own":            {path: kubelet},
		"the kubelet's own, slash":     {path: kubelet + "/"},
		"a prefix only":                {path: kubelet + "-other/x"},
		"through a symlink":            {path: filepath.Join(inside, "link", "sub", "mount")},
		"directly in a symlink":        {path: filepath.Join(inside, "link", "new")},
		"through a magic link":         {path: filepath.Join(inside, "magic", "x")},
		"the target is a symlink":      {path: filepath.Join(inside, "target"), gone: true},
		"the target is a dangling one": {path: filepath.Join(inside, "dangling"), gone: true},
		"through a file":               {path: filepath.Join(inside, "file", "x")},
		"NUL":                          {path: inside + "/a\x00b"},
		"too long a name":              {path: filepath.Join(inside, strings.Repeat("n", 300))},
		"too long":                     {path: inside + strings.Repeat("/n", 2048)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()

			for _, volume := range []*csiclient.Publication{claim, block} {
				_, err := d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
					VolumeId: volume.VolumeID, StagingTargetPath: volume.StagingPath, TargetPath: test.path,
					VolumeCapability: volume.Capability, VolumeContext: volume.VolumeContext,
				})
				refusesPath(t, err)

				_, err = d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: volume.VolumeID, TargetPath: test.path})
				if test.gone {
					require.NoError(t, err)
				} else {
					refusesPath(t, err)
				}

				_, err = d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: volume.VolumeID, StagingTargetPath: test.path})
				if test.gone {
					require.NoError(t, err)
				} else {
					refusesPath(t, err)
				}

				_, err = d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: volume.VolumeID, VolumePath: test.path})
				require.Contains(t, []codes.Code{codes.NotFound, codes.InvalidArgument}, status.Code(err), "%v", err)

				_, err = d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: volume.VolumeID, VolumePath: test.path})
				require.Contains(t, []codes.Code{codes.NotFound, codes.InvalidArgument}, status.Code(err), "%v", err)
			}

			_, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
				VolumeId: fresh.VolumeID, StagingTargetPath: test.path, VolumeCapability: fresh.Capability,
				VolumeContext: fresh.VolumeContext,
			})
			refusesPath(t, err)
		})
	}

	require.Equal(t, before, tree(t, foreign, d.Pool(), d.Config.KubeletDir))
	requireNothingMounted(t, foreign)
	deleteVolume(t, d, fresh.VolumeID)
}

func refusesPath(t *testing.T, err error) {
	t.Helper()
	require.Contains(t, []codes.Code{codes.InvalidArgument, codes.FailedPrecondition}, status.Code(err), "%v", err)
}

// TestOnePlaceHasOneName shows that slashes make no second target of the first.
func TestOnePlaceHasOneName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		Parameters:         directoryBacked(),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(multiWriter, "")},
	})
	bringUp(t, d, claim)

	odd := *claim
	odd.TargetPath = strings.Replace(claim.TargetPath, "/pods/", "//pods///", 1) + "//"
	odd.StagingPath = claim.StagingPath + "/"

	require.NoError(t, d.Stage(t.Context(), &odd))

	publish := &csi.NodePublishVolumeRequest{
		VolumeId: odd.VolumeID, StagingTargetPath: odd.StagingPath, TargetPath: odd.TargetPath,
		VolumeCapability: odd.Capability, VolumeContext: odd.VolumeContext,
	}
	_, err := d.NodePublishVolume(t.Context(), publish)
	require.NoError(t, err)

	publish.Readonly = true
	_, err = d.NodePublishVolume(t.Context(), publish)
	fails(t, err, codes.AlreadyExists)
	writeFile(t, filepath.Join(claim.TargetPath, "data"), "writable still")

	_, err = d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: odd.VolumeID, VolumePath: odd.TargetPath})
	require.NoError(t, err)

	require.NoError(t, d.Unpublish(t.Context(), &odd))
	require.NoDirExists(t, claim.TargetPath)
	require.NoError(t, d.Unstage(t.Context(), &odd))
	requireNothingMounted(t, claim.StagingPath)
}

// TestSymlinkSwappedIn changes the target's parent for a symlink to elsewhere
// and back while calls run. It proves nothing by being lucky: whatever the
// order, nothing outside may change.
func TestSymlinkSwappedIn(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const rounds = 200

	d := harness.Start(t)
	foreign := outside(t)
	before := tree(t, foreign)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{Parameters: directoryBacked()})
	attachAndStage(t, d, claim)

	pods := filepath.Join(d.Config.KubeletDir, "pods")
	pod, link := filepath.Join(pods, "pod"), filepath.Join(pods, "link")

	require.NoError(t, os.MkdirAll(filepath.Join(pod, "empty"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(foreign, "sub"), link))

	swap := func() error { return unix.Renameat2(unix.AT_FDCWD, pod, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) }
	ctx, stop := context.WithCancel(t.Context())

	var (
		swapper sync.WaitGroup
		swaps   int
		failed  error
	)

	swapper.Go(func() {
		for ctx.Err() == nil && failed == nil {
			failed = errors.Join(swap(), swap())
			swaps++
		}
	})

	// One name is a directory there, another a file, the third nothing.
	for i := range rounds {
		target := filepath.Join(pod, []string{"mount", "empty", "new"}[i%3])

		_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: claim.VolumeID, StagingTargetPath: claim.StagingPath, TargetPath: target,
			VolumeCapability: claim.Capability, VolumeContext: claim.VolumeContext,
		})
		require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown}, status.Code(err), "%v", err)

		_, err = d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: claim.VolumeID, TargetPath: target})
		require.NotContains(t, []codes.Code{codes.Internal, codes.Unknown}, status.Code(err), "%v", err)

		requireNothingMounted(t, foreign)
	}

	stop()
	swapper.Wait()
	require.NoError(t, failed)
	require.Positive(t, swaps)

	for _, name := range []string{"mount", "empty", "new"} {
		_, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
			VolumeId: claim.VolumeID, TargetPath: filepath.Join(pod, name),
		})
		require.NoError(t, err)
	}

	require.Equal(t, before, tree(t, foreign))
	requireNothingMounted(t, pods)
}

func TestCallsOutOfOrder(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, kind := range []struct {
		name       string
		parameters map[string]string
		capability *csi.VolumeCapability
	}{
		{"ext4", nil, csiclient.MountCapability(writer, "ext4")},
		{"block", nil, csiclient.BlockCapability(writer)},
		{"directory", directoryBacked(), csiclient.MountCapability(writer, "")},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()

			ctx := t.Context()
			d := harness.Start(t)
			claim := newVolume(t, d, &csi.CreateVolumeRequest{
				Parameters: kind.parameters, VolumeCapabilities: []*csi.VolumeCapability{kind.capability},
			})
			remove := func() error {
				_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})

				return err
			}

			fails(t, d.Publish(ctx, claim), codes.FailedPrecondition, "NodeStageVolume")
			require.NoFileExists(t, claim.TargetPath)
			require.NoDirExists(t, claim.TargetPath)
			require.NoError(t, d.Unpublish(ctx, claim))
			require.NoError(t, d.Unstage(ctx, claim))
			require.NoError(t, d.Detach(ctx, claim))

			require.NoError(t, d.Attach(ctx, claim))
			fails(t, remove(), codes.FailedPrecondition, d.Config.NodeID)
			fails(t, d.Publish(ctx, claim), codes.FailedPrecondition, "NodeStageVolume")

			require.NoError(t, d.Stage(ctx, claim))

			elsewhere := *claim
			elsewhere.StagingPath += "-elsewhere"
			fails(t, d.Publish(ctx, &elsewhere), codes.FailedPrecondition, claim.StagingPath)
			fails(t, d.Stage(ctx, &elsewhere), codes.FailedPrecondition, claim.StagingPath)
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

			fails(t, d.Unstage(ctx, claim), codes.FailedPrecondition, claim.TargetPath)

			fails(t, d.Detach(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
			fails(t, remove(), codes.FailedPrecondition)
			d.Restart(t)
			fails(t, d.Detach(ctx, claim), codes.FailedPrecondition, claim.TargetPath)
			fails(t, remove(), codes.FailedPrecondition)

			got := make([]byte, len("precious"))
			file, err = os.Open(path)
			require.NoError(t, err)
			_, err = file.ReadAt(got, 0)
			require.NoError(t, errors.Join(err, file.Close()))
			require.Equal(t, "precious", string(got))

			require.NoError(t, d.Unpublish(ctx, claim))
			fails(t, d.Detach(ctx, claim), codes.FailedPrecondition, claim.StagingPath)
			require.NoError(t, d.Unstage(ctx, claim))
			require.NoError(t, d.Detach(ctx, claim))
			require.NoError(t, remove())
			require.NoError(t, remove())
			require.Empty(t, listAll(t, d))
		})
	}
}

// TestUnpublishWhileInUse shows that a volume which somebody still writes to
// stays.
func TestUnpublishWhileInUse(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := newVolume(t, d, &csi.CreateVolumeRequest{})
	bringUp(t, d, claim)

	file, err := os.Create(filepath.Join(claim.TargetPath, "open"))
	require.NoError(t, err)
	fails(t, d.Unpublish(t.Context(), claim), codes.FailedPrecondition, "open")

	_, err = file.WriteString("still there")
	require.NoError(t, errors.Join(err, file.Sync(), file.Close()))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))
	fileHolds(t, filepath.Join(claim.TargetPath, "open"), "still there")
}
