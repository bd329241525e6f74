package publishing_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// ofGroup is the capability of a pod with that fsGroup.
func ofGroup(group string) *csi.VolumeCapability {
	capability := csiclient.MountCapability(harness.MultiWriter, "")
	capability.GetMount().VolumeMountGroup = group

	return capability
}

func TestMountGroupIsAdvertisedWhenAskedFor(t *testing.T) {
	for _, on := range []bool{false, true} {
		d := harness.Start(t, func(c *driver.Config) { c.VolumeMountGroup = on })

		answer, err := d.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
		require.NoError(t, err)

		found := false
		for _, capability := range answer.GetCapabilities() {
			found = found || capability.GetRpc().GetType() == csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP
		}

		require.Equal(t, on, found, "want: VOLUME_MOUNT_GROUP is advertised when it is asked for")
	}
}

func TestInvalidMountGroupsAreRefused(t *testing.T) {
	namespace.NeedRoot(t)

	for name, test := range map[string]struct {
		on    bool
		group string
		word  string
	}{
		"not advertised": {false, "2000", "--volume-mount-group"},
		"a name":         {true, "wheel", "wheel"},
		"negative":       {true, "-1", "-1"},
		"the unchanging": {true, "4294967295", "4294967295"},
		"too large":      {true, "4294967296", "4294967296"},
		"more than one":  {true, "1 2", "1 2"},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t, func(c *driver.Config) { c.VolumeMountGroup = test.on })
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				Parameters: harness.DirectoryBacked(), VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
			})
			harness.BringUp(t, d, claim)

			second := harness.AnotherTarget(claim, "second")
			second.Capability = ofGroup(test.group)
			harness.RequireCode(t, d.Publish(t.Context(), second), codes.InvalidArgument, "volume_mount_group", test.word)
			require.NoDirExists(t, second.TargetPath)

			second.StagingPath += "-2"
			harness.RequireCode(t, d.Stage(t.Context(), second), codes.InvalidArgument, "volume_mount_group", test.word)

			inline := harness.InlineClaim(t, d, harness.SmallInline())
			inline.Capability = ofGroup(test.group)
			harness.RequireCode(t, d.Publish(t.Context(), inline), codes.InvalidArgument, "volume_mount_group", test.word)
			require.Empty(t, harness.EphemeralObjects(t, d), "want: nothing is left of the refused inline volume")
		})
	}
}

func TestFilesHaveTheMountGroup(t *testing.T) {
	namespace.NeedRoot(t)

	for name, parameters := range map[string]map[string]string{"ext4": nil, "directory": harness.DirectoryBacked()} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t, harness.WithMountGroup)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				Parameters: parameters, VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.MultiWriter, "")},
			})
			harness.BringUp(t, d, claim)
			harness.RequireOwned(t, claim.TargetPath, 0, 0o755)

			file := filepath.Join(claim.TargetPath, "file")
			harness.WriteFile(t, file, "x")

			secret := filepath.Join(d.Root, "secret")
			harness.WriteFile(t, secret, "not the volume's")
			require.NoError(t, os.Symlink(secret, filepath.Join(claim.TargetPath, "link")))

			// Read-only it stays as it is.
			reader := harness.AnotherTarget(claim, "reader")
			reader.Capability, reader.ReadOnly = ofGroup("2000"), true
			require.NoError(t, d.Publish(t.Context(), reader))
			harness.RequireOwned(t, reader.TargetPath, 0, 0o755)
			require.NoError(t, d.Unpublish(t.Context(), reader))

			second := harness.AnotherTarget(claim, "second")
			second.Capability = ofGroup("2000")
			require.NoError(t, d.Publish(t.Context(), second))
			harness.RequireOwned(t, second.TargetPath, 2000, 0o2775)
			harness.RequireOwned(t, file, 2000, 0o660)
			harness.RequireOwned(t, secret, 0, 0o600)

			// What is made inside belongs to the group at once.
			harness.WriteFile(t, filepath.Join(second.TargetPath, "new"), "x")
			harness.RequireOwned(t, filepath.Join(second.TargetPath, "new"), 2000, 0o600)
			conformance.Shows(t, "NodePublishVolume", "volume_mount_group given", "files are the group's")

			// The root is right: the rest is the workload's own.
			require.NoError(t, os.Chown(file, 7, 7))
			require.NoError(t, d.Unpublish(t.Context(), second))
			require.NoError(t, d.Publish(t.Context(), second))
			harness.RequireOwned(t, file, 7, 0o660)

			third := harness.AnotherTarget(claim, "third")
			third.Capability = ofGroup("3000")
			require.NoError(t, d.Publish(t.Context(), third))
			harness.RequireOwned(t, file, 3000, 0o660)

			second.Capability = ofGroup("3000")
			harness.RequireCode(t, d.Publish(t.Context(), second), codes.AlreadyExists)

			for _, each := range []*csiclient.Publication{second, third} {
				require.NoError(t, d.Unpublish(t.Context(), each))
			}
		})
	}
}

func TestEphemeralVolumesHaveTheMountGroup(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, harness.WithMountGroup)

	for _, attributes := range []map[string]string{harness.SmallInline(), {"backing": "directory"}} {
		claim := harness.InlineClaim(t, d, attributes)
		claim.Capability = ofGroup("2000")
		require.NoError(t, d.Publish(t.Context(), claim))
		harness.RequireOwned(t, claim.TargetPath, 2000, 0o2775)
		require.NoError(t, d.Unpublish(t.Context(), claim))
	}
}
