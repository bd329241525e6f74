package direct_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/guest"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestForgedFilesAreIgnored: the user of an ordinary volume writes what a runtime would get, about
// the device of another volume.
func TestForgedFilesAreIgnored(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, request := range map[string]*csi.CreateVolumeRequest{
		"image": harness.Formatted("ext4"), "directory": {Parameters: harness.DirectoryBacked()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			victim, shim := published(t, d)
			device := deviceOf(t, d, victim).Path
			entries := harness.Tree(t, d.Config.Node.Direct.Root)

			request.Name = "forger"
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)

			forged := map[string]string{
				"csiPlugin.json": fmt.Sprintf(`{"device":%q,"volumeType":"block","targetPath":%q,"fsType":"ext4"}`, device, claim.TargetPath),
				"mountInfo.json": fmt.Sprintf(`{"volume-type":"directvol","device":%q,"fstype":"ext4"}`, device),
				sandbox:          "",
			}
			for name, content := range forged {
				harness.WriteFile(t, filepath.Join(claim.TargetPath, name), content)
			}

			asked := len(shim.Requests())
			s := watch(t, d, victim)

			for range 2 {
				require.NoError(t, d.Stage(t.Context(), claim))
				require.NoError(t, d.Publish(t.Context(), claim))
				require.Nil(t, listed(t, d, claim), "the driver lists the volume among the assigned")

				usage, sick, message := askUsage(t, d, claim.VolumeID, claim.TargetPath)
				require.NotZero(t, usage.Bytes.Available, "want: the usage has available bytes")
				require.False(t, sick, message)
				require.Empty(t, harness.ReasonsOf(t, d, claim.VolumeID), "want: a volume with forged files is healthy")
				require.NoError(t, expandNode(t, d, claim, claim.TargetPath, claimBytes(t, d, claim)))

				for name, content := range forged {
					harness.RequireFile(t, filepath.Join(claim.TargetPath, name), content)
				}

				d.Restart(t)
			}

			harness.TakeDown(t, d, claim)
			require.Equal(t, entries, harness.Tree(t, d.Config.Node.Direct.Root))
			require.NoDirExists(t, harness.DirectEntry(d, claim))
			s.sawNothing(t)
			guestSays(t, d, victim, smallUsage())

			// It was asked about its own volume, by the driver's file.
			for _, request := range shim.Requests()[asked:] {
				require.Contains(t, request.URI, filepath.Base(device))
			}
		})
	}
}

// claimBytes is how large the volume is.
func claimBytes(t *testing.T, d *harness.Driver, claim *csiclient.Publication) int64 {
	t.Helper()

	got, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: claim.VolumeID})
	require.NoError(t, err)

	return got.GetVolume().GetCapacityBytes()
}

// TestForgedFileAtTheTargetIsReplaced: it is there before the volume is published.
func TestForgedFileAtTheTargetIsReplaced(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	path := filepath.Join(claim.TargetPath, "csiPlugin.json")

	require.NoError(t, os.MkdirAll(claim.TargetPath, 0o750))
	harness.WriteFile(t, path, "forged")
	require.NoError(t, d.Publish(t.Context(), claim))
	harness.RequireFile(t, path, fmt.Sprintf(`{"device":%q,"volumeType":"block","targetPath":%q,"fsType":"ext4"}`,
		deviceOf(t, d, claim).Path, claim.TargetPath))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	harness.RequireFile(t, path, "forged")
}

// victim is a directory that symlinks point to, and the driver must not change.
type victim struct {
	path   string
	before map[string]string
}

func newVictim(t *testing.T) *victim {
	t.Helper()

	v := &victim{path: t.TempDir()}
	require.NoError(t, os.Chmod(v.path, 0o700))

	for _, name := range []string{"mountInfo.json", sandbox, "csiPlugin.json"} {
		harness.WriteFile(t, filepath.Join(v.path, name), `{"device":"/dev/null"}`)
	}

	v.before = harness.Tree(t, v.path)

	return v
}

func (v *victim) untouched(t *testing.T) {
	t.Helper()
	require.Equal(t, v.before, harness.Tree(t, v.path))
}

// TestSymlinkAtAnEntryIsNotFollowed: it is planted before the volume is published, while it is, and
// before it is unpublished.
func TestSymlinkAtAnEntryIsNotFollowed(t *testing.T) {
	d := directDriver(t)

	for name, plant := range map[string]func(t *testing.T, v *victim, claim *csiclient.Publication){
		"entry": func(t *testing.T, v *victim, claim *csiclient.Publication) {
			require.NoError(t, os.RemoveAll(harness.DirectEntry(d, claim)))
			require.NoError(t, os.Symlink(v.path, harness.DirectEntry(d, claim)))
		},
		"file": func(t *testing.T, v *victim, claim *csiclient.Publication) {
			_ = os.Remove(harness.MountInfoPath(d, claim)) // none before the first publication
			require.NoError(t, os.MkdirAll(harness.DirectEntry(d, claim), 0o700))
			require.NoError(t, os.Symlink(filepath.Join(v.path, "mountInfo.json"), harness.MountInfoPath(d, claim)))
		},
		"sandbox": func(t *testing.T, v *victim, claim *csiclient.Publication) {
			require.NoError(t, os.MkdirAll(harness.DirectEntry(d, claim), 0o700))
			require.NoError(t, os.RemoveAll(filepath.Join(harness.DirectEntry(d, claim), "planted")))
			require.NoError(t, os.Symlink(filepath.Join(v.path, sandbox), filepath.Join(harness.DirectEntry(d, claim), "planted")))
		},
		"dangling": func(t *testing.T, v *victim, claim *csiclient.Publication) {
			require.NoError(t, os.RemoveAll(harness.DirectEntry(d, claim)))
			require.NoError(t, os.Symlink(filepath.Join(v.path, "new"), harness.DirectEntry(d, claim)))
		},
		"no symlink": func(t *testing.T, _ *victim, claim *csiclient.Publication) {
			require.NoError(t, os.RemoveAll(harness.DirectEntry(d, claim)))
			require.NoError(t, unix.Mkfifo(harness.DirectEntry(d, claim), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := newVictim(t)
			claim := directClaim(t, d)
			require.NoError(t, os.MkdirAll(d.Config.Node.Direct.Root, 0o700))

			put := func() {
				t.Helper()
				require.NoError(t, d.Publish(t.Context(), claim))

				for _, path := range []string{harness.DirectEntry(d, claim), harness.MountInfoPath(d, claim)} {
					info, err := os.Lstat(path)
					require.NoError(t, err)
					require.Zero(t, info.Mode()&os.ModeSymlink, path)
				}

				require.FileExists(t, harness.MountInfoPath(d, claim))
				require.Empty(t, listed(t, d, claim).Sandbox, "want: a symlink is no sandbox")
				guestIsSilent(t, d, claim, 64*harness.MiB)
				v.untouched(t)
			}

			plant(t, v, claim)
			put()
			plant(t, v, claim)
			put()
			plant(t, v, claim)
			require.Empty(t, listed(t, d, claim).Sandbox, "want: a symlink is no sandbox")
			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoFileExists(t, harness.DirectEntry(d, claim))
			require.NoDirExists(t, harness.DirectEntry(d, claim))
			v.untouched(t)
		})
	}
}

// TestUnsafeRootIsRefused: another user could have made it, or can change it.
func TestUnsafeRootIsRefused(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, spoil := range map[string]struct {
		do   func(t *testing.T, root string, v *victim)
		word string
	}{
		"symlink": {func(t *testing.T, root string, v *victim) { require.NoError(t, os.Symlink(v.path, root)) }, "symlink"},
		"file":    {func(t *testing.T, root string, _ *victim) { harness.WriteFile(t, root, "") }, "symlink or a file"},
		"writable": {func(t *testing.T, root string, _ *victim) {
			require.NoError(t, os.Mkdir(root, 0o700))
			require.NoError(t, os.Chmod(root, 0o770))
		}, "chmod"},
		"another's": {func(t *testing.T, root string, _ *victim) {
			require.NoError(t, os.Mkdir(root, 0o700))
			require.NoError(t, os.Chown(root, 1000, 1000))
		}, "chown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := newVictim(t)
			d := harness.Start(t)
			root := d.Config.Node.Direct.Root
			claim := directClaim(t, d)

			spoil.do(t, root, v)

			for range 2 {
				harness.RequireCode(t, d.Publish(t.Context(), claim), codes.FailedPrecondition, root, spoil.word)
				require.NoDirExists(t, claim.TargetPath, "what failed leaves nothing")
				require.NoError(t, d.Unpublish(t.Context(), claim))
				d.Restart(t)
			}

			// Volumes of other kinds have nothing to do with it.
			request := harness.Formatted("ext4")
			request.Name = "ordinary"

			other := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, other)
			harness.TakeDown(t, d, other)
			harness.TakeDown(t, d, other)
			v.untouched(t)

			require.NoError(t, os.Remove(root))
			require.NoError(t, d.Publish(t.Context(), claim))
			require.NoError(t, os.RemoveAll(root))
			spoil.do(t, root, v)

			// It can't be taken away where it might be of another owner.
			harness.RequireCode(t, d.Unpublish(t.Context(), claim), codes.FailedPrecondition, root, spoil.word)
			d.Restart(t)
			require.NoError(t, os.Remove(root))
			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoDirExists(t, claim.TargetPath)
			v.untouched(t)
		})
	}
}

// TestSymlinksAreNotCleared has some under the names of what killed writers leave.
func TestSymlinksAreNotCleared(t *testing.T) {
	d := directDriver(t)
	v := newVictim(t)
	require.NoError(t, os.Mkdir(d.Config.Node.Direct.Root, 0o700))

	require.NoError(t, os.Symlink(v.path, filepath.Join(d.Config.Node.Direct.Root, ".touchstone-DIR")))
	require.NoError(t, os.Symlink(filepath.Join(v.path, sandbox), filepath.Join(d.Config.Node.Direct.Root, ".touchstone-FILE")))
	require.NoError(t, unix.Mkfifo(filepath.Join(d.Config.Node.Direct.Root, ".touchstone-FIFO"), 0o600))
	d.Leaves("the forged entries", leftover.Entry)
	d.Restart(t)
	v.untouched(t)

	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))
	v.untouched(t)
}

// TestNestedDirectoryIsLeftAlone: the entry contains more than runtimes write.
func TestNestedDirectoryIsLeftAlone(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))

	nested := filepath.Join(harness.DirectEntry(d, claim), "nested")
	require.NoError(t, os.Mkdir(nested, 0o700))
	harness.WriteFile(t, filepath.Join(nested, "data"), "precious")

	for range 2 {
		harness.RequireCode(t, d.Unpublish(t.Context(), claim), codes.FailedPrecondition, "nested", "inspect and remove it")
		harness.RequireFile(t, filepath.Join(nested, "data"), "precious")
		d.Restart(t)
	}

	require.NoError(t, os.RemoveAll(nested))
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoDirExists(t, harness.DirectEntry(d, claim))
}

// TestAnotherSandboxsShimIsNotAsked: a sandbox's directory leads to another's.
func TestAnotherSandboxsShimIsNotAsked(t *testing.T) {
	d := directDriver(t, func(c *driver.Config) {
		c.Node.Direct.Guest.ShimRoots = append(c.Node.Direct.Guest.ShimRoots, filepath.Join(c.StateDir, "more"))
	})
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))

	other := guest.StartShim(t, d.Config.Node.Direct.Guest.ShimRoots[0], "other")
	other.SetUsage(t, smallUsage())
	take(t, d, claim, sandbox)
	require.NoError(t, os.Symlink(filepath.Join(d.Config.Node.Direct.Guest.ShimRoots[0], "other"), filepath.Join(d.Config.Node.Direct.Guest.ShimRoots[0], sandbox)))
	guestIsSilent(t, d, claim, 64*harness.MiB)
	require.Empty(t, other.Requests(), "want: the shim of another sandbox is not asked")

	// The second root is looked in, too.
	guest.StartShim(t, d.Config.Node.Direct.Guest.ShimRoots[1], sandbox).SetUsage(t, smallUsage())
	guestSays(t, d, claim, smallUsage())
}

// TestOtherDriversEntriesAreKept, which are in the same root.
func TestOtherDriversEntriesAreKept(t *testing.T) {
	d := directDriver(t)
	root := d.Config.Node.Direct.Root
	entry := filepath.Join(root, "L290aGVyL2RyaXZlcg==") // /other/driver
	require.NoError(t, os.MkdirAll(entry, 0o750))
	harness.WriteFile(t, filepath.Join(entry, "mountInfo.json"), `{"volume-type":"directvol","device":"/dev/loop7","fstype":"ext4"}`)
	harness.WriteFile(t, filepath.Join(entry, sandbox), "")
	harness.WriteFile(t, filepath.Join(root, "unknown"), "")
	d.Leaves("the entries of others", leftover.Entry)

	before := harness.Tree(t, root)
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))
	d.Restart(t)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	harness.TakeDown(t, d, claim)
	require.Equal(t, before, harness.Tree(t, root))
	require.Nil(t, listed(t, d, claim), "the driver lists the volume among the assigned")
}
