package health_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestDamagedBackingFilesAreReported does to images and directories, while they are in use,
// what a person in the pool does by mistake.
func TestDamagedBackingFilesAreReported(t *testing.T) {
	contract(t, append(lost(), changed()...))
}

// lost are volumes whose file or directory is not to be found.
func lost() []illness {
	missing := []health.Reason{health.BackingFileMissing}

	return []illness{
		{
			name: "deleted", evented: true, strike: deleteImage, node: missing, controller: missing,
			cure: func(t *testing.T, p *sufferer) {
				// What is attached has no name any more: only a staging finds the backup.
				require.NoError(t, os.Rename(p.kept, p.image))
				restage(t, p)
			},
		},
		{
			name: "moved and moved back", evented: true, node: missing, controller: missing,
			strike: func(t *testing.T, p *sufferer) {
				p.kept = p.aside(t, p.image)
				require.NoError(t, os.Rename(p.image, p.kept))
			},
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Rename(p.kept, p.image))
			},
		},
		{
			name: "of a raw block volume, deleted", evented: true, volume: rawBlock(),
			strike: deleteImage, node: missing, controller: missing,
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Rename(p.kept, p.image))
				restage(t, p)
			},
		},
		{
			// The controller sees an image that is as large as provisioned.
			name: "replaced", evented: true, node: missing,
			strike: func(t *testing.T, p *sufferer) {
				p.kept = p.aside(t, p.image)
				copyFile(t, p.image, p.kept+".new")
				require.NoError(t, os.Link(p.image, p.kept))
				require.NoError(t, os.Rename(p.kept+".new", p.image))
			},
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Rename(p.kept, p.image))
			},
		},
		{
			name: "replaced permanently", evented: true, node: missing,
			strike: func(t *testing.T, p *sufferer) {
				harness.TakeDown(t, p.Driver, p.claim)
				copyFile(t, p.image, p.aside(t, p.image))
				restage(t, p)
				require.NoError(t, os.Rename(p.aside(t, p.image), p.image))
			},
			cure: restage,
		},
		{
			name: "directory moved and moved back", evented: true, volume: &csi.CreateVolumeRequest{Parameters: harness.DirectoryBacked()},
			node: []health.Reason{health.VolumeNotFound}, controller: []health.Reason{health.VolumeNotFound},
			strike: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Rename(directoryOf(p), p.aside(t, directoryOf(p))))
			},
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Rename(p.aside(t, directoryOf(p)), directoryOf(p)))
			},
		},
	}
}

// changed are volumes whose image is there, but not as it was.
func changed() []illness {
	truncated := []health.Reason{health.BackingFileTruncated}

	return []illness{
		{
			// The last bytes are free space; the process that truncated them has also
			// written the image.
			name: "truncated and grown back", evented: true, node: truncated, controller: truncated,
			beside: []health.Reason{health.FilesystemErrors},
			strike: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Truncate(p.image, 63*harness.MiB))
			},
			cure: func(t *testing.T, p *sufferer) {
				require.NoError(t, os.Truncate(p.image, 64*harness.MiB))
				require.Equal(t, "clean", check(t, p, "online").Verdict)
			},
		},
		{
			name: "written by a foreign program", evented: true, unpolled: true, node: []health.Reason{health.FilesystemErrors},
			strike: scribble,
			cure: func(t *testing.T, p *sufferer) {
				require.Equal(t, "clean", check(t, p, "online").Verdict)
			},
		},
		{
			name: "of a raw block volume, written by a foreign program", evented: true, unpolled: true, volume: rawBlock(),
			node: []health.Reason{health.IOErrors}, strike: scribble, cure: restage,
		},
		{
			name: "loop device gone", evented: true, volume: rawBlock(), node: []health.Reason{health.DeviceMissing},
			options: []harness.Option{numberedFrom(90_000)}, strike: func(t *testing.T, p *sufferer) { takeDevice(t, p) }, cure: restage,
		},
	}
}

// deleteImage leaves a backup that was made while the volume was not in use.
func deleteImage(t *testing.T, p *sufferer) {
	t.Helper()
	harness.TakeDown(t, p.Driver, p.claim)

	p.kept = p.aside(t, p.image)
	copyFile(t, p.image, p.kept)
	restage(t, p)
	require.NoError(t, os.Remove(p.image))
}

// scribble writes the image where it is free space, over and over: just after a
// staging a write is taken for the driver's.
func scribble(t *testing.T, p *sufferer) {
	t.Helper()

	require.EventuallyWithT(t, func(c *assert.CollectT) {
		writeAt(c, p.image, 63*harness.MiB, make([]byte, 4096))
		require.NotEmpty(c, p.ofNode(t.Context(), c).entries, "want: the overwritten block is reported")
	}, await.Limit, harness.Often, "want: the overwritten block is reported")
}

// takeDevice detaches the volume's loop device and returns its number.
func takeDevice(t *testing.T, p *sufferer) int {
	t.Helper()

	attached := harness.DevicesOf(t, p.Driver, p.claim.VolumeID)
	require.Len(t, attached, 1, "want: the volume has one device")
	require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).Detach(t.Context(), attached[0].Number))

	return attached[0].Number
}

// numberedFrom keeps the driver's loop devices apart from those of other tests,
// each of which takes the first number that is free.
func numberedFrom(number int) harness.Option {
	return func(c *driver.Config) {
		c.Node.Loops.First = number
		if c.Health.PollingOnly {
			c.Node.Loops.First += 1000
		}
	}
}

// TestReusedLoopNumberIsDetected: a raw block volume is detached, whose number the kernel then
// gives to another image: no user of the volume may get at that, and to take the volume down is not
// to detach it.
func TestReusedLoopNumberIsDetected(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, again := range map[string]func(*testing.T, *harness.Driver){
		"at once":         func(*testing.T, *harness.Driver) {},
		"after a restart": func(t *testing.T, d *harness.Driver) { d.Restart(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			i := illness{volume: rawBlock(), options: []harness.Option{numberedFrom(92_000 + 1000*len(name))}}
			p := i.admit(t, harness.EventsOnly)
			number := takeDevice(t, p)

			image, err := os.Create(filepath.Join(t.TempDir(), "another"))
			require.NoError(t, err)

			defer image.Close()

			require.NoError(t, image.Truncate(harness.MiB))

			foreign, err := loop.NewLoops(loop.LoopsOptions{}).Attach(t.Context(), image,
				loop.AttachOptions{PreferredNumber: number, AutoClear: true})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, foreign.Close()) })
			require.Equal(t, number, foreign.Number, "want: the other image gets the number")

			again(t, p.Driver)

			if name == "at once" {
				p.await(t, diagnosis{node: []health.Reason{health.DeviceMissing}, beside: []health.Reason{health.VolumeUnmounted}})
			}

			harness.RequireCode(t, p.Publish(t.Context(), harness.AnotherTarget(p.claim, "second")), codes.FailedPrecondition, "not staged")

			if name != "at once" {
				// Whose the bound node was is not known any more: a person has to see to it.
				harness.Unmount(t, p.claim.TargetPath)
			}

			restage(t, p)
			require.NotEqual(t, foreign.Path, p.device(t), "want: the volume gets another device")
			require.FileExists(t, "/sys/block/"+filepath.Base(foreign.Path)+"/loop/backing_file")
			p.awaitWell(t)
		})
	}
}

func directoryOf(p *sufferer) string { return filepath.Join(p.Pool(), "directories", p.claim.VolumeID) }
