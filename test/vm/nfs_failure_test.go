package vm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// startInUse is a cluster with a volume that node a uses and has written and synced data to.
func startInUse(t *testing.T, mountOptions string) (*nfsCluster, *csi.Volume, *csiclient.Publication) {
	t.Helper()

	c := startNFSCluster(t, mountOptions)
	capability := csiclient.MountCapability(writer, "ext4")
	volume := c.create(t, &csi.CreateVolumeRequest{Name: "data", VolumeCapabilities: []*csi.VolumeCapability{capability}})
	onA := c.a.claim(volume, capability)
	c.use(t, c.a, onA)
	c.a.write(t, onA)

	return c, volume, onA
}

// stageWhenUnlocked repeats NodeStageVolume while the image is locked by another node.
func (n *nfsNode) stageWhenUnlocked(t *testing.T, claim *csiclient.Publication) {
	t.Helper()

	require.EventuallyWithT(t, func(attempt *assert.CollectT) {
		err := n.Stage(t.Context(), claim)
		if err != nil && status.Code(err) != codes.FailedPrecondition {
			require.NoError(t, err)
		}

		require.NoError(attempt, err)
	}, waitLimit, 100*time.Millisecond, "the server to give the lock to another client")
}

// awaitWriteError writes to a file of the volume until that fails.
func awaitWriteError(t *testing.T, file *os.File) {
	t.Helper()

	require.Eventually(t, func() bool {
		_, err := file.WriteAt([]byte("later"), 0)
		if err == nil {
			err = file.Sync()
		}

		return err != nil
	}, waitLimit, 100*time.Millisecond, "an error of a write and sync to the volume")
}

// awaitUnhealthy awaits that the driver reports a condition of the volume.
func (n *nfsNode) awaitUnhealthy(t *testing.T, claim *csiclient.Publication) {
	t.Helper()

	require.EventuallyWithT(t, func(attempt *assert.CollectT) {
		answer, err := n.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: claim.VolumeID})
		require.NoError(attempt, err)
		require.NotEmpty(attempt, answer.GetVolumeHealth().GetHealthStatuses(), "want: the volume is unhealthy")
	}, waitLimit, time.Second, "the driver to report the volume as unhealthy")
}

// TestNFSNetworkLoss cuts a node with a volume in use off, detaches the volume by force and
// uses it on another one. The lock went with the lease: the server refuses what the first node
// writes when it is back.
func TestNFSNetworkLoss(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("driver killed: %t", killed), func(t *testing.T) {
			inMachineWithErrors(t)

			c, volume, onA := startInUse(t, hardMount)
			file, err := os.OpenFile(c.a.sees(filepath.Join(onA.TargetPath, "later")), os.O_RDWR|os.O_CREATE, fileMode)
			require.NoError(t, err)

			defer file.Close()

			require.NoError(t, file.Sync())
			c.a.cut(t)
			// It stays in the memory of a: the write has no error, and is lost.
			_, err = file.WriteAt(make([]byte, mib), 0)
			require.NoError(t, err)

			if killed {
				c.a.kill(t)
			}

			onB := c.b.claim(volume, onA.Capability)
			require.NoError(t, c.controller.Detach(t.Context(), onA))
			require.NoError(t, c.controller.Attach(t.Context(), onB))
			c.b.stageWhenUnlocked(t, onB)
			require.NoError(t, c.b.Publish(t.Context(), onB))
			c.b.verify(t, onB)
			writeStream(t, c.b.data(onB)+"-of-b", nfsDataBytes)

			c.a.join(t)
			awaitWriteError(t, file)
			require.NoError(t, file.Close())

			if killed {
				c.a.serve(t)
				c.a.waitReady(t)
			}

			c.a.awaitUnhealthy(t, onA)
			require.NoError(t, c.a.Unpublish(t.Context(), onA))
			require.NoError(t, c.a.Unstage(t.Context(), onA))
			rpccode.Require(t, c.a.Stage(t.Context(), onA), codes.FailedPrecondition, "b has the image")

			c.b.verify(t, onB)
			verifyStream(t, c.b.data(onB)+"-of-b", nfsDataBytes)
			c.release(t, c.b, onB)
			run(t, "e2fsck", "-fn", c.image(volume.GetVolumeId()))
			c.use(t, c.a, onA)
			c.a.verify(t, onA)
			verifyStream(t, c.a.data(onA)+"-of-b", nfsDataBytes)
			c.release(t, c.a, onA)
			c.delete(t, volume.GetVolumeId())
			requireNothingLeft(t)
		})
	}
}

// TestNFSServerRestart restarts the server beneath an application. It waits, and the clients
// reclaim their locks.
func TestNFSServerRestart(t *testing.T) {
	inMachine(t)

	c, volume, onA := startInUse(t, hardMount)
	app := startWorkload(t, c.a.sees(filepath.Join(onA.TargetPath, "app")))

	for range 2 {
		c.server.stop(t)
		c.server.start(t)
		app.awaitRound(t)

		// The server answers after the grace period, when a has its lock again.
		onB := c.b.claim(volume, onA.Capability)
		err := c.b.Stage(t.Context(), onB)
		rpccode.Require(t, err, codes.FailedPrecondition)
	}

	app.verify(t, app.file)
	c.a.verify(t, onA)
	app.stop()
	c.release(t, c.a, onA)
	run(t, "e2fsck", "-fn", c.image(volume.GetVolumeId()))
	c.delete(t, volume.GetVolumeId())
	requireNothingLeft(t)
}

// TestNFSStaleExport replaces the exported filesystem beneath a volume in use.
func TestNFSStaleExport(t *testing.T) {
	inMachineWithErrors(t)

	c, volume, onA := startInUse(t, hardMount)
	file, err := os.OpenFile(c.a.sees(filepath.Join(onA.TargetPath, "later")), os.O_RDWR|os.O_CREATE, fileMode)
	require.NoError(t, err)

	defer file.Close()

	c.server.stop(t)
	c.server.unmount(t)
	run(t, "mkfs.xfs", "-q", "-f", setting(t, "TOUCHSTONE_VM_DISK"))
	run(t, "mount", setting(t, "TOUCHSTONE_VM_DISK"), c.server.export)
	c.server.start(t)

	awaitWriteError(t, file)
	require.NoError(t, file.Close())

	capability := []*csi.VolumeCapability{onA.Capability}
	_, err = c.controller.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "another", VolumeCapabilities: capability})
	rpccode.Require(t, err, codes.Unavailable, "a volume in a pool that is gone")
	require.NoError(t, c.a.Unpublish(t.Context(), onA))
	require.NoError(t, c.a.Unstage(t.Context(), onA))
	require.NoError(t, c.controller.Detach(t.Context(), onA))
	_, err = c.controller.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: volume.GetVolumeId()})
	rpccode.Require(t, err, codes.Unavailable, "no answer that a volume is deleted whose pool is gone")

	require.NoDirExists(t, filepath.Join(c.server.export, "images"), "the driver creates nothing in what is not its pool")
	requireNothingLeft(t)
}

// TestNFSSoftMount stops the server beneath a volume in a soft mount: the volume gets errors, and
// is whole again once it is staged again.
func TestNFSSoftMount(t *testing.T) {
	inMachineWithErrors(t)

	c, volume, onA := startInUse(t, "soft,timeo=10,retrans=1")
	file, err := os.OpenFile(c.a.sees(filepath.Join(onA.TargetPath, "later")), os.O_RDWR|os.O_CREATE, fileMode)
	require.NoError(t, err)

	defer file.Close()

	c.server.stop(t)
	awaitWriteError(t, file)
	require.NoError(t, file.Close())

	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()

	err = c.b.Stage(ctx, c.b.claim(volume, onA.Capability))
	require.Error(t, err, "want: staging fails while the server is gone")
	require.NotEqual(t, codes.DeadlineExceeded, status.Code(err), "a soft mount gives errors instead of hanging: %v", err)
	t.Logf("NodeStageVolume without a server: %v", err)

	c.server.start(t)
	require.NoError(t, c.a.Unpublish(t.Context(), onA))
	require.NoError(t, c.a.Unstage(t.Context(), onA))
	require.Eventually(t, func() bool { return c.a.Stage(t.Context(), onA) == nil }, waitLimit, time.Second,
		"the volume to be staged again")
	require.NoError(t, c.a.Publish(t.Context(), onA))
	c.a.verify(t, onA)
	c.release(t, c.a, onA)
	c.delete(t, volume.GetVolumeId())
	requireNothingLeft(t)
}
