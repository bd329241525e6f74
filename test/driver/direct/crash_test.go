package direct_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/guest"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// rebirths are the ways in which a driver ends and comes back.
func rebirths() map[string]func(t *testing.T, d *harness.Driver) {
	return map[string]func(t *testing.T, d *harness.Driver){
		"killed": func(t *testing.T, d *harness.Driver) { d.Kill(t) },
		"killed at its start": func(t *testing.T, d *harness.Driver) {
			d.DieStarting(t, 20*time.Millisecond)
			d.DieStarting(t, 60*time.Millisecond)
			d.Restart(t)
		},
	}
}

// TestDirectOutlivesTheDriver, which ends after each step of a volume's lifecycle, and in the
// middle of the steps. The guest notices nothing, and the CO's next call is what it would have
// been.
func TestDirectOutlivesTheDriver(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, reborn := range rebirths() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t)
			claim := directClaim(t, d)
			device := deviceOf(t, d, claim)

			reborn(t, d)
			require.Equal(t, device, deviceOf(t, d, claim))
			require.NoError(t, d.Stage(t.Context(), claim))
			require.Equal(t, device, deviceOf(t, d, claim))
			stagedUsage(t, d, claim, 64*harness.MiB)

			require.NoError(t, d.Publish(t.Context(), claim))

			reported := harness.Tree(t, d.Config.Node.Direct.Root, claim.TargetPath)
			same := func(beside ...string) {
				t.Helper()

				now := harness.Tree(t, d.Config.Node.Direct.Root, claim.TargetPath)
				for _, path := range beside {
					require.Contains(t, now, path)
					delete(now, path)
				}

				require.Equal(t, reported, now)
				require.Equal(t, device, deviceOf(t, d, claim))
				require.NotNil(t, listed(t, d, claim), "the driver does not list the volume among the assigned")
			}

			reborn(t, d)
			same()
			require.NoError(t, d.Publish(t.Context(), claim))
			same()

			// Killed before the target was mounted, which is still free.
			harness.Unmount(t, claim.TargetPath)
			reborn(t, d)
			require.Nil(t, listed(t, d, claim), "the driver lists the volume among the assigned")
			require.Empty(t, entriesIn(t, d.Config.Node.Direct.Root), "want: the assignment is removed")
			require.NoError(t, d.Publish(t.Context(), claim))
			same()

			t.Run("taken", func(t *testing.T) { outlivesTaken(t, d, claim, reborn, same) })

			require.Equal(t, device.Sequence, deviceOf(t, d, claim).Sequence, "want: the device stays the same")
			reborn(t, d)
			require.NoError(t, d.Unstage(t.Context(), claim))
			require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
			reborn(t, d)
			require.NoError(t, d.Unstage(t.Context(), claim))

			// Killed after the device was detached.
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).Detach(t.Context(), deviceOf(t, d, claim).Number))
			reborn(t, d)
			require.NoError(t, d.Unstage(t.Context(), claim))
		})
	}
}

// outlivesTaken is the part of the life in which a guest has the volume.
func outlivesTaken(t *testing.T, d *harness.Driver, claim *csiclient.Publication, reborn func(*testing.T, *harness.Driver), same func(...string)) {
	shim := run(t, d, claim)
	shim.SetUsage(t, smallUsage())

	vm := boot(t, deviceOf(t, d, claim).Path, "ext4")
	entry := filepath.Join(harness.DirectEntry(d, claim), sandbox)
	stays := func() {
		t.Helper()
		same(entry)
		guestSays(t, d, claim, smallUsage())
	}

	reborn(t, d)
	stays()
	require.NoError(t, d.Publish(t.Context(), claim))
	stays()

	// The runtime's file is restored by a start, and by a call.
	for name, lose := range map[string]func(){
		"file":   func() { require.NoError(t, os.Remove(harness.MountInfoPath(d, claim))) },
		"spoilt": func() { harness.WriteFile(t, harness.MountInfoPath(d, claim), "{") },
		"other":  func() { harness.WriteFile(t, harness.MountInfoPath(d, claim), "[]") },
	} {
		lose()
		reborn(t, d)
		stays()
		lose()
		require.NoError(t, d.Publish(t.Context(), claim), name)
		stays()
	}

	require.NoError(t, os.RemoveAll(d.Config.Node.Direct.Root))
	reborn(t, d)
	same()
	require.NoError(t, os.RemoveAll(d.Config.Node.Direct.Root))
	require.NoError(t, d.Publish(t.Context(), claim))
	same()
	take(t, d, claim, sandbox)

	// What is to come of a growth.
	shim.Switch(guest.Unimplemented)
	expandController(t, d, claim, 96*harness.MiB)
	harness.RequireCode(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB), codes.FailedPrecondition)
	reborn(t, d)
	require.EqualValues(t, 96*harness.MiB, listed(t, d, claim).PendingBytes, "want: the failed growth of the guest is pending")

	// What a killed writer leaves in the root stays until the next write or the end.
	left := temporaryPath(d, claim)
	harness.WriteFile(t, left, "{")
	reborn(t, d)
	require.NoError(t, os.Remove(harness.MountInfoPath(d, claim)))
	require.NoError(t, d.Publish(t.Context(), claim))
	require.NoFileExists(t, left)
	harness.WriteFile(t, left, "{")

	// The sandbox has it, though its target path is gone.
	harness.Unmount(t, claim.TargetPath)
	reborn(t, d)
	taken(t, d, claim, sandbox)
	require.NotNil(t, listed(t, d, claim), "the driver does not list the volume among the assigned")
	require.NoError(t, d.Publish(t.Context(), claim))
	require.FileExists(t, filepath.Join(claim.TargetPath, "csiPlugin.json"))
	taken(t, d, claim, sandbox)

	harness.WriteFile(t, vm.path("data"), "precious")
	vm.shutDown()

	// Killed in the middle of its end.
	harness.Unmount(t, claim.TargetPath)
	reborn(t, d)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoDirExists(t, claim.TargetPath)
	require.NoDirExists(t, harness.DirectEntry(d, claim))
	require.NoFileExists(t, left)

	require.NoError(t, d.Publish(t.Context(), claim))
	harness.Unmount(t, claim.TargetPath)
	require.NoError(t, os.RemoveAll(harness.DirectEntry(d, claim)))
	reborn(t, d)
	require.NoError(t, d.Unpublish(t.Context(), claim))
	require.NoDirExists(t, claim.TargetPath)
	require.Empty(t, entriesIn(t, d.Config.Node.Direct.Root), "want: the assignment is removed")
}

// TestDirectIsKilledInCalls kills the driver at random moments of all calls, whose
// repetition is all that has to be done.
func TestDirectIsKilledInCalls(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	const (
		seed   = 6
		rounds = 5
	)

	random := rand.New(rand.NewPCG(seed, 0))
	d := harness.StartProcess(t)
	claim := harness.NewVolume(t, d, harness.DirectRequest("ext4"))
	require.NoError(t, d.Attach(t.Context(), claim))
	t.Cleanup(func() { harness.TakeDown(t, d, claim) })

	took := map[string]time.Duration{}
	size := int64(64 * harness.MiB)
	written := false

	for round := range rounds {
		for _, step := range []struct {
			name string
			call func(*csiclient.Client, context.Context) error
			then func()
		}{
			{"stage", func(o *csiclient.Client, ctx context.Context) error { return o.Stage(ctx, claim) }, func() {
				vm := boot(t, deviceOf(t, d, claim).Path, "ext4")
				if written {
					harness.RequireFile(t, vm.path("data"), "precious")
				}

				harness.WriteFile(t, vm.path("data"), "precious")
				vm.shutDown()

				written = true
			}},
			{"publish", func(o *csiclient.Client, ctx context.Context) error { return o.Publish(ctx, claim) }, func() {
				require.FileExists(t, filepath.Join(claim.TargetPath, "csiPlugin.json"))
				require.FileExists(t, harness.MountInfoPath(d, claim))
				require.Equal(t, []string{"mountInfo.json"}, entriesIn(t, harness.DirectEntry(d, claim)))
				take(t, d, claim, sandbox)
			}},
			{"publish again", func(o *csiclient.Client, ctx context.Context) error { return o.Publish(ctx, claim) }, func() {
				taken(t, d, claim, sandbox)
				require.Len(t, entriesIn(t, d.Config.Node.Direct.Root), 1, "want: the volume has one assignment")
			}},
			{"unpublish", func(o *csiclient.Client, ctx context.Context) error { return o.Unpublish(ctx, claim) }, func() {
				require.NoDirExists(t, claim.TargetPath)
				require.Empty(t, entriesIn(t, d.Config.Node.Direct.Root), "want: the assignment is removed")

				size += harness.MiB
				expandController(t, d, claim, size)
			}},
			{"expand", func(o *csiclient.Client, ctx context.Context) error {
				return expandNodeWith(ctx, o, claim, claim.StagingPath, size)
			}, func() {
				require.Equal(t, size, deviceOf(t, d, claim).SizeBytes, "want: the device has the larger size")
			}},
			{"unstage", func(o *csiclient.Client, ctx context.Context) error { return o.Unstage(ctx, claim) }, func() {
				require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
			}},
		} {
			if round > 0 {
				killWithin(t, d, time.Duration(random.Int64N(int64(took[step.name]))), step.call)
			}

			began := time.Now()
			require.NoError(t, step.call(d.Client, t.Context()), step.name)
			took[step.name] = time.Since(began) + time.Millisecond
			step.then()
		}
	}
}

// killWithin kills the driver so long after a call has begun.
func killWithin(t *testing.T, d *harness.Driver, after time.Duration, call func(*csiclient.Client, context.Context) error) {
	t.Helper()

	ended, asked := make(chan struct{}), d.Client

	go func() {
		defer close(ended)

		_ = call(asked, t.Context()) // whether it came to its end is chance
	}()

	time.Sleep(after) // the moment of death is chosen by chance
	d.Kill(t)
	await.Receive(t, ended, "the call to return after its driver was killed")
}

// TestNothingIsAssignedAfterAReboot, when only the disk remains, and it can be again.
func TestNothingIsAssignedAfterAReboot(t *testing.T) {
	d := directDriver(t)

	for name, keeps := range map[string]bool{"run is empty": false, "run is kept": true} {
		request := harness.DirectRequest("ext4")
		request.Name = name

		claim := harness.NewVolume(t, d, request)
		harness.AttachAndStage(t, d, claim)
		require.NoError(t, d.Publish(t.Context(), claim))
		take(t, d, claim, sandbox)
		d.Stop()

		harness.Unmount(t, claim.TargetPath)
		require.NoError(t, loop.NewLoops(loop.LoopsOptions{}).Detach(t.Context(), deviceOf(t, d, claim).Number))

		if !keeps {
			require.NoError(t, os.RemoveAll(d.Config.Node.Direct.Root))
		}

		d.Restart(t)
		require.Nil(t, listed(t, d, claim), "the driver lists the volume among the assigned")
		require.NoDirExists(t, harness.DirectEntry(d, claim))
		require.NoError(t, d.Stage(t.Context(), claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		require.Equal(t, []string{"mountInfo.json"}, entriesIn(t, harness.DirectEntry(d, claim)))
		harness.TakeDown(t, d, claim)
	}
}

// TestDirectImageIsRenamed: the driver restarts while a guest has a volume whose image has another
// name by then, and whose device is not the one of its slot.
func TestDirectImageIsRenamed(t *testing.T) {
	d := directDriver(t)

	for name, readOnly := range map[string]bool{"writer": false, "reader": true} {
		request := harness.DirectRequest("ext4")
		request.Name = name

		claim := harness.NewVolume(t, d, request)
		require.NoError(t, d.Stage(t.Context(), claim), "the CO passes no slot on")
		t.Cleanup(func() { harness.TakeDown(t, d, claim) })

		claim.ReadOnly = readOnly
		require.NoError(t, d.Publish(t.Context(), claim))
		take(t, d, claim, sandbox)

		before := listed(t, d, claim)
		image := harness.ImageOf(d, claim.VolumeID)
		require.NoError(t, os.Rename(image, image+".away"))
		d.Restart(t)
		taken(t, d, claim, sandbox)
		require.Equal(t, before, listed(t, d, claim))
		require.NoError(t, d.Publish(t.Context(), claim))
		taken(t, d, claim, sandbox)

		require.NoError(t, os.Rename(image+".away", image))
		d.Restart(t)
		require.Equal(t, before, listed(t, d, claim))
		harness.TakeDown(t, d, claim)
		require.Empty(t, harness.DevicesOf(t, d, claim.VolumeID), "want: no device is left")
	}
}

// temporaryPath returns the path at which the driver writes a volume's assignment before it is
// renamed.
func temporaryPath(d *harness.Driver, claim *csiclient.Publication) string {
	entry := harness.DirectEntry(d, claim)

	return filepath.Join(filepath.Dir(entry), fmt.Sprintf(".touchstone-%x", sha256.Sum256([]byte(filepath.Base(entry)))))
}
