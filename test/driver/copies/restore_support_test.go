package copies_test

import (
	"crypto/sha256"
	"io"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const (
	// payloadBytes is how much the tests of copies compare.
	payloadBytes = 8 * harness.MiB
	// many is how many extents a volume has that takes long to copy.
	many = 1 << 11
	// keyCopy is set in the volume_context of a copy.
	keyCopy = "copy"
)

// reflinking gives the driver a pool in which copies are instant.
func reflinking(t *testing.T) harness.Option {
	t.Helper()

	directory := testpool.Reflink(t, 8*harness.GiB)

	return func(c *driver.Config) { c.Pools = map[string]string{"default": directory} }
}

// copyPools are the two sorts of pools: one whose copies are instant, and one
// where the bytes have to be moved.
func copyPools() map[string]func(*testing.T) harness.Option {
	return map[string]func(*testing.T) harness.Option{
		"reflink": reflinking,
		"plain":   func(*testing.T) harness.Option { return func(*driver.Config) {} },
	}
}

// copyKinds are the sorts of volumes that differ for copies.
func copyKinds() map[string]*csi.CreateVolumeRequest {
	return map[string]*csi.CreateVolumeRequest{
		"ext4":  harness.MountRequest("ext4", 64*harness.MiB),
		"xfs":   harness.MountRequest("xfs", 300*harness.MiB),
		"btrfs": harness.MountRequest("btrfs", 256*harness.MiB),
		"block": {
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, CapacityRange: harness.RequiredBytes(64 * harness.MiB),
		},
		"directory": {
			Parameters:         harness.DirectoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(harness.Writer, "")}, CapacityRange: harness.RequiredBytes(64 * harness.MiB),
		},
	}
}

// copyOf makes a volume like the request, of the source.
func copyOf(t *testing.T, d *harness.Driver, like *csi.CreateVolumeRequest, name string, source *csi.VolumeContentSource,
	capacity *csi.CapacityRange,
) *csiclient.Publication {
	t.Helper()

	request := proto.CloneOf(like)
	request.Name, request.VolumeContentSource, request.CapacityRange = name, source, capacity

	made, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.True(t, proto.Equal(source, made.GetVolume().GetContentSource()),
		"got %v, want %v", made.GetVolume().GetContentSource(), source)
	require.Equal(t, "true", made.GetVolume().GetVolumeContext()[keyCopy])

	again, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.True(t, proto.Equal(made, again), "%v\n%v", made, again)

	found, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	require.NoError(t, err)
	require.True(t, proto.Equal(made.GetVolume(), found.GetVolume()), "got %v, want %v", found.GetVolume(), made.GetVolume())

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = request.GetVolumeCapabilities()[0]

	return claim
}

// fillPayload writes random bytes to where the volume is published, and returns
// their checksum. They need not be on the disk yet.
func fillPayload(t *testing.T, claim *csiclient.Publication) [sha256.Size]byte {
	t.Helper()

	data := harness.Random(t, payloadBytes)

	file, err := os.OpenFile(harness.DataPath(claim), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = file.WriteAt(data, 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())

	return sha256.Sum256(data)
}

func payload(t *testing.T, claim *csiclient.Publication) [sha256.Size]byte {
	t.Helper()

	file, err := os.Open(harness.DataPath(claim))
	require.NoError(t, err)

	defer file.Close()

	data := make([]byte, payloadBytes)
	_, err = io.ReadFull(file, data)
	require.NoError(t, err)

	return sha256.Sum256(data)
}
