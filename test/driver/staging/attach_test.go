package staging_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// slotOf attaches the volume and returns the slot that the driver gave it.
func slotOf(t *testing.T, l *harness.Lifecycle) string {
	t.Helper()
	require.NoError(t, l.Driver.Attach(t.Context(), l.Claim))

	return l.Claim.PublishContext["slot"]
}

func several(t *testing.T, d *harness.Driver, count int) []*harness.Lifecycle {
	t.Helper()

	volumes := make([]*harness.Lifecycle, count)
	for i := range volumes {
		made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name:               fmt.Sprintf("%s-%d", t.Name(), i),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
			CapacityRange:      &csi.CapacityRange{RequiredBytes: harness.MiB},
		})
		require.NoError(t, err)

		claim := d.Claim(t, made.GetVolume().GetVolumeId())
		claim.VolumeContext, claim.Capability = made.GetVolume().GetVolumeContext(), csiclient.BlockCapability(harness.Writer)
		volumes[i] = &harness.Lifecycle{T: t, Driver: d, Kind: harness.Kind{Capability: claim.Capability}, Claim: claim}
	}

	return volumes
}

// TestAttachmentsHaveTheLowestFreeSlot of their node.
func TestAttachmentsHaveTheLowestFreeSlot(t *testing.T) {
	d := harness.Start(t, func(c *driver.Config) { c.Controller.Nodes = []string{"another"} })
	volumes := several(t, d, 6)

	for i, volume := range volumes[:4] {
		require.Equal(t, strconv.Itoa(i), slotOf(t, volume))
		require.Equal(t, strconv.Itoa(i), slotOf(t, volume), "the same answer to the same call")
	}

	require.NoError(t, d.Detach(t.Context(), volumes[1].Claim))
	require.NoError(t, d.Detach(t.Context(), volumes[2].Claim))
	require.Equal(t, "1", slotOf(t, volumes[4]))
	d.Restart(t)
	require.Equal(t, "0", slotOf(t, volumes[0]))
	require.Equal(t, "1", slotOf(t, volumes[4]))
	require.Equal(t, "2", slotOf(t, volumes[1]))
	require.Equal(t, "4", slotOf(t, volumes[5]))

	// Another node counts for itself.
	volumes[2].Claim.NodeID = "another"
	require.Equal(t, "0", slotOf(t, volumes[2]))
}

// TestOccupiedDeviceNumbersAreSkipped: another program has the numbers of slots.
func TestOccupiedDeviceNumbersAreSkipped(t *testing.T) {
	namespace.NeedRoot(t)

	// A range of its own: other drivers are tested on this machine.
	const first = 500_000

	d := harness.Start(t, func(c *driver.Config) { c.Node.Loops.First = first })
	volumes := several(t, d, 3)

	foreign := loop.NewLoops(loop.LoopsOptions{})
	occupied := occupy(t, foreign, first)

	numberOf := func(volume *harness.Lifecycle) int {
		volume.Up()

		status, err := foreign.Find(openImage(t, d, volume.Claim.VolumeID))
		require.NoError(t, err)
		require.Len(t, status, 1, "want: the image has one device")

		return status[0].Number
	}

	require.Equal(t, first+1, numberOf(volumes[0]), "slot 0 is occupied, 1 is the next")
	require.Equal(t, first+2, numberOf(volumes[1]), "slot 1 went to slot 0")
	volumes[0].Down()
	require.NoError(t, foreign.Detach(t.Context(), occupied))
	require.Equal(t, first, numberOf(volumes[0]), "slot 0 has its number again")
	volumes[1].Down()
	require.Equal(t, first+1, numberOf(volumes[2]), "want: the next volume keeps its number")

	volumes[0].Down()
	volumes[2].Down()
}

// occupy attaches an image of another program to the number.
func occupy(t *testing.T, loops *loop.Loops, number int) int {
	t.Helper()

	image, err := os.Create(filepath.Join(t.TempDir(), "foreign"))
	require.NoError(t, err)
	require.NoError(t, image.Truncate(harness.MiB))

	defer image.Close()

	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{PreferredNumber: number})
	require.NoError(t, err)
	require.NoError(t, device.Close())
	t.Cleanup(func() { require.NoError(t, loops.Detach(context.Background(), device.Number)) })
	require.Equal(t, number, device.Number, "the number is free before the test")

	return device.Number
}

func openImage(t *testing.T, d *harness.Driver, volumeID string) *os.File {
	t.Helper()

	image, err := os.Open(filepath.Join(d.Pool(), "images", volumeID+".img"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = image.Close() })

	return image
}

// TestAttachAndDetachAtOnce has both asked for the same volume by many, in both
// orders: the last answer counts, and no slot is lost.
func TestAttachAndDetachAtOnce(t *testing.T) {
	const (
		rounds  = 50
		callers = 8
	)

	d := harness.Start(t)
	volume := several(t, d, 1)[0]

	for round := range rounds {
		var all sync.WaitGroup

		for caller := range callers {
			all.Go(func() {
				claim := *volume.Claim

				call := d.Attach
				if (round+caller)%2 == 0 {
					call = d.Detach
				}

				if err := call(t.Context(), &claim); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}

		all.Wait()

		// Whatever the order was, a call that nothing contradicts decides.
		if round%2 == 0 {
			require.Equal(t, "0", slotOf(t, volume))
			require.Equal(t, []string{harness.NodeID}, publishedNodes(t, d, volume.Claim.VolumeID))
		} else {
			require.NoError(t, d.Detach(t.Context(), volume.Claim))
			require.Empty(t, publishedNodes(t, d, volume.Claim.VolumeID), "want: a detached volume is published nowhere")
		}
	}
}

func publishedNodes(t *testing.T, d *harness.Driver, volumeID string) []string {
	t.Helper()

	answer, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: volumeID})
	require.NoError(t, err)

	return answer.GetStatus().GetPublishedNodeIds()
}

func TestAttachNeedsAnExistingNode(t *testing.T) {
	d := harness.Start(t, func(c *driver.Config) { c.Controller.Nodes = []string{"another"} })
	volume := several(t, d, 1)[0]

	volume.Claim.NodeID = "a-typing-error"
	harness.RequireCode(t, d.Attach(t.Context(), volume.Claim), codes.NotFound)

	volume.Claim.NodeID = "another"
	require.NoError(t, d.Attach(t.Context(), volume.Claim))
	require.NoError(t, d.Detach(t.Context(), volume.Claim))
}
