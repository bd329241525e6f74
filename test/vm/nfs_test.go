package vm_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	hardMount = "hard,timeo=50"
	writer    = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	readers   = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
)

// nfsCluster is a controller and two nodes, each a client of its own of one NFS 4.2 server, whose
// export is an XFS with reflinks.
type nfsCluster struct {
	server           *nfsServer
	controller, a, b *nfsNode
}

func startNFSCluster(t *testing.T, mountOptions string) *nfsCluster {
	t.Helper()

	server := startNFSServer(t, mountDisk(t, "xfs"))

	return &nfsCluster{
		server:     server,
		controller: server.startNode(t, "controller", mountOptions, "--mode=controller", "--nodes=a,b"),
		a:          server.startNode(t, "a", mountOptions, "--mode=node"),
		b:          server.startNode(t, "b", mountOptions, "--mode=node"),
	}
}

func (c *nfsCluster) create(t *testing.T, request *csi.CreateVolumeRequest) *csi.Volume {
	t.Helper()

	if request.GetCapacityRange() == nil {
		request.CapacityRange = &csi.CapacityRange{RequiredBytes: 64 * mib}
	}

	created, err := c.controller.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	return created.GetVolume()
}

func (c *nfsCluster) delete(t *testing.T, volumeID string) {
	t.Helper()

	// After a failure of the server each process opens its pool again in its own time.
	require.EventuallyWithT(t, func(now *assert.CollectT) {
		_, err := c.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: volumeID})
		assert.NoError(now, err)
	}, waitLimit, time.Second, "want: the volume is deleted")
	require.NoFileExists(t, c.image(volumeID))
}

// image is the path of a volume's image on the server.
func (c *nfsCluster) image(volumeID string) string {
	return filepath.Join(c.server.export, "images", volumeID+".img")
}

// claim is a volume's publication on the node.
func (n *nfsNode) claim(volume *csi.Volume, capability *csi.VolumeCapability) *csiclient.Publication {
	return &csiclient.Publication{
		VolumeID: volume.GetVolumeId(), VolumeContext: volume.GetVolumeContext(), Capability: capability, NodeID: n.name,
		StagingPath: filepath.Join(n.kubelet(), "staging", volume.GetVolumeId()),
		TargetPath:  filepath.Join(n.kubelet(), "pods", volume.GetVolumeId()),
	}
}

// use attaches, stages and publishes; release undoes it.
func (c *nfsCluster) use(t *testing.T, n *nfsNode, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, c.controller.Attach(t.Context(), claim))
	require.NoError(t, n.Stage(t.Context(), claim))
	require.NoError(t, n.Publish(t.Context(), claim))
}

func (c *nfsCluster) release(t *testing.T, n *nfsNode, claim *csiclient.Publication) {
	t.Helper()
	require.NoError(t, n.Unpublish(t.Context(), claim))
	require.NoError(t, n.Unstage(t.Context(), claim))
	require.NoError(t, c.controller.Detach(t.Context(), claim))
}

// data is the file, or block device, of a publication that has the volume's data.
func (n *nfsNode) data(claim *csiclient.Publication) string {
	if claim.Capability.GetBlock() != nil {
		return n.sees(claim.TargetPath)
	}

	return n.sees(filepath.Join(claim.TargetPath, "data"))
}

const nfsDataBytes = 4 * mib

func (n *nfsNode) write(t *testing.T, claim *csiclient.Publication) {
	t.Helper()

	if claim.Capability.GetBlock() == nil {
		writeStream(t, n.data(claim), nfsDataBytes)

		return
	}

	device, err := os.OpenFile(n.data(claim), os.O_WRONLY, 0)
	require.NoError(t, err)

	defer device.Close()

	block := make([]byte, blockBytes)
	fill(block, 1)
	_, err = device.Write(block)
	require.NoError(t, err)
	require.NoError(t, device.Sync())
}

func (n *nfsNode) verify(t *testing.T, claim *csiclient.Publication) {
	t.Helper()

	if claim.Capability.GetBlock() == nil {
		verifyStream(t, n.data(claim), nfsDataBytes)

		return
	}

	device, err := os.Open(n.data(claim))
	require.NoError(t, err)

	defer device.Close()

	written, want := make([]byte, blockBytes), make([]byte, blockBytes)
	fill(want, 1)
	_, err = device.Read(written)
	require.NoError(t, err)
	require.Equal(t, want, written, "what the other node wrote")
}

// requireNothingLeft searches for what outlives the volumes.
func requireNothingLeft(t *testing.T) {
	t.Helper()

	attached, err := filepath.Glob(attachedLoops)
	require.NoError(t, err)
	require.Empty(t, attached, "loop devices that are left")

	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("ext4"))
	require.NoError(t, err)
	require.Empty(t, mounts, "mounts that are left")
}

// TestNFSLifecycle moves volumes between two clients, and has both want one of them.
func TestNFSLifecycle(t *testing.T) {
	inMachine(t)

	c := startNFSCluster(t, hardMount)

	for name, test := range map[string]struct {
		capability *csi.VolumeCapability
		parameters map[string]string
	}{
		"ext4":      {csiclient.MountCapability(writer, "ext4"), nil},
		"block":     {csiclient.BlockCapability(writer), nil},
		"directory": {csiclient.MountCapability(writer, ""), map[string]string{"backing": "directory"}},
	} {
		t.Run(name, func(t *testing.T) {
			volume := c.create(t, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{test.capability}, Parameters: test.parameters,
			})
			onA, onB := c.a.claim(volume, test.capability), c.b.claim(volume, test.capability)
			c.use(t, c.a, onA)
			c.a.write(t, onA)

			err := c.controller.Attach(t.Context(), onB)
			rpccode.Require(t, err, codes.FailedPrecondition)

			if name != "directory" {
				// A CO that ignores the refusal is refused by the lock.
				err = c.b.Stage(t.Context(), onB)
				rpccode.Require(t, err, codes.FailedPrecondition)
			}

			c.release(t, c.a, onA)
			c.use(t, c.b, onB)
			c.b.verify(t, onB)
			c.release(t, c.b, onB)
			c.delete(t, volume.GetVolumeId())
			requireNothingLeft(t)
		})
	}

	t.Run("readers", c.testReaders)
	t.Run("copies", c.testCopies)
}

// testReaders has two clients read one image, which excludes a writer on either.
func (c *nfsCluster) testReaders(t *testing.T) {
	alone, shared := csiclient.MountCapability(writer, "ext4"), csiclient.MountCapability(readers, "ext4")
	volume := c.create(t, &csi.CreateVolumeRequest{Name: "readers", VolumeCapabilities: []*csi.VolumeCapability{alone}})
	onA := c.a.claim(volume, alone)
	c.use(t, c.a, onA)
	c.a.write(t, onA)
	c.release(t, c.a, onA)

	readA, readB := c.a.claim(volume, shared), c.b.claim(volume, shared)
	c.use(t, c.a, readA)
	c.use(t, c.b, readB)
	c.a.verify(t, readA)
	c.b.verify(t, readB)
	c.release(t, c.a, readA)

	err := c.a.Stage(t.Context(), onA)
	rpccode.Require(t, err, codes.FailedPrecondition)
	c.release(t, c.b, readB)
	c.delete(t, volume.GetVolumeId())
}

// testCopies has the server clone: a copy shares all its blocks with its source.
func (c *nfsCluster) testCopies(t *testing.T) {
	capability := csiclient.MountCapability(writer, "ext4")
	request := &csi.CreateVolumeRequest{Name: "source", VolumeCapabilities: []*csi.VolumeCapability{capability}}
	source := c.create(t, request)
	onA := c.a.claim(source, capability)
	c.use(t, c.a, onA)
	c.a.write(t, onA)
	c.release(t, c.a, onA)

	ext4, err := filesystem.ByName(filesystem.Ext4, filesystem.NewRunner())
	require.NoError(t, err)
	_, err = ext4.ForceCheck(t.Context(), c.a.sees(filepath.Join(c.a.pool, "images", source.GetVolumeId()+".img")))
	require.NoError(t, err, "e2fsck locks the file on NFS")

	before := usedBytes(t, c.server.export)
	snapshot, err := c.controller.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		SourceVolumeId: source.GetVolumeId(), Name: "snapshot",
	})
	require.NoError(t, err)
	require.True(t, snapshot.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")

	for name, from := range map[string]*csi.VolumeContentSource{
		"restored": csiclient.FromSnapshot(snapshot.GetSnapshot().GetSnapshotId()),
		"cloned":   csiclient.FromVolume(source.GetVolumeId()),
	} {
		volume := c.create(t, &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: request.GetVolumeCapabilities(), VolumeContentSource: from,
		})
		require.Less(t, usedBytes(t, c.server.export)-before, nfsDataBytes, "the copies share the data's blocks")

		onB := c.b.claim(volume, capability)
		c.use(t, c.b, onB)
		c.b.verify(t, onB)
		c.release(t, c.b, onB)
		c.delete(t, volume.GetVolumeId())
	}

	_, err = c.controller.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{
		SnapshotId: snapshot.GetSnapshot().GetSnapshotId(),
	})
	require.NoError(t, err)
	c.delete(t, source.GetVolumeId())
}

// usedBytes is what the filesystem has allocated once everything is written back.
func usedBytes(t *testing.T, path string) int64 {
	t.Helper()

	unix.Sync()

	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &stat))

	return int64(stat.Blocks-stat.Bfree) * stat.Bsize
}
