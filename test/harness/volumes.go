package harness

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// Sizes of volumes.
const (
	MiB = 1 << 20
	GiB = 1 << 30
)

// The access modes of CSI.
const (
	Writer       = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	ReaderOnly   = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	SingleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	MultiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	NodesRead    = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	NodesOne     = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	NodesWrite   = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

// SecondNode is a node that only the controller knows of (TwoNodes).
const SecondNode = "second-node"

// RequiredBytes is a capacity range without a limit.
func RequiredBytes(bytes int64) *csi.CapacityRange { return &csi.CapacityRange{RequiredBytes: bytes} }

// AwaitReady waits until the driver behind a client of the test's own is ready.
func AwaitReady(t *testing.T, client *csiclient.Client) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	require.NoError(t, client.WaitReady(ctx))
}

// DirectoryBacked are the parameters of the volume that is cheapest to make.
func DirectoryBacked() map[string]string { return map[string]string{"backing": "directory"} }

// TwoNodes lets the controller know a second node.
func TwoNodes(c *driver.Config) { c.Controller.Nodes = []string{SecondNode} }

// SharedPool declares that all nodes see the same pools.
func SharedPool(c *driver.Config) { c.Shared = true }

// RequireCode requires the code, and that the message says each of the words.
func RequireCode(t *testing.T, err error, want codes.Code, words ...string) {
	t.Helper()
	rpccode.Require(t, err, want)

	for _, word := range words {
		require.Contains(t, status.Convert(err).Message(), word)
	}
}

// NewVolume makes a volume and returns its use on this node. What the request
// lacks is filled in: a name, a writer of an ext4 volume, 64 MiB.
func NewVolume(t *testing.T, d *Driver, request *csi.CreateVolumeRequest) *csiclient.Publication {
	t.Helper()

	if request.GetName() == "" {
		request.Name = t.Name()
	}

	if request.GetVolumeCapabilities() == nil {
		request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.MountCapability(Writer, "")}
	}

	if request.GetCapacityRange() == nil {
		request.CapacityRange = &csi.CapacityRange{RequiredBytes: 64 * MiB}
	}

	made, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = request.GetVolumeCapabilities()[0]

	return claim
}

// AttachAndStage attaches and stages a volume until the test ends. Without root it skips the rest of
// the test.
func AttachAndStage(t *testing.T, d *Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, d.Attach(t.Context(), claim))
	namespace.NeedRoot(t)
	require.NoError(t, d.Stage(t.Context(), claim))
	t.Cleanup(func() { TakeDown(t, d, claim) })
}

// BringUp attaches, stages and publishes a volume until the test ends.
func BringUp(t *testing.T, d *Driver, claim *csiclient.Publication) {
	t.Helper()
	AttachAndStage(t, d, claim)
	require.NoError(t, d.Publish(t.Context(), claim))
}

// TakeDown unpublishes, unstages and detaches a volume. It succeeds even at the end of a test that took it down itself: all three
// calls are idempotent.
func TakeDown(t *testing.T, d *Driver, claim *csiclient.Publication) {
	t.Helper()

	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, d.Unpublish(ctx, claim))
	require.NoError(t, d.Unstage(ctx, claim))
	require.NoError(t, d.Detach(ctx, claim))
}

// AnotherTarget is the same use of the volume at one more target path.
func AnotherTarget(claim *csiclient.Publication, name string) *csiclient.Publication {
	second := *claim
	second.TargetPath = filepath.Join(filepath.Dir(claim.TargetPath), name)

	return &second
}

// DeleteVolume requires that the volume is deleted.
func DeleteVolume(t *testing.T, d *Driver, id string) {
	t.Helper()

	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	require.NoError(t, err)
}

// FromVolume is the content source of a clone.
func FromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

// FromSnapshot is the content source of a restored volume.
func FromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

// WriteFile writes text into a file.
func WriteFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// RequireFile requires that a file holds just that text.
func RequireFile(t *testing.T, path, want string) {
	t.Helper()

	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

// ImageOf is the path of a volume's image in the default pool.
func ImageOf(d *Driver, id string) string {
	return filepath.Join(d.Pool(), "images", id+".img")
}

// AllocatedBytes is the space that a file takes.
func AllocatedBytes(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Stat_t

	require.NoError(t, unix.Stat(path, &stat))

	return stat.Blocks * 512
}

// Tree lists all of a directory tree that may not change unnoticed.
func Tree(t *testing.T, dirs ...string) map[string]string {
	t.Helper()

	const worthReading = 4 * MiB

	found := map[string]string{}

	for _, dir := range dirs {
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}

			info, err := entry.Info()
			if err != nil {
				return err
			}

			reported := fmt.Sprintf("%s %d", info.Mode(), info.Size())

			switch {
			case info.IsDir():
				reported = info.Mode().String()
			case info.Mode().IsRegular() && info.Size() <= worthReading:
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}

				sum := sha256.Sum256(content)
				reported += " " + hex.EncodeToString(sum[:])
			}

			found[path] = reported

			return nil
		}))
	}

	return found
}

// Everything is what the driver has and knows.
func Everything(t *testing.T, d *Driver) map[string]string {
	t.Helper()

	found := Tree(t, d.Pool(), d.Config.StateDir)
	for _, id := range ListAll(t, d) {
		found["listed "+id] = ""
	}

	return found
}

// ListAll returns the ids of all volumes, page by page.
func ListAll(t *testing.T, d *Driver) []string {
	t.Helper()

	var ids []string

	token := ""

	for {
		page, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: token})
		require.NoError(t, err)

		for _, entry := range page.GetEntries() {
			ids = append(ids, entry.GetVolume().GetVolumeId())
		}

		if token = page.GetNextToken(); token == "" {
			return ids
		}
	}
}

// NameOf makes what a table says usable in a name.
func NameOf(t *testing.T) string {
	t.Helper()

	return strings.ReplaceAll(t.Name(), "/", "-")
}
