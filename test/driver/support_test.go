package driver_test

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

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
)

const (
	readerOnly   = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	singleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	nodesRead    = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	nodesOne     = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	nodesWrite   = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER

	// secondNode is a node that only the controller knows of.
	secondNode = "second-node"
)

// awaitReady waits until the driver behind a client of the test's own is ready.
func awaitReady(t *testing.T, client *csiclient.Client) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), await.Limit)
	defer cancel()

	require.NoError(t, client.WaitReady(ctx))
}

// directoryBacked are the parameters of the volume that is cheapest to make.
func directoryBacked() map[string]string { return map[string]string{"backing": "directory"} }

// twoNodes lets the controller know a second node.
func twoNodes(c *driver.Config) { c.Nodes = []string{secondNode} }

func sharedPool(c *driver.Config) { c.Shared = true }

// fails requires the code, and that the message says each of the words.
func fails(t *testing.T, err error, want codes.Code, words ...string) {
	t.Helper()
	require.Equal(t, want.String(), status.Code(err).String(), "%v", err)

	for _, word := range words {
		require.Contains(t, status.Convert(err).Message(), word)
	}
}

// newVolume makes a volume and returns its use on this node. What the request
// lacks is filled in: a name, a writer of an ext4 volume, 64 MiB.
func newVolume(t *testing.T, d *harness.Driver, request *csi.CreateVolumeRequest) *csiclient.Publication {
	t.Helper()

	if request.GetName() == "" {
		request.Name = t.Name()
	}

	if request.GetVolumeCapabilities() == nil {
		request.VolumeCapabilities = []*csi.VolumeCapability{csiclient.MountCapability(writer, "")}
	}

	if request.GetCapacityRange() == nil {
		request.CapacityRange = &csi.CapacityRange{RequiredBytes: 64 * mib}
	}

	made, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = request.GetVolumeCapabilities()[0]

	return claim
}

func attachAndStage(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, d.Attach(t.Context(), claim))
	require.NoError(t, d.Stage(t.Context(), claim))
	t.Cleanup(func() { takeDown(t, d, claim) })
}

func bringUp(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()
	attachAndStage(t, d, claim)
	require.NoError(t, d.Publish(t.Context(), claim))
}

// takeDown holds even at the end of a test that took it down itself: all three
// calls are idempotent.
func takeDown(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, d.Unpublish(ctx, claim))
	require.NoError(t, d.Unstage(ctx, claim))
	require.NoError(t, d.Detach(ctx, claim))
}

// another is the same use of the volume at one more target path.
func another(claim *csiclient.Publication, name string) *csiclient.Publication {
	second := *claim
	second.TargetPath = filepath.Join(filepath.Dir(claim.TargetPath), name)

	return &second
}

func deleteVolume(t *testing.T, d *harness.Driver, id string) {
	t.Helper()

	_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	require.NoError(t, err)
}

// ofVolume and ofSnapshot are what a volume is to be made of.
func ofVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func ofSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func fileHolds(t *testing.T, path, want string) {
	t.Helper()

	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(got))
}

func imageOf(d *harness.Driver, id string) string {
	return filepath.Join(d.Pool(), "images", id+".img")
}

// allocated is the space that a file takes.
func allocated(t *testing.T, path string) int64 {
	t.Helper()

	var stat unix.Stat_t

	require.NoError(t, unix.Stat(path, &stat))

	return stat.Blocks * 512
}

// tree lists all of a directory tree that may not change unnoticed.
func tree(t *testing.T, dirs ...string) map[string]string {
	t.Helper()

	const worthReading = 4 * mib

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

// everything is what the driver has and knows.
func everything(t *testing.T, d *harness.Driver) map[string]string {
	t.Helper()

	found := tree(t, d.Pool(), d.Config.StateDir)
	for _, id := range listAll(t, d) {
		found["listed "+id] = ""
	}

	return found
}

func listAll(t *testing.T, d *harness.Driver) []string {
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

// nameOf makes what a table says usable in a name.
func nameOf(t *testing.T) string {
	t.Helper()

	return strings.ReplaceAll(t.Name(), "/", "-")
}
