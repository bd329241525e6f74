package driver_test

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	mib    = 1 << 20
	writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
)

// kind is one way to have a volume.
type kind struct {
	name       string
	parameters map[string]string
	capability *csi.VolumeCapability
	// bytes are at creation and after the expansion.
	bytes, larger int64
}

func kinds() []kind {
	return []kind{
		{name: "ext4", capability: csiclient.MountCapability(writer, "ext4"), bytes: 64 * mib, larger: 128 * mib},
		{name: "ext4 noatime", capability: csiclient.MountCapability(writer, "", "noatime"), bytes: 64 * mib, larger: 128 * mib},
		{
			name: "ext4 thick", parameters: map[string]string{"provisioning": "thick"},
			capability: csiclient.MountCapability(writer, "ext4"), bytes: 64 * mib, larger: 128 * mib,
		},
		{
			name: "ext4 with 512-byte blocks", parameters: map[string]string{"blockSize": "512"},
			capability: csiclient.MountCapability(writer, "ext4"), bytes: 64 * mib, larger: 128 * mib,
		},
		{name: "xfs", capability: csiclient.MountCapability(writer, "xfs"), bytes: 300 * mib, larger: 400 * mib},
		{name: "btrfs", capability: csiclient.MountCapability(writer, "btrfs"), bytes: 256 * mib, larger: 272 * mib},
		{name: "block", capability: csiclient.BlockCapability(writer), bytes: 64 * mib, larger: 128 * mib},
		{
			name: "directory", parameters: map[string]string{"backing": "directory"},
			capability: csiclient.MountCapability(writer, ""), bytes: 64 * mib, larger: 128 * mib,
		},
	}
}

// life is one volume from its creation to its end.
type life struct {
	t      *testing.T
	driver *harness.Driver
	kind   kind
	claim  *csiclient.Publication
}

func create(t *testing.T, d *harness.Driver, k kind) *life {
	t.Helper()

	made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: t.Name(), Parameters: k.parameters,
		VolumeCapabilities: []*csi.VolumeCapability{k.capability},
		CapacityRange:      &csi.CapacityRange{RequiredBytes: k.bytes},
	})
	require.NoError(t, err)
	require.Equal(t, k.bytes, made.GetVolume().GetCapacityBytes())

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = k.capability

	return &life{t: t, driver: d, kind: k, claim: claim}
}

func (l *life) up() {
	l.t.Helper()
	require.NoError(l.t, l.driver.Attach(l.t.Context(), l.claim))
	require.NoError(l.t, l.driver.Stage(l.t.Context(), l.claim))
	require.NoError(l.t, l.driver.Publish(l.t.Context(), l.claim))
}

func (l *life) down() {
	l.t.Helper()
	require.NoError(l.t, l.driver.Unpublish(l.t.Context(), l.claim))
	require.NoError(l.t, l.driver.Unstage(l.t.Context(), l.claim))
	require.NoError(l.t, l.driver.Detach(l.t.Context(), l.claim))
}

func (l *life) delete() {
	l.t.Helper()

	_, err := l.driver.DeleteVolume(l.t.Context(), &csi.DeleteVolumeRequest{VolumeId: l.claim.VolumeID})
	require.NoError(l.t, err)

	for _, room := range []string{"images", "directories", "scratch"} {
		left, err := os.ReadDir(filepath.Join(l.driver.Pool(), room))
		require.NoError(l.t, err)
		require.Empty(l.t, left)
	}
}

func (l *life) block() bool { return l.kind.capability.GetBlock() != nil }

func (l *life) dataPath() string {
	if l.block() {
		return l.claim.TargetPath
	}

	return filepath.Join(l.claim.TargetPath, "data")
}

// write puts random bytes into the volume and returns their checksum.
func (l *life) write() [sha256.Size]byte {
	l.t.Helper()

	data := make([]byte, 8*mib)
	_, _ = rand.Read(data)

	file, err := os.OpenFile(l.dataPath(), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(l.t, err)

	defer file.Close()

	_, err = file.Write(data)
	require.NoError(l.t, err)
	require.NoError(l.t, file.Sync())

	return sha256.Sum256(data)
}

func (l *life) holds(want [sha256.Size]byte) {
	l.t.Helper()

	file, err := os.Open(l.dataPath())
	require.NoError(l.t, err)

	defer file.Close()

	data := make([]byte, 8*mib)
	_, err = io.ReadFull(file, data)
	require.NoError(l.t, err)
	require.Equal(l.t, want, sha256.Sum256(data))
}

func (l *life) usage(unit csi.VolumeUsage_Unit) *csi.VolumeUsage {
	l.t.Helper()

	for _, path := range []string{l.claim.StagingPath, l.claim.TargetPath} {
		stats, err := l.driver.NodeGetVolumeStats(l.t.Context(),
			&csi.NodeGetVolumeStatsRequest{VolumeId: l.claim.VolumeID, VolumePath: path})
		require.NoError(l.t, err)

		for _, usage := range stats.GetUsage() {
			if usage.GetUnit() == unit {
				return usage
			}
		}
	}

	require.Fail(l.t, "no usage", "unit %s", unit)

	return nil
}

// expand grows the volume while it is in use; where the kernel does not permit
// that, it is taken down and up again.
func (l *life) expand() {
	l.t.Helper()

	wanted := &csi.CapacityRange{RequiredBytes: l.kind.larger}
	answer, err := l.driver.ControllerExpandVolume(l.t.Context(),
		&csi.ControllerExpandVolumeRequest{VolumeId: l.claim.VolumeID, CapacityRange: wanted})
	require.NoError(l.t, err)
	require.Equal(l.t, l.kind.larger, answer.GetCapacityBytes())

	_, err = l.driver.NodeExpandVolume(l.t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: l.claim.VolumeID, VolumePath: l.claim.TargetPath, CapacityRange: wanted,
	})
	if status.Code(err) == codes.FailedPrecondition {
		l.t.Logf("grown unmounted instead: %v", err)
		l.down()
		l.up()

		err = nil
	}

	require.NoError(l.t, err)
}

func TestLife(t *testing.T) {
	namespace.NeedRoot(t)

	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			d := harness.Start(t)
			volume := create(t, d, k)
			volume.up()
			sum := volume.write()
			volume.holds(sum)

			before := volume.usage(csi.VolumeUsage_BYTES)
			volume.expand()
			volume.holds(sum)

			after := volume.usage(csi.VolumeUsage_BYTES)
			if k.name != "directory" {
				require.Greater(t, after.GetTotal(), before.GetTotal())
			}

			d.Restart(t)
			volume.holds(sum)
			// All three are answered from what is there.
			volume.up()
			volume.holds(sum)
			volume.down()
			require.NoDirExists(t, volume.claim.TargetPath)
			require.NoFileExists(t, volume.claim.TargetPath)

			volume.up()
			volume.holds(sum)
			volume.down()
			volume.delete()
		})
	}
}

// TestSizeIsEnforced fills a volume to the end.
func TestSizeIsEnforced(t *testing.T) {
	namespace.NeedRoot(t)

	for _, k := range kinds() {
		if k.name == "directory" {
			continue
		}

		t.Run(k.name, func(t *testing.T) {
			d := harness.Start(t)
			volume := create(t, d, k)
			volume.up()

			file, err := os.OpenFile(volume.dataPath(), os.O_WRONLY|os.O_CREATE, 0o600)
			require.NoError(t, err)

			written, err := io.Copy(file, io.LimitReader(rand.Reader, 2*k.bytes))
			err = errors.Join(err, file.Sync(), file.Close())
			require.ErrorContains(t, err, "no space left on device")
			require.LessOrEqual(t, written, k.bytes)
			volume.down()
			volume.delete()
		})
	}
}

// TestUsageIsTheVolumesOwn compares what two volumes in one pool say of
// themselves.
func TestUsageIsTheVolumesOwn(t *testing.T) {
	namespace.NeedRoot(t)

	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			d := harness.Start(t)

			volume := create(t, d, k)
			volume.up()

			if k.capability.GetBlock() != nil {
				require.Equal(t, k.bytes, volume.usage(csi.VolumeUsage_BYTES).GetTotal())
				volume.down()

				return
			}

			before := volume.usage(csi.VolumeUsage_BYTES).GetUsed()
			require.Less(t, before, int64(64*mib))
			volume.write()
			require.NoError(t, os.WriteFile(filepath.Join(volume.claim.TargetPath, "second"), []byte("x"), 0o600))
			// btrfs counts what it has committed.
			unix.Sync()

			after := volume.usage(csi.VolumeUsage_BYTES).GetUsed()
			require.InDelta(t, before+8*mib, after, mib)

			if k.name != "btrfs" {
				require.Less(t, volume.usage(csi.VolumeUsage_INODES).GetUsed(), int64(20))
			}

			volume.down()
		})
	}
}
