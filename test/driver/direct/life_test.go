package direct_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/guest"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// directLife is a direct volume from its creation to its end.
type directLife struct {
	*harness.Driver

	claim         *csiclient.Publication
	fsType        string
	bytes, larger int64
	blockSize     int
	device        string
	// total is what the filesystem had at first.
	total int64
}

func TestDirectLifecycle(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		for _, blockSize := range []int{4096, 512} {
			t.Run(fmt.Sprint(fsType, blockSize), func(t *testing.T) {
				t.Parallel()

				request := harness.DirectRequest(fsType, "noatime")
				request.Parameters["blockSize"] = strconv.Itoa(blockSize)

				l := &directLife{Driver: harness.Start(t), fsType: fsType, blockSize: blockSize}
				l.bytes = request.GetCapacityRange().GetRequiredBytes()
				l.larger = l.bytes + 64*harness.MiB
				l.claim = harness.NewVolume(t, l.Driver, request)
				require.Equal(t, "true", l.claim.VolumeContext["directAssign"])

				l.stage(t)
				l.publish(t)
				l.live(t)
				l.takeDown(t)
				l.growsAtTheNextStaging(t)
				l.endsAsOrdinary(t)
			})
		}
	}
}

// stage has a device with a filesystem on it, and mounts it nowhere.
func (l *directLife) stage(t *testing.T) {
	t.Helper()

	before := harness.Tree(t, l.Config.KubeletDir)

	harness.AttachAndStage(t, l.Driver, l.claim)

	staging := harness.Tree(t, l.claim.StagingPath)
	require.Len(t, staging, 1, "it is as the CO made it")

	attached := deviceOf(t, l.Driver, l.claim)
	l.device = attached.Path
	require.Equal(t, l.blockSize, attached.BlockSize, "want: the device has the block size of the volume")
	require.Equal(t, l.bytes, attached.SizeBytes, "want: the device has the size of the volume")
	require.False(t, attached.AutoClear, "want: the device stays attached when its last user closes it")
	require.False(t, attached.ReadOnly, "want: the device is not read-only")
	l.mountedNowhere(t)

	image, err := os.Open(harness.ImageOf(l.Driver, l.claim.VolumeID))
	require.NoError(t, err)

	defer image.Close()

	found, err := filesystem.Detect(image)
	require.NoError(t, err)
	require.Equal(t, l.fsType, found)

	stagedUsage(t, l.Driver, l.claim, l.bytes)
	require.Nil(t, listed(t, l.Driver, l.claim), "the driver lists the volume among the assigned")
	require.NoDirExists(t, l.Config.Node.Direct.Root)

	// Beside what the test has made for it.
	for path := range before {
		require.Contains(t, harness.Tree(t, l.Config.KubeletDir), path)
	}
}

func (l *directLife) mountedNowhere(t *testing.T) {
	t.Helper()

	var device unix.Stat_t

	require.NoError(t, unix.Stat(l.device, &device))

	points, err := mount.List()
	require.NoError(t, err)

	for _, point := range points {
		require.NotEqual(t, l.device, point.Source, point.Path)
		require.NotEqual(t, device.Rdev, unix.Mkdev(point.Major, point.Minor), point.Path)
		require.NotEqual(t, l.claim.StagingPath, point.Path, "want: the volume is not mounted at its staging path")
	}
}

// publish says where the device is to its two readers only.
func (l *directLife) publish(t *testing.T) {
	t.Helper()
	require.NoError(t, l.Publish(t.Context(), l.claim))
	l.sealed(t)
	l.mountedNowhere(t)

	plugin := fmt.Sprintf(`{"device":%q,"volumeType":"block","targetPath":%q,"fsType":%q,"options":"noatime"}`,
		l.device, l.claim.TargetPath, l.fsType)
	harness.RequireFile(t, filepath.Join(l.claim.TargetPath, "csiPlugin.json"), plugin)

	info := fmt.Sprintf(`{"volume-type":"directvol","device":%q,"fstype":%q,"options":["noatime"]}`, l.device, l.fsType)
	harness.RequireFile(t, harness.MountInfoPath(l.Driver, l.claim), info)

	modes := map[string]fs.FileMode{}

	require.NoError(t, filepath.WalkDir(l.Config.Node.Direct.Root, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)

		info, err := entry.Info()
		modes[path] = info.Mode()

		return err
	}))
	require.Equal(t, map[string]fs.FileMode{
		l.Config.Node.Direct.Root: fs.ModeDir | 0o700, harness.DirectEntry(l.Driver, l.claim): fs.ModeDir | 0o700, harness.MountInfoPath(l.Driver, l.claim): 0o600,
	}, modes)

	require.Equal(t, &kata.AssignedVolume{
		VolumeID: l.claim.VolumeID, TargetPath: l.claim.TargetPath, Device: l.device, FSType: l.fsType,
		Options: []string{"noatime"}, SizeBytes: l.bytes,
	}, listed(t, l.Driver, l.claim))
	guestIsSilent(t, l.Driver, l.claim, l.bytes)
	stagedUsageWhilePublished(t, l)
}

// stagedUsageWhilePublished asks by the staging path, by which it is the same
// volume.
func stagedUsageWhilePublished(t *testing.T, l *directLife) {
	t.Helper()

	usage, sick, _ := askUsage(t, l.Driver, l.claim.VolumeID, l.claim.StagingPath)
	require.Equal(t, mount.Usage{Bytes: mount.Amount{Total: l.bytes}}, usage)
	require.True(t, sick, "want: the volume is reported as abnormal")
}

// sealed requires a filesystem of its own in the target's place, which only root
// may read and no user may write.
func (l *directLife) sealed(t *testing.T) {
	t.Helper()

	const tmpfs = 0x01021994

	var at unix.Statfs_t

	require.NoError(t, unix.Statfs(l.claim.TargetPath, &at))
	require.EqualValues(t, tmpfs, at.Type, "want: the target is a tmpfs")

	const flags = unix.ST_RDONLY | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOSUID
	require.EqualValues(t, flags, at.Flags&flags, "want: the target is mounted read-only without devices, programs and setuid")

	var root unix.Stat_t

	require.NoError(t, unix.Stat(l.claim.TargetPath, &root))
	require.EqualValues(t, unix.S_IFDIR|0o700, root.Mode, "want: the target is for its owner only")
	require.Zero(t, root.Uid, "want: the target is root's")

	found := harness.Tree(t, l.claim.TargetPath)
	require.Len(t, found, 2, "want: the target has one file")

	path := filepath.Join(l.claim.TargetPath, "csiPlugin.json")
	require.Contains(t, found[path], "-rw-------")
	require.ErrorIs(t, os.WriteFile(path, nil, 0o600), unix.EROFS)
	require.ErrorIs(t, os.WriteFile(path+".new", nil, 0o600), unix.EROFS)
	require.ErrorIs(t, os.Remove(path), unix.EROFS)
}

// live has a guest use the volume, which becomes larger meanwhile in vain.
func (l *directLife) live(t *testing.T) {
	t.Helper()

	shim := run(t, l.Driver, l.claim)
	shim.Switch(guest.Unimplemented)

	vm := boot(t, l.device, l.fsType, "noatime")
	l.total = vm.usage(t).Bytes.Total
	harness.WriteFile(t, vm.path("data"), "the guest's")
	l.say(t, shim, vm)
	require.Equal(t, sandbox, listed(t, l.Driver, l.claim).Sandbox)

	expandController(t, l.Driver, l.claim, l.larger)

	for range 2 {
		err := expandNode(t, l.Driver, l.claim, l.claim.TargetPath, l.larger)
		harness.RequireCode(t, err, codes.FailedPrecondition, "guest", "staged the next time", strconv.FormatInt(l.larger, 10))
		require.Equal(t, l.larger, listed(t, l.Driver, l.claim).PendingBytes, "want: the growth of the guest is pending")
		require.Equal(t, l.larger, deviceOf(t, l.Driver, l.claim).SizeBytes, "want: the device has the larger size")
		l.Restart(t)
	}

	require.Equal(t, l.total, vm.usage(t).Bytes.Total, "want: the guest keeps its size over a restart")
	l.say(t, shim, vm)
	harness.WriteFile(t, vm.path("more"), "since then")
	harness.RequireFile(t, vm.path("data"), "the guest's")
	vm.shutDown()
	shim.Stop()
	guestIsSilent(t, l.Driver, l.claim, l.larger)
}

// say has the guest report its filesystem, and the driver pass it on.
func (l *directLife) say(t *testing.T, shim *guest.Shim, vm *machine) {
	t.Helper()

	usage := vm.usage(t)
	require.Positive(t, usage.Bytes.Used, "want: the guest uses bytes")
	shim.SetUsage(t, usage)
	guestSays(t, l.Driver, l.claim, usage)
}

// takeDown leaves nothing.
func (l *directLife) takeDown(t *testing.T) {
	t.Helper()

	for range 2 {
		require.NoError(t, l.Unpublish(t.Context(), l.claim))
		require.NoDirExists(t, l.claim.TargetPath)
		require.Empty(t, entriesIn(t, l.Config.Node.Direct.Root), "want: the assignment is removed")
		require.Nil(t, listed(t, l.Driver, l.claim), "the driver lists the volume among the assigned")
		stagedUsage(t, l.Driver, l.claim, l.larger)
	}

	for range 2 {
		require.NoError(t, l.Unstage(t.Context(), l.claim))
		require.Empty(t, harness.DevicesOf(t, l.Driver, l.claim.VolumeID), "want: no device is left")
		require.Len(t, harness.Tree(t, l.claim.StagingPath), 1, "want: the staging path is empty")
	}
}

func entriesIn(t *testing.T, dir string) []string {
	t.Helper()

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return names
}

// growsAtTheNextStaging has another guest find more than the first one had.
func (l *directLife) growsAtTheNextStaging(t *testing.T) {
	t.Helper()
	require.NoError(t, l.Stage(t.Context(), l.claim))
	require.NoError(t, l.Publish(t.Context(), l.claim))
	require.Zero(t, listed(t, l.Driver, l.claim).PendingBytes, "want: no growth is pending after the next staging")

	// As a kubelet does after that. No guest is there who could be asked.
	require.NoError(t, expandNode(t, l.Driver, l.claim, l.claim.TargetPath, l.larger))

	l.device = deviceOf(t, l.Driver, l.claim).Path
	l.mountedNowhere(t)

	vm := boot(t, l.device, l.fsType)
	require.Greater(t, vm.usage(t).Bytes.Total, l.total, "want: the guest has grown at the next staging")
	harness.RequireFile(t, vm.path("data"), "the guest's")
	vm.shutDown()

	require.NoError(t, l.Unpublish(t.Context(), l.claim))
	require.NoError(t, l.Unstage(t.Context(), l.claim))
}

// endsAsOrdinary has the host find what the guest wrote.
func (l *directLife) endsAsOrdinary(t *testing.T) {
	t.Helper()

	hosted := ordinary(l.claim)
	require.NoError(t, l.Stage(t.Context(), hosted))
	require.NoError(t, l.Publish(t.Context(), hosted))
	harness.RequireFile(t, filepath.Join(hosted.TargetPath, "data"), "the guest's")
	harness.RequireFile(t, filepath.Join(hosted.TargetPath, "more"), "since then")
	require.Nil(t, listed(t, l.Driver, l.claim), "the driver lists the volume among the assigned")
	require.Empty(t, entriesIn(t, l.Config.Node.Direct.Root), "want: there is no assignment")

	usage, sick, message := askUsage(t, l.Driver, hosted.VolumeID, hosted.TargetPath)
	require.Greater(t, usage.Bytes.Total, l.total, "want: the filesystem has grown")
	require.False(t, sick, message)

	harness.TakeDown(t, l.Driver, hosted)
	harness.DeleteVolume(t, l.Driver, hosted.VolumeID)
}

// TestDirectGrowsAtRest lets the host do it while no guest can have the volume.
func TestDirectGrowsAtRest(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		for _, end := range []string{"unmounted", "crashed"} {
			if fsType == "btrfs" && end == "crashed" {
				continue // it can't be cancelled
			}

			t.Run(fsType+end, func(t *testing.T) {
				t.Parallel()

				d := harness.Start(t)
				claim := harness.NewVolume(t, d, harness.DirectRequest(fsType))
				larger := harness.SizeFor(fsType) + 64*harness.MiB
				harness.AttachAndStage(t, d, claim)

				device := deviceOf(t, d, claim)
				vm := boot(t, device.Path, fsType)
				total := vm.usage(t).Bytes.Total
				harness.WriteFile(t, vm.path("data"), "precious")
				require.NoError(t, unix.Syncfs(int(vm.root.Fd())))

				if end == "crashed" {
					vm.crash(t)
				} else {
					vm.shutDown()
				}

				expandController(t, d, claim, larger)

				for range 2 {
					require.NoError(t, expandNode(t, d, claim, claim.StagingPath, larger))
					require.Equal(t, device.Path, deviceOf(t, d, claim).Path)
					require.False(t, deviceOf(t, d, claim).AutoClear, "want: the device stays attached when its last user closes it")
					stagedUsage(t, d, claim, larger)
				}

				require.NoError(t, d.Publish(t.Context(), claim))
				require.Zero(t, listed(t, d, claim).PendingBytes, "want: no growth is pending after the next staging")

				vm = boot(t, device.Path, fsType)
				require.Greater(t, vm.usage(t).Bytes.Total, total, "want: the guest has grown at the next staging")
				harness.RequireFile(t, vm.path("data"), "precious")
				vm.shutDown()
			})
		}
	}
}

// TestDirectWithoutStaging: the CO does not stage.
func TestDirectWithoutStaging(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.WithoutCapabilities("STAGE_UNSTAGE_VOLUME"))
	claim := harness.NewVolume(t, d, harness.DirectRequest("ext4"))
	require.NoError(t, d.Attach(t.Context(), claim))

	claim.StagingPath = ""

	for range 2 {
		require.NoError(t, d.Publish(t.Context(), claim))
		require.FileExists(t, harness.MountInfoPath(d, claim))
		require.FileExists(t, filepath.Join(claim.TargetPath, "csiPlugin.json"))
		deviceOf(t, d, claim)
		d.Restart(t)
	}

	for range 2 {
		require.NoError(t, d.Unpublish(t.Context(), claim))
		require.NoDirExists(t, claim.TargetPath)
		require.Empty(t, entriesIn(t, d.Config.Node.Direct.Root), "want: the assignment is removed")
		require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
	}

	require.NoError(t, d.Detach(t.Context(), claim))
}

// TestDirectKeepsAnExistingTarget: the CO makes the target path, as some do.
func TestDirectKeepsAnExistingTarget(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := directClaim(t, d)
	require.NoError(t, os.MkdirAll(claim.TargetPath, 0o750))
	require.NoError(t, d.Publish(t.Context(), claim))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.DirExists(t, claim.TargetPath)
	require.Empty(t, entriesIn(t, claim.TargetPath), "want: the target is empty again")
}

// TestDirectVolumesAreCopied: one is made of another, starts with its content and has devices and
// entries of its own.
func TestDirectVolumesAreCopied(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.DirectRequest(fsType))
			harness.AttachAndStage(t, d, claim)

			vm := boot(t, deviceOf(t, d, claim).Path, fsType)
			harness.WriteFile(t, vm.path("data"), "precious")
			vm.shutDown()
			require.NoError(t, d.Unstage(t.Context(), claim))

			request := harness.DirectRequest(fsType)
			request.Name, request.VolumeContentSource = "copy", harness.FromVolume(claim.VolumeID)

			copied := harness.NewVolume(t, d, request)
			require.NoError(t, d.Stage(t.Context(), claim))
			harness.AttachAndStage(t, d, copied)
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), copied))
			require.Len(t, entriesIn(t, d.Config.Node.Direct.Root), 2, "want: each volume has an assignment")

			one, other := boot(t, deviceOf(t, d, claim).Path, fsType), boot(t, deviceOf(t, d, copied).Path, fsType)
			harness.RequireFile(t, one.path("data"), "precious")
			harness.RequireFile(t, other.path("data"), "precious")
			one.shutDown()
			other.shutDown()
		})
	}
}
