package pools_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// hostDirectory is where the embedded pool's image lies, and poolImage the image.
func hostDirectory(d *harness.Driver) string { return d.Config.Pools["default"] }
func poolImage(d *harness.Driver) string     { return filepath.Join(hostDirectory(d), "pool.img") }

// onEachFilesystem runs a test once for each filesystem that an embedded pool may have.
func onEachFilesystem(t *testing.T, test func(t *testing.T, kind string)) {
	t.Helper()
	namespace.NeedRoot(t)

	for _, kind := range embedded.Filesystems() {
		t.Run(kind, func(t *testing.T) { test(t, kind) })
	}
}

func TestLifecycleInAnEmbeddedPool(t *testing.T) { onEachFilesystem(t, testLifecycleInAnEmbeddedPool) }

func testLifecycleInAnEmbeddedPool(t *testing.T, kind string) {
	d := harness.StartProcess(t, harness.EmbeddedPool(2*harness.GiB), harness.PoolFilesystem(kind))
	volumes := map[*harness.Lifecycle][32]byte{}

	for _, k := range harness.Kinds() {
		t.Log(k.Name)

		volume := harness.NewLifecycle(t, d, k)
		volume.Up()
		volumes[volume] = volume.Write()
		volume.Expand()
	}

	each := func(do func(volume *harness.Lifecycle, sum [32]byte)) {
		t.Helper()

		for volume, sum := range volumes {
			t.Log(volume.Kind.Name)
			do(volume, sum)
		}
	}

	// In use all the time, while the pool is adopted and grows.
	d.Restart(t)
	each((*harness.Lifecycle).Holds)
	d.Kill(t)
	each((*harness.Lifecycle).Holds)
	d.Restart(t, harness.EmbeddedPool(3*harness.GiB))
	each((*harness.Lifecycle).Holds)
	d.Restart(t, harness.EmbeddedPool(0))
	each((*harness.Lifecycle).Holds)

	each(func(volume *harness.Lifecycle, _ [32]byte) {
		volume.Up()
		volume.Down()
	})

	// Now it is unused, so it goes and comes back.
	d.Stop()
	require.Equal(t, []string{"mounted", "pool.img"}, names(t, hostDirectory(d)))
	require.Empty(t, names(t, d.Pool()), "want: nothing is mounted at the pool of a stopped driver")
	d.Restart(t)

	each(func(volume *harness.Lifecycle, sum [32]byte) {
		volume.Up()
		volume.Holds(sum)
		volume.Down()
		harness.DeleteVolume(t, d, volume.Claim.VolumeID)
	})

	harness.RequireEntries(t, d, map[string]int{"images": 0, "directories": 0, "scratch": 0})
}

func names(t *testing.T, directory string) []string {
	t.Helper()

	entries, err := os.ReadDir(directory)
	require.NoError(t, err)

	found := make([]string, 0, len(entries))
	for _, entry := range entries {
		found = append(found, entry.Name())
	}

	return found
}

// TestRebootOfAnEmbeddedPool: the kernel's mounts and devices are gone, as after a reboot.
func TestRebootOfAnEmbeddedPool(t *testing.T) { onEachFilesystem(t, testRebootOfAnEmbeddedPool) }

func testRebootOfAnEmbeddedPool(t *testing.T, kind string) {
	d := harness.StartProcess(t, harness.EmbeddedPool(harness.GiB), harness.PoolFilesystem(kind))
	volumes := map[*harness.Lifecycle][32]byte{}

	for _, k := range harness.Kinds() {
		if k.Name != "ext4" && k.Name != "directory" && k.Name != "block" {
			continue
		}

		t.Run(k.Name, func(t *testing.T) {
			volume := harness.NewLifecycle(t, d, k)
			volume.Up()
			volumes[volume] = volume.Write()
		})
	}

	d.DieStarting(t, 0)

	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(d.Root))
	require.NoError(t, err)

	loops := loop.NewLoops(loop.LoopsOptions{})
	attached, err := loops.Attachments()
	require.NoError(t, err)

	for _, each := range slices.Backward(mounts) {
		if each.Mountpoint != d.Pool() {
			require.NoError(t, unix.Unmount(each.Mountpoint, 0))
		}
	}

	for _, each := range attached {
		if filepath.Dir(each.BackingPath) == filepath.Join(d.Pool(), "images") {
			require.NoError(t, loops.Detach(t.Context(), each.Number))
		}
	}

	require.NoError(t, unix.Unmount(d.Pool(), 0))
	d.Restart(t)

	for volume, sum := range volumes {
		volume.T = t
		volume.Up()
		volume.Holds(sum)
		volume.Down()
		harness.DeleteVolume(t, d, volume.Claim.VolumeID)
	}
}

func TestSpaceOfADeletedVolumeReturnsToTheHost(t *testing.T) {
	onEachFilesystem(t, testSpaceOfADeletedVolumeReturnsToTheHost)
}

func testSpaceOfADeletedVolumeReturnsToTheHost(t *testing.T, kind string) {
	d := harness.Start(t, harness.EmbeddedPool(harness.GiB), harness.PoolFilesystem(kind))
	before := harness.AllocatedBytes(t, poolImage(d))

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, CapacityRange: harness.RequiredBytes(128 * harness.MiB),
	})
	harness.BringUp(t, d, claim)

	device, err := os.OpenFile(claim.TargetPath, os.O_WRONLY, 0)
	require.NoError(t, err)

	for range 100 {
		block := make([]byte, harness.MiB)
		block[0] = 1
		_, err = device.Write(block)
		require.NoError(t, err)
	}

	require.NoError(t, device.Sync())
	require.NoError(t, device.Close())
	require.Greater(t, harness.AllocatedBytes(t, poolImage(d)), before+90*harness.MiB, "want: the written data is allocated on the host")

	harness.TakeDown(t, d, claim)
	harness.DeleteVolume(t, d, claim.VolumeID)

	require.Eventually(t, func() bool {
		require.NoError(t, harness.Syncfs(d.Pool()))

		return harness.AllocatedBytes(t, poolImage(d)) < before+10*harness.MiB
	}, time.Minute, 10*time.Millisecond, "want: the deleted data is freed on the host")
}

// TestSnapshotInAnEmbeddedPoolSharesItsBlocks on a host that can't reflink.
func TestSnapshotInAnEmbeddedPoolSharesItsBlocks(t *testing.T) {
	onEachFilesystem(t, testSnapshotInAnEmbeddedPoolSharesItsBlocks)
}

func testSnapshotInAnEmbeddedPoolSharesItsBlocks(t *testing.T, kind string) {
	d := harness.Start(t, harness.EmbeddedPool(harness.GiB), harness.PoolFilesystem(kind))
	volume := harness.NewLifecycle(t, d, harness.Kinds()[0])
	volume.Up()
	sum := volume.Write()
	require.NoError(t, harness.Syncfs(volume.Claim.TargetPath))
	require.NoError(t, harness.Syncfs(d.Pool()))

	before := harness.AllocatedBytes(t, poolImage(d))
	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: volume.Claim.VolumeID})
	require.NoError(t, err)
	require.True(t, made.GetSnapshot().GetReadyToUse(), "want: the snapshot is ready to use")
	require.NoError(t, harness.Syncfs(d.Pool()))
	require.Less(t, harness.AllocatedBytes(t, poolImage(d)), before+4*harness.MiB, "want: the snapshot shares the data of its volume")
	volume.Holds(sum)
	volume.Down()

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
	require.NoError(t, err)
	volume.Delete()
}

// TestVolumesMoveIntoAnEmbeddedPool as docs/embedded-pool.md describes.
func TestVolumesMoveIntoAnEmbeddedPool(t *testing.T) {
	namespace.NeedRoot(t)

	text, err := os.ReadFile("../../../docs/embedded-pool.md")
	require.NoError(t, err)

	script := regexp.MustCompile("(?s)```sh own\n(POOL=.*?)```").FindStringSubmatch(string(text))
	require.Len(t, script, 2, "want: the page has the script")

	d := harness.Start(t)
	volumes := map[*harness.Lifecycle][32]byte{}

	for _, k := range harness.Kinds() {
		if k.Name != "ext4" && k.Name != "directory" && k.Name != "block" {
			continue
		}

		t.Run(k.Name, func(t *testing.T) {
			volume := harness.NewLifecycle(t, d, k)
			volume.Up()
			volumes[volume] = volume.Write()
			volume.Down()
		})
	}

	// With its volumes, an ordinary pool stays one.
	d.Restart(t, harness.EmbeddedPool(harness.GiB))
	unreachablePool(t, d, "is in the way")
	d.Stop()

	moved := regexp.MustCompile("(?m)^(POOL|SIZE)=.*$").ReplaceAllString(script[1], "")
	command := child.Command(t, "sh", "-euc", moved)
	command.Env = append(os.Environ(), "POOL="+hostDirectory(d), "SIZE=1G")
	output, err := command.CombinedOutput()
	require.NoError(t, err, "%s", output)

	d.Restart(t, harness.EmbeddedPool(harness.GiB))
	require.NotEmpty(t, names(t, d.Pool()), "want: the volumes are in the embedded pool")

	for volume, sum := range volumes {
		volume.T = t
		volume.Up()
		volume.Holds(sum)
		volume.Down()
		harness.DeleteVolume(t, d, volume.Claim.VolumeID)
	}
}

// TestCapacityOfAnEmbeddedPool is what its host can back, however large it is.
func TestCapacityOfAnEmbeddedPool(t *testing.T) { onEachFilesystem(t, testCapacityOfAnEmbeddedPool) }

func testCapacityOfAnEmbeddedPool(t *testing.T, kind string) {
	host := t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", host, "tmpfs", 0, "size=600m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(host, 0)) })

	d := harness.Start(t, harness.EmbeddedPool(harness.GiB), harness.PoolFilesystem(kind), func(c *driver.Config) { c.Pools["default"] = host })

	capacity := func() int64 {
		answer, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		require.NoError(t, err)

		return answer.GetAvailableCapacity()
	}

	before := capacity()
	require.Greater(t, before, int64(400*harness.MiB), "want: the pool has the free space of its image")
	require.Less(t, before, int64(600*harness.MiB), "not what the filesystem inside calls free")

	// Thick provisioning takes from the host's space, which the image has
	// not got yet.
	thick := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "thick", CapacityRange: harness.RequiredBytes(128 * harness.MiB), Parameters: map[string]string{"provisioning": "thick"},
	})
	require.InDelta(t, before-128*harness.MiB, capacity(), 16*harness.MiB, "want: the thick volume takes its size")

	// Other files on the host count.
	require.NoError(t, os.WriteFile(filepath.Join(host, "ballast"), make([]byte, 300*harness.MiB), 0o600))
	require.Less(t, capacity(), before-400*harness.MiB, "want: other files of the host take what they need")

	_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "too large", CapacityRange: harness.RequiredBytes(400 * harness.MiB),
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	harness.RequireCode(t, err, codes.ResourceExhausted)

	require.NoError(t, os.Remove(filepath.Join(host, "ballast")))
	harness.DeleteVolume(t, d, thick.VolumeID)
	// The filesystem frees what was deleted a little later.
	require.Eventually(t, func() bool { return capacity() > before-16*harness.MiB }, time.Minute, 10*time.Millisecond, "want: the deleted volume's size is available")

	// A small image on a large host.
	small := harness.Start(t, harness.EmbeddedPool(320*harness.MiB), harness.PoolFilesystem(kind))
	answer, err := small.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)
	require.Less(t, answer.GetAvailableCapacity(), int64(320*harness.MiB), "want: the capacity is below the size of the image")
}

// TestEmbeddedPoolIsOfOneNode, and has a filesystem that the driver supports.
func TestEmbeddedPoolIsOfOneNode(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, harness.EmbeddedPool(harness.GiB))
	d.Stop()

	config := d.Config
	config.Shared = true

	_, err := driver.New(t.Context(), config)
	require.ErrorIs(t, err, driver.ErrConfig)

	config.Shared, config.PoolImageFS = false, "ext4"
	_, err = driver.New(t.Context(), config)
	require.ErrorIs(t, err, driver.ErrConfig)
	errtext.Require(t, err, `pool-image-fs "ext4" is not one of xfs, btrfs`)

	config.Shared, config.PoolImageFS = true, driver.Defaults().PoolImageFS
	config.PoolImageBytes = 0
	made, err := driver.New(t.Context(), config)
	require.NoError(t, err)
	err = made.Run(t.Context())
	require.ErrorIs(t, err, driver.ErrConfig)
	errtext.Require(t, err, poolImage(d))
}

// TestControllerAndNodeShareAnEmbeddedPool whichever starts first and stops
// last.
func TestControllerAndNodeShareAnEmbeddedPool(t *testing.T) {
	onEachFilesystem(t, testControllerAndNodeShareAnEmbeddedPool)
}

func testControllerAndNodeShareAnEmbeddedPool(t *testing.T, kind string) {
	node := harness.Start(t, harness.EmbeddedPool(harness.GiB), harness.PoolFilesystem(kind), func(c *driver.Config) { c.Mode = driver.ModeNode })
	controller := harness.Start(t, harness.EmbeddedPool(harness.GiB), harness.PoolFilesystem(kind), func(c *driver.Config) {
		c.Mode, c.Pools = driver.ModeController, node.Config.Pools
	})

	claim := harness.NewVolume(t, controller, &csi.CreateVolumeRequest{})
	claim.StagingPath = filepath.Join(node.Config.KubeletDir, "staging")
	claim.TargetPath = filepath.Join(node.Config.KubeletDir, "target")

	require.NoError(t, controller.Attach(t.Context(), claim))
	require.NoError(t, node.Stage(t.Context(), claim))
	require.NoError(t, node.Unstage(t.Context(), claim))
	require.NoError(t, controller.Detach(t.Context(), claim))

	node.Stop()
	require.NotEmpty(t, names(t, node.Pool()), "the controller still uses it")
	harness.DeleteVolume(t, controller, claim.VolumeID)
	controller.Stop()
	require.Empty(t, names(t, node.Pool()), "want: nothing is mounted at the pool of stopped drivers")
}

// TestKilledWhileAnEmbeddedPoolGrows kills drivers at random moments of a start
// that makes the pool, mounts it or lets it grow.
func TestKilledWhileAnEmbeddedPoolGrows(t *testing.T) {
	onEachFilesystem(t, testKilledWhileAnEmbeddedPoolGrows)
}

func testKilledWhileAnEmbeddedPoolGrows(t *testing.T, kind string) {
	const (
		seed  = 4
		kills = 10
	)

	for name, inUse := range map[string]bool{"in use": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			d := harness.StartProcess(t, harness.PoolFilesystem(kind))
			size := int64(320 * harness.MiB)

			// As long as nothing is there, it becomes an embedded pool.
			d.Stop()

			took := 150 * time.Millisecond
			for range 3 {
				d.DieStarting(t, time.Duration(random.Int64N(int64(took))), harness.EmbeddedPool(size))
			}

			d.Restart(t)

			volume := harness.NewLifecycle(t, d, harness.Kinds()[0])
			volume.Up()
			sum := volume.Write()

			for range kills {
				if !inUse {
					volume.Down()
					d.Stop()
				}

				size += int64(1+random.IntN(32)) * 16 * harness.MiB
				d.DieStarting(t, time.Duration(random.Int64N(int64(took))), harness.EmbeddedPool(size))

				if inUse {
					volume.Holds(sum)
				}

				// Every other start asks for nothing: what was begun is completed.
				if random.IntN(2) == 0 {
					d.DieStarting(t, time.Duration(random.Int64N(int64(took))), harness.EmbeddedPool(0))
				}

				began := time.Now()
				d.Restart(t, harness.EmbeddedPool(size))
				took = time.Since(began)

				volume.Up()
				volume.Holds(sum)
				requireFilled(t, d, size)
			}

			volume.Down()
			volume.Delete()
			d.Stop()

			harness.RequireSound(t, kind, poolImage(d))
		})
	}
}

// requireFilled says that image and filesystem have the size.
func requireFilled(t *testing.T, d *harness.Driver, size int64) {
	t.Helper()

	info, err := os.Stat(poolImage(d))
	require.NoError(t, err)
	require.Equal(t, size, info.Size(), "want: the image has its size")

	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(d.Pool(), &stat))
	// Without the log.
	require.InDelta(t, size, int64(stat.Blocks)*stat.Bsize, 80*harness.MiB, "want: the filesystem fills the image")
}
