package requests_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestIncompleteCapabilitiesAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	d := f.Driver

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
		for _, each := range f.requests(t) {
			switch r := each.message.(type) {
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
				err := conformance.Call(t.Context(), f.Conn(), each.method, each.message)
				harness.RequireCode(t, err, codes.InvalidArgument)
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
			require.NotEmpty(t, answer.GetMessage(), "want: what is not confirmed is explained")
			require.LessOrEqual(t, len(answer.GetMessage()), 128, "want: the message fits the limit of the spec")
		})
	}

	require.Equal(t, before, harness.Everything(t, d))
}

// isID reports whether a field has ids of objects. ListSnapshots only compares those that it has.
func isID(r request, field conformance.Field) bool {
	name := string(field.Name())

	return field.Kind() == protoreflect.StringKind && (strings.HasSuffix(name, "_id") || strings.HasSuffix(name, "_ids")) && name != "node_id" &&
		r.name() != "ListSnapshots"
}

// ofUnknown returns the code of a call for an object that does not exist, unless it is NOT_FOUND.
func ofUnknown(call derived) codes.Code {
	switch name := call.name(); {
	case call.field.Name() == "snapshot_ids":
		return codes.InvalidArgument // the group has others
	case name == "NodePublishVolume":
		return codes.FailedPrecondition
	case strings.HasPrefix(name, "Delete"), strings.Contains(name, "Unpublish"), strings.Contains(name, "Unstage"):
		return codes.OK
	default:
		return codes.NotFound
	}
}

func TestHostileIDsAreRefused(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	d, kept := f.Driver, f.used
	harness.WriteFile(t, filepath.Join(d.Pool(), "directories", kept.VolumeID, "data"), "kept")

	require.NoError(t, os.MkdirAll(filepath.Join(d.Root, "x"), 0o700))
	harness.WriteFile(t, filepath.Join(d.Root, "x.img"), "outside")

	before, listed := harness.Tree(t, d.Root), harness.ListAll(t, d)

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
		for _, call := range f.each(t, func(r request, field conformance.Field) []derived {
			if !isID(r, field) {
				return nil
			}

			return []derived{r.derive(field, name, func(message proto.Message) { field.SetText(message, "", test.id) })}
		}) {
			t.Run(call.name()+" "+call.field.Path+" "+name, func(t *testing.T) {
				err := call.call(t, t.Context(), f)

				if test.hostile {
					harness.RequireCode(t, err, codes.InvalidArgument)
				} else {
					require.Contains(t, []codes.Code{ofUnknown(call), codes.NotFound}, status.Code(err), "%v", err)
				}

				require.Less(t, len(fmt.Sprint(err)), 1000, "want: the error is short however long the id is")
			})
		}
	}

	require.Equal(t, before, harness.Tree(t, d.Root))
	require.Equal(t, listed, harness.ListAll(t, d))
}

func TestCallsOutOfOrderAreRefused(t *testing.T) {
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
			require.Empty(t, harness.ListAll(t, d), "want: no volume is left")
		})
	}
}

// TestUnpublishWhileInUse shows that a volume to which a process still writes
// stays, also if it is detached, which DetachInUse allows.
func TestUnpublishWhileInUse(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Controller.DetachInUse = true })
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.BringUp(t, d, claim)

	file, err := os.Create(filepath.Join(claim.TargetPath, "open"))
	require.NoError(t, err)
	harness.RequireCode(t, d.Unpublish(t.Context(), claim), codes.FailedPrecondition, "open")
	require.NoError(t, d.Detach(t.Context(), claim))
	require.NoError(t, d.Attach(t.Context(), claim))

	_, err = file.WriteString("still there")
	require.NoError(t, errors.Join(err, file.Sync(), file.Close()))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoError(t, d.Publish(t.Context(), claim))
	harness.RequireFile(t, filepath.Join(claim.TargetPath, "open"), "still there")
}
