package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/cmd/touchstone/internal/doctor"
	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// firstLoop is above the loop numbers of other tests and drivers.
const firstLoop = 890_000

// attachLost attaches an image of a volume that is not in use.
func attachLost(t *testing.T, directory string) *loop.Device {
	t.Helper()
	namespace.NeedRoot(t)

	id := volume.NewID()
	require.NoError(t, os.MkdirAll(filepath.Join(directory, "images"), 0o700))

	image, err := os.Create(filepath.Join(directory, "images", id+".img"))
	require.NoError(t, err)

	defer image.Close()

	require.NoError(t, image.Truncate(1<<20))

	loops := loop.NewLoops(loop.LoopsOptions{First: firstLoop})
	device, err := loops.Attach(t.Context(), image, loop.AttachOptions{PreferredNumber: -1})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()

		_ = device.Close()

		require.NoError(t, loops.Detach(ctx, device.Number))
		require.NoError(t, loops.Remove(ctx, device.Number))
	})

	return device
}

func TestLeftoverDeviceIsReported(t *testing.T) {
	c := machine(t)
	finds(t, look(t, c, "leftover-devices", ""), doctor.OK)

	device := attachLost(t, c.Pools["default"])
	found := look(t, c, "leftover-devices", "")
	finds(t, found, doctor.Warning, "1 images", device.Path, ".img")
	require.Contains(t, found.Cure, "losetup")
	require.Contains(t, found.Cure, "("+device.Path+": ", "want: the processes are named that have the device open")

	// The same with a path that contains a symlink.
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(c.Pools["default"], link))

	linked := c
	linked.Pools = map[string]string{"default": link}
	finds(t, look(t, linked, "leftover-devices", ""), doctor.Warning, device.Path)

	// A raw block volume in use: a bind mount of the device node.
	target := filepath.Join(c.KubeletDir, "device")
	require.NoError(t, os.WriteFile(target, nil, 0o600))
	mountAt(t, device.Path, target, "", unix.MS_BIND, "")
	finds(t, look(t, c, "leftover-devices", ""), doctor.OK)

	// The mount is listed; only a driver could confirm it.
	finds(t, look(t, c, "leftover-mounts", ""), doctor.Skipped, target)

	mountAt(t, "none", "/sys", "tmpfs", 0, "size=64k")
	finds(t, look(t, c, "leftover-devices", ""), doctor.Problem, "/sys/block")
}

// use starts a driver with an ext4 volume, a raw block volume and a directory in use.
func use(t *testing.T) (*harness.Driver, doctor.Config, []*csiclient.Publication) {
	t.Helper()
	namespace.NeedRoot(t)

	d := harness.Start(t)
	c := doctor.Config{
		Mode: doctor.ModeAll, Endpoint: d.Config.Endpoint, DriverName: d.Config.DriverName, StateDir: d.Config.StateDir,
		Pools: d.Config.Pools, KubeletDir: d.Config.KubeletDir, DirectVolumeRoot: d.Config.Node.Direct.Root,
		CgroupRoot: "/sys/fs/cgroup", Recheck: time.Nanosecond,
	}

	const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

	var claims []*csiclient.Publication

	for name, request := range map[string]*csi.CreateVolumeRequest{
		"ext4":      {VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")}},
		"block":     {VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}},
		"directory": {VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")}, Parameters: map[string]string{"backing": "directory"}},
		"direct":    {VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")}, Parameters: map[string]string{"directAssign": "true"}},
	} {
		request.Name = name
		request.CapacityRange = &csi.CapacityRange{RequiredBytes: 16 << 20}

		made, err := d.CreateVolume(t.Context(), request)
		require.NoError(t, err)

		claim := d.Claim(t, made.GetVolume().GetVolumeId())
		claim.VolumeContext, claim.Capability = made.GetVolume().GetVolumeContext(), request.GetVolumeCapabilities()[0]

		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			require.NoError(t, d.Unpublish(ctx, claim))
			require.NoError(t, d.Unstage(ctx, claim))
			require.NoError(t, d.Detach(ctx, claim))
		})
		require.NoError(t, d.Attach(t.Context(), claim))
		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))

		claims = append(claims, claim)
	}

	return d, c, claims
}

func TestARunningDriverIsLeftAlone(t *testing.T) {
	d, c, claims := use(t)
	timeless := mountedImages(t, d, claims)
	before := tree(t, d.Root, timeless...)

	for _, each := range doctor.Examine(t.Context(), c).Findings {
		switch each.Check {
		case "socket", "pool", "pool-attach", "leftover-devices", "leftover-mounts", "state":
			require.Equal(t, doctor.OK, each.Verdict, "%+v", each)
		case "kubelet": // the tests' mount namespace is private
		default:
			require.NotEqual(t, doctor.Problem, each.Verdict, "%+v", each)
		}
	}

	require.Equal(t, before, tree(t, d.Root, timeless...))
}

// mountedImages returns the images whose filesystems are mounted: these are written to
// some seconds later, without a call.
func mountedImages(t *testing.T, d *harness.Driver, claims []*csiclient.Publication) []string {
	t.Helper()

	var images []string

	for _, claim := range claims {
		var target unix.Stat_t

		require.NoError(t, unix.Stat(claim.TargetPath, &target))

		if image := filepath.Join(d.Pool(), "images", claim.VolumeID+".img"); unix.Major(target.Dev) == loop.Major {
			images = append(images, image)
		}
	}

	require.NotEmpty(t, images, "want: the doctor has mounted images")

	return images
}

// tree returns the files of a directory with their times, without those of the exceptions.
func tree(t *testing.T, root string, timeless ...string) map[string]string {
	t.Helper()

	found := map[string]string{}

	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)

		info, err := entry.Info()
		require.NoError(t, err)

		// Creating an unnamed file changes the time of its directory.
		if !entry.IsDir() && !slices.Contains(timeless, path) {
			found[path] = info.Mode().String() + " " + info.ModTime().String()
		} else {
			found[path] = info.Mode().String()
		}

		return nil
	}))

	return found
}

func TestLeftoversOfARunningDriverAreReported(t *testing.T) {
	d, c, claims := use(t)

	// A mount that only the mount table lists.
	stray := filepath.Join(c.KubeletDir, "plugins", "kubernetes.io", "csi", c.DriverName, "hash", "globalmount")
	require.NoError(t, os.MkdirAll(stray, 0o700))
	mountAt(t, "scratch", stray, "tmpfs", 0, "size=1m")

	for _, claim := range claims {
		info, err := os.Stat(claim.TargetPath)
		require.NoError(t, err)

		copied := claim.TargetPath + "-copy"
		if info.IsDir() {
			require.NoError(t, os.Mkdir(copied, 0o700))
		} else {
			require.NoError(t, os.WriteFile(copied, nil, 0o600))
		}

		t.Run("copy", func(t *testing.T) {
			mountAt(t, claim.TargetPath, copied, "", unix.MS_BIND, "")
			finds(t, look(t, c, "leftover-mounts", ""), doctor.Warning, "2 mounts", stray, copied)
		})
	}

	for _, of := range []string{
		"pods/1/volume-subpaths/data/container/0", "plugins/kubernetes.io/csi/volumeDevices/pv-1/dev/1",
	} {
		path := filepath.Join(c.KubeletDir, of)
		require.NoError(t, os.MkdirAll(path, 0o700))

		t.Run("the kubelet's own", func(t *testing.T) {
			for _, claim := range claims {
				if info, err := os.Stat(claim.TargetPath); err == nil && info.IsDir() {
					mountAt(t, claim.TargetPath, path, "", unix.MS_BIND, "")
				}
			}

			found := look(t, c, "leftover-mounts", "")
			finds(t, found, doctor.Warning, "1 mounts", stray)
		})
	}

	d.Leaves("the doctor finds an image that the driver does not know", leftover.Entry)

	device := attachLost(t, d.Pool())
	finds(t, look(t, c, "leftover-devices", ""), doctor.Warning, "1 images", device.Path, "unknown to the driver")

	// Without the driver, leftovers cannot be distinguished from volumes in use.
	c.WithoutDriver = true
	finds(t, look(t, c, "leftover-mounts", ""), doctor.Skipped, "volumes are mounted")
	finds(t, look(t, c, "leftover-devices", ""), doctor.Warning, "1 images", device.Path)
}

// TestADriverStartsWhileItIsExamined: the doctor takes neither the state's lock nor a pool's.
func TestADriverStartsWhileItIsExamined(t *testing.T) {
	d := harness.Start(t, func(c *driver.Config) { c.PoolImageBytes = 320 << 20 })
	c := doctor.Config{
		Mode: doctor.ModeAll, Endpoint: d.Config.Endpoint, DriverName: d.Config.DriverName, StateDir: d.Config.StateDir,
		Pools: d.Config.Pools, PoolImageBytes: d.Config.PoolImageBytes, KubeletDir: d.Config.KubeletDir,
		DirectVolumeRoot: d.Config.Node.Direct.Root, CgroupRoot: "/sys/fs/cgroup",
	}

	ctx, stop := context.WithCancel(t.Context())

	var examining sync.WaitGroup

	for range 2 {
		examining.Go(func() {
			for ctx.Err() == nil {
				doctor.Examine(ctx, c)
			}
		})
	}

	for range 5 {
		d.Restart(t)
	}

	stop()
	await.Return(t, examining.Wait, "Examine to return after its context ended")
}

func TestAKilledDoctorLeavesNothing(t *testing.T) {
	c := machine(t)
	c.Only = []string{"pool-attach", "state", "pool-reflink", "mounting"}

	given, err := json.Marshal(c)
	require.NoError(t, err)

	for i := range 20 {
		command := child.Command(t, "/proc/self/exe", examineChild)
		command.Stdin = bytes.NewReader(given)
		require.NoError(t, command.Start())
		// The child starts within about 50 ms, and works a little longer.
		time.Sleep(time.Duration(i) * 6 * time.Millisecond)
		require.NoError(t, command.Process.Kill())

		_ = command.Wait()
	}

	loops := loop.NewLoops(loop.LoopsOptions{})

	require.Eventually(t, func() bool {
		attached, err := loops.Attachments()
		require.NoError(t, err)

		return !slices.ContainsFunc(attached, func(each loop.Attachment) bool {
			return strings.HasPrefix(each.BackingPath, c.Pools["default"])
		})
	}, time.Minute, 10*time.Millisecond, "want: no image of the killed doctor is attached")

	require.Empty(t, names(t, c.Pools["default"]), "want: the pool is empty again")
	require.Empty(t, names(t, c.StateDir), "want: the state directory is empty again")
}
