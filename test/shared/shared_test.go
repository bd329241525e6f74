package shared_test

import (
	"crypto/rand"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const mib = 1 << 20

func TestMain(m *testing.M) {
	faults.ServeIfAsked()
	os.Exit(namespace.Main(m))
}

// cluster is a controller and two nodes over one pool.
type cluster struct {
	controller, a, b *process
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	namespace.NeedRoot(t)

	binary, pool := build(t), t.TempDir()

	t.Cleanup(func() { harness.CheckNothingIsLeft(t, pool) })

	return &cluster{
		controller: start(t, binary, pool, "controller", "controller", "--nodes", "a,b"),
		a:          start(t, binary, pool, "node", "a"),
		b:          start(t, binary, pool, "node", "b"),
	}
}

func (c *cluster) create(t *testing.T, capability *csi.VolumeCapability, parameters map[string]string) *csi.Volume {
	t.Helper()

	made, err := c.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: t.Name(), VolumeCapabilities: []*csi.VolumeCapability{capability}, Parameters: parameters,
		CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib},
	})
	require.NoError(t, err)

	return made.GetVolume()
}

func (c *cluster) delete(t *testing.T, made *csi.Volume) {
	t.Helper()

	_, err := c.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: made.GetVolumeId()})
	require.NoError(t, err)
}

func claim(node *process, made *csi.Volume, capability *csi.VolumeCapability) *csiclient.Publication {
	return &csiclient.Publication{
		VolumeID: made.GetVolumeId(), VolumeContext: made.GetVolumeContext(), Capability: capability, NodeID: node.nodeID,
		StagingPath: filepath.Join(node.kubelet, "staging"), TargetPath: filepath.Join(node.kubelet, "pod", "volume"),
	}
}

func (c *cluster) up(t *testing.T, node *process, wanted *csiclient.Publication) {
	t.Helper()
	require.NoError(t, c.controller.Attach(t.Context(), wanted))
	require.NoError(t, node.Stage(t.Context(), wanted))
	require.NoError(t, node.Publish(t.Context(), wanted))
}

func (c *cluster) down(t *testing.T, node *process, wanted *csiclient.Publication) {
	t.Helper()
	require.NoError(t, node.Unpublish(t.Context(), wanted))
	require.NoError(t, node.Unstage(t.Context(), wanted))
	require.NoError(t, c.controller.Detach(t.Context(), wanted))
}

// data returns where the volume's bytes are read and written.
func data(node *process, wanted *csiclient.Publication) string {
	if wanted.Capability.GetBlock() != nil {
		return node.inside(wanted.TargetPath)
	}

	return node.inside(filepath.Join(wanted.TargetPath, "data"))
}

func write(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()

	content := make([]byte, mib)
	_, _ = rand.Read(content)

	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(t, err)

	_, err = file.Write(content)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
	require.NoError(t, file.Close())

	return sha256.Sum256(content)
}

func read(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	content := make([]byte, mib)
	_, err = file.Read(content)
	require.NoError(t, err)

	return sha256.Sum256(content)
}

// TestVolumeMovesWithItsData attaches to one node after the other, and never to
// both.
func TestVolumeMovesWithItsData(t *testing.T) {
	const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER

	c := newCluster(t)

	for name, test := range map[string]struct {
		capability *csi.VolumeCapability
		parameters map[string]string
	}{
		"ext4":      {csiclient.MountCapability(writer, "ext4"), nil},
		"block":     {csiclient.BlockCapability(writer), nil},
		"directory": {csiclient.MountCapability(writer, ""), map[string]string{"backing": "directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			made := c.create(t, test.capability, test.parameters)
			require.Empty(t, made.GetAccessibleTopology(), "it is reached from everywhere")

			onA, onB := claim(c.a, made, test.capability), claim(c.b, made, test.capability)
			c.up(t, c.a, onA)
			sum := write(t, data(c.a, onA))

			err := c.controller.Attach(t.Context(), onB)
			rpccode.Require(t, err, codes.FailedPrecondition)
			errtext.Require(t, err, "node a")

			if name != "directory" {
				// A CO that ignores the refusal does not get it either.
				require.Error(t, c.b.Stage(t.Context(), onB), "NodeStageVolume on node b of a volume that is in use on node a")
			}

			c.down(t, c.a, onA)
			c.up(t, c.b, onB)
			require.Equal(t, sum, read(t, data(c.b, onB)))
			c.down(t, c.b, onB)
			c.delete(t, made)
		})
	}
}

// TestSeveralNodesAtOnce uses the modes that allow it.
func TestSeveralNodesAtOnce(t *testing.T) {
	c := newCluster(t)

	t.Run("writers of a directory", func(t *testing.T) {
		capability := csiclient.MountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")
		made := c.create(t, capability, map[string]string{"backing": "directory"})
		onA, onB := claim(c.a, made, capability), claim(c.b, made, capability)

		c.up(t, c.a, onA)
		c.up(t, c.b, onB)

		sum := write(t, data(c.a, onA))
		require.Equal(t, sum, read(t, data(c.b, onB)))
		sum = write(t, data(c.b, onB))
		require.Equal(t, sum, read(t, data(c.a, onA)))

		c.down(t, c.a, onA)
		c.down(t, c.b, onB)
		c.delete(t, made)
	})

	t.Run("readers of an image", func(t *testing.T) {
		writer := csiclient.MountCapability(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")
		readers := csiclient.MountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "ext4")
		made := c.create(t, writer, nil)

		alone := claim(c.a, made, writer)
		c.up(t, c.a, alone)
		sum := write(t, data(c.a, alone))
		c.down(t, c.a, alone)

		onA, onB := claim(c.a, made, readers), claim(c.b, made, readers)
		c.up(t, c.a, onA)
		c.up(t, c.b, onB)
		require.Equal(t, sum, read(t, data(c.a, onA)))
		require.Equal(t, sum, read(t, data(c.b, onB)))
		errtext.Require(t, os.WriteFile(data(c.b, onB), nil, 0o600), "read-only")

		c.down(t, c.a, onA)
		c.down(t, c.b, onB)
		c.delete(t, made)
	})

	t.Run("writers of an image", func(t *testing.T) {
		_, err := c.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: t.Name(),
			VolumeCapabilities: []*csi.VolumeCapability{
				csiclient.MountCapability(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "ext4"),
			},
		})
		rpccode.Require(t, err, codes.InvalidArgument)
		errtext.Require(t, err, "directory")
	})
}
