package staging_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// mostOf8MiB is as large as an ext4 becomes that is made with 8 MiB: its group descriptors fill one
// block then.
const mostOf8MiB = 8 * harness.GiB

// overcommitted lets a test provision many times mostOf8MiB on any machine: hardly any of it is written.
func overcommitted(c *driver.Config) { c.Overcommit = 1000 }

// TestGrowthBeyondTheFilesystemIsRefused asks for more than an ext4 of 8 MiB can become, in every way
// in which a volume grows, and then for what it can.
func TestGrowthBeyondTheFilesystemIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const tooLarge = mostOf8MiB + harness.GiB

	d := harness.Start(t, overcommitted)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: harness.RequiredBytes(8 * harness.MiB)})
	harness.BringUp(t, d, claim)
	harness.WriteFile(t, filepath.Join(claim.TargetPath, "file"), "content")
	harness.TakeDown(t, d, claim)

	expand := func(bytes int64) error {
		_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(bytes),
		})

		return err
	}
	copyOf := func(name string, bytes int64, source *csi.VolumeContentSource, capability *csi.VolumeCapability) (*csi.CreateVolumeResponse, error) {
		return d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability},
			CapacityRange: harness.RequiredBytes(bytes), VolumeContentSource: source,
		})
	}
	refused := func(err error) {
		t.Helper()
		harness.RequireCode(t, err, codes.OutOfRange, "ext4", strconv.Itoa(mostOf8MiB), "group descriptors", "copy its files")
	}

	refused(expand(tooLarge))
	require.EqualValues(t, 8*harness.MiB, harness.CapacityOf(t, d, claim.VolumeID), "want: the refused expansion does not change the size")

	snapshot := harness.TakeSnapshot(t, d, claim.VolumeID, t.Name())
	for name, source := range map[string]*csi.VolumeContentSource{
		"restored": harness.FromSnapshot(snapshot), "cloned": harness.FromVolume(claim.VolumeID),
	} {
		_, err := copyOf(name, tooLarge, source, claim.Capability)
		refused(err)

		made, err := copyOf(name, mostOf8MiB, source, claim.Capability)
		require.NoError(t, err, "the refused one left nothing behind")

		larger := d.Claim(t, made.GetVolume().GetVolumeId())
		larger.VolumeContext, larger.Capability = made.GetVolume().GetVolumeContext(), claim.Capability
		harness.BringUp(t, d, larger)
		harness.RequireFile(t, filepath.Join(larger.TargetPath, "file"), "content")
		harness.TakeDown(t, d, larger)
		harness.RequireSound(t, "ext4", harness.ImageOf(d, larger.VolumeID))

		_, err = copyOf(name+" as raw block", tooLarge, source, csiclient.BlockCapability(harness.Writer))
		require.NoError(t, err, "the driver grows no filesystem there")
	}

	require.NoError(t, expand(mostOf8MiB))
	refused(expand(tooLarge))
	harness.BringUp(t, d, claim)
	harness.RequireFile(t, filepath.Join(claim.TargetPath, "file"), "content")
}

// TestUnformattedVolumeHasNoLimit: it grows before its filesystem is made.
func TestUnformattedVolumeHasNoLimit(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, overcommitted)
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: harness.RequiredBytes(8 * harness.MiB)})

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: harness.RequiredBytes(mostOf8MiB + harness.GiB),
	})
	require.NoError(t, err)
	harness.BringUp(t, d, claim)
}

// TestANodeGrowsNothingBeyondItsLimit has an image that another program has enlarged: it stays as
// it is.
func TestANodeGrowsNothingBeyondItsLimit(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.WithoutCapabilities("controller:EXPAND_VOLUME"))
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: harness.RequiredBytes(8 * harness.MiB)})
	harness.BringUp(t, d, claim)

	_, err := d.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: claim.VolumeID, VolumePath: claim.TargetPath, CapacityRange: harness.RequiredBytes(mostOf8MiB + harness.GiB),
	})
	harness.RequireCode(t, err, codes.OutOfRange, claim.VolumeID, strconv.Itoa(mostOf8MiB))
	harness.TakeDown(t, d, claim)

	image := harness.ImageOf(d, claim.VolumeID)
	require.NoError(t, os.Truncate(image, mostOf8MiB+harness.GiB))
	require.NoError(t, d.Attach(t.Context(), claim))
	harness.RequireCode(t, d.Stage(t.Context(), claim), codes.FailedPrecondition, claim.VolumeID, strconv.Itoa(mostOf8MiB))
	harness.RequireSound(t, "ext4", image)

	require.NoError(t, os.Truncate(image, mostOf8MiB))
	harness.BringUp(t, d, claim)
}
