package harness

import (
	"crypto/rand"
	"crypto/sha256"
	"io"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// Kind is one way to have a volume.
type Kind struct {
	Name       string
	Parameters map[string]string
	Capability *csi.VolumeCapability
	// Bytes are at creation and after the expansion.
	Bytes, Larger int64
}

// Kinds lists all ways to have a volume.
func Kinds() []Kind {
	return []Kind{
		{Name: "ext4", Capability: csiclient.MountCapability(Writer, "ext4"), Bytes: 64 * MiB, Larger: 128 * MiB},
		{Name: "ext4 noatime", Capability: csiclient.MountCapability(Writer, "", "noatime"), Bytes: 64 * MiB, Larger: 128 * MiB},
		{
			Name: "ext4 thick", Parameters: map[string]string{"provisioning": "thick"},
			Capability: csiclient.MountCapability(Writer, "ext4"), Bytes: 64 * MiB, Larger: 128 * MiB,
		},
		{
			Name: "ext4 with 512-byte blocks", Parameters: map[string]string{"blockSize": "512"},
			Capability: csiclient.MountCapability(Writer, "ext4"), Bytes: 64 * MiB, Larger: 128 * MiB,
		},
		{Name: "xfs", Capability: csiclient.MountCapability(Writer, "xfs"), Bytes: 300 * MiB, Larger: 400 * MiB},
		{Name: "btrfs", Capability: csiclient.MountCapability(Writer, "btrfs"), Bytes: 256 * MiB, Larger: 272 * MiB},
		{Name: "block", Capability: csiclient.BlockCapability(Writer), Bytes: 64 * MiB, Larger: 128 * MiB},
		{
			Name: "directory", Parameters: map[string]string{"backing": "directory"},
			Capability: csiclient.MountCapability(Writer, ""), Bytes: 64 * MiB, Larger: 128 * MiB,
		},
	}
}

// Lifecycle is one volume from its creation to its deletion. Its methods require that
// each call succeeds.
type Lifecycle struct {
	T      *testing.T
	Driver *Driver
	Kind   Kind
	Claim  *csiclient.Publication
}

// NewLifecycle creates a volume of the kind.
func NewLifecycle(t *testing.T, d *Driver, k Kind) *Lifecycle {
	t.Helper()

	made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: t.Name() + " " + k.Name, Parameters: k.Parameters,
		VolumeCapabilities: []*csi.VolumeCapability{k.Capability},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: k.Bytes},
	})
	require.NoError(t, err)
	require.Equal(t, k.Bytes, made.GetVolume().GetCapacityBytes(), "want: the volume has the size that was asked for")

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = k.Capability

	return &Lifecycle{T: t, Driver: d, Kind: k, Claim: claim}
}

// Up attaches, stages and publishes the volume, and requires that mount-utils sees it as the driver does.
func (l *Lifecycle) Up() {
	l.T.Helper()
	require.NoError(l.T, l.Driver.Attach(l.T.Context(), l.Claim))
	require.NoError(l.T, l.Driver.Stage(l.T.Context(), l.Claim))
	require.NoError(l.T, l.Driver.Publish(l.T.Context(), l.Claim))
	RequireMountsAgree(l.T, l.Driver.Root)
}

// Down undoes Up.
func (l *Lifecycle) Down() {
	l.T.Helper()
	require.NoError(l.T, l.Driver.Unpublish(l.T.Context(), l.Claim))
	require.NoError(l.T, l.Driver.Unstage(l.T.Context(), l.Claim))
	require.NoError(l.T, l.Driver.Detach(l.T.Context(), l.Claim))
	RequireMountsAgree(l.T, l.Driver.Root)
}

// Delete deletes the volume, which must be the last of its pool.
func (l *Lifecycle) Delete() {
	l.T.Helper()

	_, err := l.Driver.DeleteVolume(l.T.Context(), &csi.DeleteVolumeRequest{VolumeId: l.Claim.VolumeID})
	require.NoError(l.T, err)

	RequireEntries(l.T, l.Driver, map[string]int{"images": 0, "directories": 0, "scratch": 0})
}

// Write puts random bytes into the volume and returns their checksum.
func (l *Lifecycle) Write() [sha256.Size]byte {
	l.T.Helper()

	data := make([]byte, 8*MiB)
	_, _ = rand.Read(data)

	file, err := os.OpenFile(DataPath(l.Claim), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(l.T, err)

	defer file.Close()

	_, err = file.Write(data)
	require.NoError(l.T, err)
	require.NoError(l.T, file.Sync())

	return sha256.Sum256(data)
}

// Holds requires that the volume has what Write returned the checksum of.
func (l *Lifecycle) Holds(want [sha256.Size]byte) {
	l.T.Helper()

	file, err := os.Open(DataPath(l.Claim))
	require.NoError(l.T, err)

	defer file.Close()

	data := make([]byte, 8*MiB)
	_, err = io.ReadFull(file, data)
	require.NoError(l.T, err)
	require.Equal(l.T, want, sha256.Sum256(data))
}

// Usage is what NodeGetVolumeStats answers for the unit.
func (l *Lifecycle) Usage(unit csi.VolumeUsage_Unit) *csi.VolumeUsage {
	l.T.Helper()

	for _, path := range []string{l.Claim.StagingPath, l.Claim.TargetPath} {
		stats, err := l.Driver.NodeGetVolumeStats(l.T.Context(),
			&csi.NodeGetVolumeStatsRequest{VolumeId: l.Claim.VolumeID, VolumePath: path})
		require.NoError(l.T, err)

		for _, usage := range stats.GetUsage() {
			if usage.GetUnit() == unit {
				return usage
			}
		}
	}

	require.Fail(l.T, "no usage", "unit %s", unit)

	return nil
}

// Expand grows the volume while it is in use; where the kernel does not permit
// that, it is taken down and up again.
func (l *Lifecycle) Expand() {
	l.T.Helper()

	wanted := &csi.CapacityRange{RequiredBytes: l.Kind.Larger}
	answer, err := l.Driver.ControllerExpandVolume(l.T.Context(),
		&csi.ControllerExpandVolumeRequest{VolumeId: l.Claim.VolumeID, CapacityRange: wanted})
	require.NoError(l.T, err)
	require.Equal(l.T, l.Kind.Larger, answer.GetCapacityBytes(), "want: the volume has the larger size")

	_, err = l.Driver.NodeExpandVolume(l.T.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: l.Claim.VolumeID, VolumePath: l.Claim.TargetPath, CapacityRange: wanted,
	})
	if status.Code(err) == codes.FailedPrecondition {
		l.T.Logf("grown unmounted instead: %v", err)
		l.Down()
		l.Up()

		err = nil
	}

	require.NoError(l.T, err)
}

// RunEachKind runs test for a volume of each kind that is published.
func RunEachKind(t *testing.T, test func(t *testing.T, d *Driver, claim *csiclient.Publication)) {
	t.Helper()
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range KindRequests(Writer) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := Start(t)
			claim := NewVolume(t, d, request)
			BringUp(t, d, claim)
			WriteBlock(t, claim)
			test(t, d, claim)
		})
	}
}
