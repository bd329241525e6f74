package health_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// inBothModes runs the test with a node beside its controller, and with one in a process of its
// own, where the volume comes from another driver. The volume is not in use.
func inBothModes(t *testing.T, request func() *csi.CreateVolumeRequest, run func(*testing.T, *sufferer)) {
	t.Helper()
	namespace.NeedRoot(t)
	t.Parallel()

	for name, mode := range map[string]driver.Mode{"all": driver.ModeAll, "node": driver.ModeNode} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, harness.InMode(mode), harness.EventsOnly)
			controller := d

			if mode == driver.ModeNode {
				controller = harness.Start(t, harness.InMode(driver.ModeController), func(c *driver.Config) { c.Pools = d.Config.Pools })
			}

			asked := request()
			asked.Name = t.Name()

			made, err := controller.CreateVolume(t.Context(), asked)
			require.NoError(t, err)

			claim := d.Claim(t, made.GetVolume().GetVolumeId())
			claim.VolumeContext, claim.Capability = made.GetVolume().GetVolumeContext(), asked.GetVolumeCapabilities()[0]
			require.NoError(t, controller.Attach(t.Context(), claim))

			p := &sufferer{Driver: d, claim: claim, image: harness.ImageOf(d, claim.VolumeID), controller: controller}
			t.Cleanup(func() { p.stopUsing(t) })
			run(t, p)
		})
	}
}

func ext4() *csi.CreateVolumeRequest { return harness.Formatted("ext4") }

// use stages and publishes the volume; stopUsing undoes that, as often as it is called.
func (p *sufferer) use(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Stage(t.Context(), p.claim))
	require.NoError(t, p.Publish(t.Context(), p.claim))
}

func (p *sufferer) stopUsing(t *testing.T) {
	t.Helper()

	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, p.Unpublish(ctx, p.claim))
	require.NoError(t, p.Unstage(ctx, p.claim))
}

// requireUnstageable requires that the volume cannot be staged, with that code, and that the node
// reports these reasons from then on.
func (p *sufferer) requireUnstageable(t *testing.T, code codes.Code, reasons ...health.Reason) {
	t.Helper()

	for range 2 {
		harness.RequireCode(t, p.Stage(t.Context(), p.claim), code)
		p.awaitNode(t, reasons...)
	}

	p.requireSteady(t)
}

// TestHealthOfAMissingImageBeforeItsStaging: the image is moved away between two pods.
func TestHealthOfAMissingImageBeforeItsStaging(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		p.use(t)
		p.stopUsing(t)

		kept := p.aside(t, p.image)
		require.NoError(t, os.Rename(p.image, kept))

		if p.Config.Mode == driver.ModeAll {
			p.awaitNode(t, health.BackingFileMissing)
		}

		p.requireUnstageable(t, codes.NotFound, health.BackingFileMissing)

		if p.Config.Mode == driver.ModeAll {
			p.Restart(t)
			p.awaitNode(t, health.BackingFileMissing)
		}

		require.NoError(t, os.Rename(kept, p.image))
		p.awaitNode(t)
		p.use(t)
		p.awaitNode(t)
	})
}

// TestHealthOfAnUnknownVolume: it is staged, and a volume is deleted that could not be staged.
func TestHealthOfAnUnknownVolume(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, harness.EventsOnly)
	claim := harness.NewVolume(t, d, ext4())
	unknown := *claim
	unknown.VolumeID = harness.UnknownVolume
	isNotFound := func(id string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			_, err := d.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: id})
			rpccode.Require(c, err, codes.NotFound)
		}, await.Limit, 10*time.Millisecond, "want: the volume is not found")
	}

	harness.RequireCode(t, d.Stage(t.Context(), &unknown), codes.NotFound)
	isNotFound(unknown.VolumeID)

	require.NoError(t, os.Remove(harness.ImageOf(d, claim.VolumeID)))

	p := &sufferer{Driver: d, claim: claim}
	p.requireUnstageable(t, codes.NotFound, health.BackingFileMissing)
	harness.DeleteVolume(t, d, claim.VolumeID)
	isNotFound(claim.VolumeID)
}

// TestAnOverwrittenFilesystemIsReportedUntilItsRepair overwrites the begin of the image of an unstaged volume, and
// repairs it.
func TestAnOverwrittenFilesystemIsReportedUntilItsRepair(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		p.use(t)
		p.stopUsing(t)

		begin := readAt(t, p.image, 8*harness.MiB)
		writeAt(t, p.image, 0, noise(8*harness.MiB))
		p.requireUnstageable(t, codes.FailedPrecondition, health.FilesystemCorrupted)

		p.Restart(t)
		p.awaitNode(t, health.FilesystemCorrupted)

		writeAt(t, p.image, 0, begin)
		p.awaitNode(t, health.FilesystemCorrupted)
		p.use(t)
		p.awaitNode(t)
	})
}

// TestHealthOfAnImageThatNeverHeldItsFilesystem has data in an image that was never staged.
func TestHealthOfAnImageThatNeverHeldItsFilesystem(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		writeAt(t, p.image, 0, noise(harness.MiB))
		p.requireUnstageable(t, codes.FailedPrecondition, health.StagingFailed)

		writeAt(t, p.image, 0, make([]byte, harness.MiB))
		p.use(t)
		p.awaitNode(t)
	})
}

// TestABlankImageThatHadAFilesystemIsReported: it is truncated to nothing and grown back, and has the
// content of a new volume.
func TestABlankImageThatHadAFilesystemIsReported(t *testing.T) {
	inBothModes(t, ext4, func(t *testing.T, p *sufferer) {
		p.use(t)
		p.stopUsing(t)

		require.NoError(t, os.Truncate(p.image, 0))
		require.NoError(t, os.Truncate(p.image, p.size()))
		p.requireUnstageable(t, codes.FailedPrecondition, health.FilesystemCorrupted)
	})
}

// TestHealthOfAnImageTruncatedWhileUnstaged cuts off the end of an image that is not in use.
func TestHealthOfAnImageTruncatedWhileUnstaged(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			inBothModes(t, func() *csi.CreateVolumeRequest { return harness.Formatted(fsType) }, func(t *testing.T, p *sufferer) {
				p.use(t)
				p.stopUsing(t)

				require.NoError(t, os.Truncate(p.image, p.size()-16*harness.MiB))
				p.awaitNode(t, health.BackingFileTruncated)
				p.requireUnstageable(t, codes.FailedPrecondition, health.BackingFileTruncated)
			})
		})
	}
}

// TestHealthOfARawImageTruncatedWhileUnstaged has only the controller know its size.
func TestHealthOfARawImageTruncatedWhileUnstaged(t *testing.T) {
	t.Parallel()

	d := harness.Start(t, harness.EventsOnly)
	p := &sufferer{Driver: d, claim: harness.NewVolume(t, d, rawBlock())}
	require.NoError(t, os.Truncate(harness.ImageOf(d, p.claim.VolumeID), harness.MiB))
	p.awaitNode(t, health.BackingFileTruncated)
}

// size is what ext4 and the others are created with.
func (p *sufferer) size() int64 {
	return harness.SizeFor(p.claim.VolumeContext["csi.storage.k8s.io/fstype"])
}

func noise(length int64) []byte {
	made := make([]byte, length)
	for i := range made {
		made[i] = byte(i*7 + i>>8 + 1)
	}

	return made
}

func readAt(t *testing.T, path string, length int64) []byte {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	content := make([]byte, length)
	_, err = file.ReadAt(content, 0)
	require.NoError(t, err)

	return content
}
