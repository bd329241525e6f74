package direct_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/guest"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// smallUsage fits a device of 64 MiB.
func smallUsage() mount.Usage {
	return mount.Usage{
		Bytes: mount.Amount{Total: 50 * harness.MiB, Used: 30 * harness.MiB, Available: 15 * harness.MiB}, Inodes: mount.Amount{Total: 100, Used: 11, Available: 89},
	}
}

// published is a direct volume that a sandbox of its own has.
func published(t *testing.T, d *harness.Driver) (*csiclient.Publication, *guest.Shim) {
	t.Helper()

	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))
	take(t, d, claim, claim.VolumeID)

	shim := guest.StartShim(t, d.Config.Node.Direct.Guest.ShimRoots[0], claim.VolumeID)
	shim.SetUsage(t, smallUsage())

	return claim, shim
}

// TestDirectStatsSucceedForEachAnswer of a shim.
func TestDirectStatsSucceedForEachAnswer(t *testing.T) {
	d := directDriver(t)

	for name, test := range map[string]struct {
		strike func(t *testing.T, claim *csiclient.Publication, shim *guest.Shim)
		// answers says that it does no harm.
		answers bool
	}{
		"ok":            {switched(guest.OK), true},
		"legacy":        {switched(guest.Legacy), true},
		"unimplemented": {switched(guest.Unimplemented), true},
		"404":           {switched(guest.NotFound), false},
		"500":           {switched(guest.Failing), false},
		"hang":          {switched(guest.Hanging), false},
		"drop":          {switched(guest.Dropping), false},
		"garbage":       {switched(guest.Garbage), false},
		"babble":        {switched(guest.Babbling), false},
		"impossible":    {switched(guest.Impossible), false},
		"501":           {said(http.StatusNotImplemented, ""), false},
		"nothing":       {said(http.StatusOK, ""), false},
		"empty":         {said(http.StatusOK, "{}"), false},
		"negative":      {said(http.StatusOK, `{"usage":[{"available":-1,"total":20,"used":10,"unit":1}]}`), false},
		"too large": {func(t *testing.T, _ *csiclient.Publication, shim *guest.Shim) {
			shim.SetUsage(t, mount.Usage{Bytes: mount.Amount{Total: 64*harness.MiB + 1}})
		}, false},
		"no sandbox": {func(t *testing.T, claim *csiclient.Publication, _ *guest.Shim) {
			require.NoError(t, os.Remove(filepath.Join(harness.DirectEntry(d, claim), claim.VolumeID)))
		}, false},
		"no entry": {func(t *testing.T, claim *csiclient.Publication, _ *guest.Shim) {
			require.NoError(t, os.RemoveAll(harness.DirectEntry(d, claim)))
		}, false},
		"no socket": {func(t *testing.T, claim *csiclient.Publication, _ *guest.Shim) {
			require.NoError(t, os.Rename(filepath.Join(harness.DirectEntry(d, claim), claim.VolumeID), filepath.Join(harness.DirectEntry(d, claim), "elsewhere")))
		}, false},
		"killed": {func(_ *testing.T, _ *csiclient.Publication, shim *guest.Shim) { shim.Kill() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim, shim := published(t, d)
			guestSays(t, d, claim, smallUsage())
			test.strike(t, claim, shim)

			if test.answers {
				guestSays(t, d, claim, smallUsage())

				return
			}

			guestIsSilent(t, d, claim, 64*harness.MiB)
			recovers(t, d, claim, shim)
			guestSays(t, d, claim, smallUsage())
		})
	}
}

// TestDirectStatsOfAHangingImage answer in time although the device's status waits for the image.
func TestDirectStatsOfAHangingImage(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	d := directDriver(t, harness.PoolAt("default", filepath.Join(served.Path, "pool")))
	claim, _ := published(t, d)
	guestSays(t, d, claim, smallUsage())

	image, err := filepath.Rel(served.Path, harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)
	served.Inject(t, faults.Fault{Name: image, Ops: faults.Names, Hang: true})

	for _, path := range []string{claim.StagingPath, claim.TargetPath} {
		began := time.Now()
		_, sick, message := askUsage(t, d, claim.VolumeID, path)
		require.Less(t, time.Since(began), faults.Longest/2, "want: the answer does not wait for the image")
		require.True(t, sick, "want: the volume is reported as abnormal")
		require.Contains(t, message, string(health.ProbeTimedOut))
	}

	served.Release(t)
	require.Eventually(t, func() bool {
		_, sick, _ := askUsage(t, d, claim.VolumeID, claim.TargetPath)

		return !sick
	}, await.Limit, 10*time.Millisecond, "want: the volume is healthy again")
}

func switched(mode guest.Mode) func(*testing.T, *csiclient.Publication, *guest.Shim) {
	return func(_ *testing.T, _ *csiclient.Publication, shim *guest.Shim) { shim.Switch(mode) }
}

func said(status int, body string) func(*testing.T, *csiclient.Publication, *guest.Shim) {
	return func(_ *testing.T, _ *csiclient.Publication, shim *guest.Shim) { shim.Say(status, body) }
}

// recovers makes the guest answer again, whatever kept it from that.
func recovers(t *testing.T, d *harness.Driver, claim *csiclient.Publication, shim *guest.Shim) {
	t.Helper()

	// A new one instead of one that was killed.
	shim.Stop()
	guest.StartShim(t, d.Config.Node.Direct.Guest.ShimRoots[0], claim.VolumeID).SetUsage(t, smallUsage())

	require.NoError(t, os.RemoveAll(filepath.Join(harness.DirectEntry(d, claim), "elsewhere")))
	require.NoError(t, d.Publish(t.Context(), claim))
	take(t, d, claim, claim.VolumeID)
}

// TestRelistProbesTheGuest without any request for a usage. A guest that hangs does not make the
// probe hang.
func TestRelistProbesTheGuest(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, mode := range []guest.Mode{guest.Failing, guest.Hanging} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()

			var heard harness.Alarms

			d := harness.Start(t, harness.Relists, func(c *driver.Config) {
				heard = harness.NewAlarms(c.Log.Handler())
				c.Log = slog.New(heard)
			})
			claim, shim := published(t, d)
			awaitReasons(t, d, claim)
			shim.Switch(mode)
			awaitReasons(t, d, claim, health.GuestStatsUnavailable)

			shim.Switch(guest.OK)
			awaitReasons(t, d, claim)

			require.False(t, heard.Of(claim.VolumeID, health.ProbeTimedOut), heard.All())
			require.False(t, heard.Of(claim.VolumeID, health.VolumeUnmounted), heard.All())
		})
	}
}

// TestFullGuestIsOutOfCapacity: a guest fills its filesystem.
func TestFullGuestIsOutOfCapacity(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, harness.Relists)
	claim, shim := published(t, d)
	vm := boot(t, deviceOf(t, d, claim).Path, "ext4")
	shim.SetUsage(t, vm.usage(t))
	guestSays(t, d, claim, vm.usage(t))

	chunk := make([]byte, harness.MiB)
	file, err := os.Create(vm.path("data"))
	require.NoError(t, err)

	for err == nil {
		_, err = file.Write(chunk)
	}

	require.ErrorIs(t, errors.Join(err, file.Close()), unix.ENOSPC)

	full := vm.usage(t)
	shim.SetUsage(t, full)
	awaitReasons(t, d, claim, health.OutOfCapacity)

	usage, sick, message := askUsage(t, d, claim.VolumeID, claim.TargetPath)
	require.Equal(t, full.Bytes, usage.Bytes)
	require.True(t, sick, "want: the volume is reported as abnormal")
	require.Contains(t, message, string(health.OutOfCapacity))

	full.Inodes.Available, full.Bytes.Available = 0, harness.MiB
	shim.SetUsage(t, full)
	awaitReasons(t, d, claim, health.InodesExhausted)

	require.NoError(t, os.Remove(vm.path("data")))
	require.NoError(t, unix.Syncfs(int(vm.root.Fd())))
	shim.SetUsage(t, vm.usage(t))
	awaitReasons(t, d, claim)
	vm.shutDown()
}

// TestDirectStatsByKataRuntime, Kata's own program.
func TestDirectStatsByKataRuntime(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	kata := guest.NewKataRuntime(t)
	kata.SetUsage(t, smallUsage())

	d := harness.Start(t, func(c *driver.Config) { c.Node.Direct.Guest.KataRuntime = kata.Path })
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))
	guestIsSilent(t, d, claim, 64*harness.MiB)
	require.Empty(t, kata.Calls(t), "there is no shim to ask yet")
	take(t, d, claim, sandbox)
	guestSays(t, d, claim, smallUsage())

	for _, mode := range []guest.Mode{guest.Failing, guest.Hanging, guest.Garbage, guest.Babbling, guest.Impossible} {
		kata.Switch(t, mode)
		guestIsSilent(t, d, claim, 64*harness.MiB)
		kata.Switch(t, guest.Unimplemented)
		guestSays(t, d, claim, smallUsage())
	}

	for _, call := range kata.Calls(t) {
		require.Equal(t, []string{"direct-volume", "stats", "--volume-path", claim.TargetPath}, call)
	}

	expandController(t, d, claim, 96*harness.MiB)
	harness.RequireCode(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB), codes.FailedPrecondition)
	kata.Switch(t, guest.Failing)
	harness.RequireCode(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB), codes.Unavailable)
	kata.Switch(t, guest.OK)
	require.NoError(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB))
	require.Contains(t, kata.Calls(t), []string{
		"direct-volume", "resize", "--volume-path", claim.TargetPath, "--size", "100663296",
	})
}

func TestMissingKataRuntimeIsACondition(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Node.Direct.Guest.KataRuntime = filepath.Join(c.StateDir, "kata-runtime") })
	claim := directClaim(t, d)
	require.NoError(t, d.Publish(t.Context(), claim))
	take(t, d, claim, sandbox)
	guestIsSilent(t, d, claim, 64*harness.MiB)
	expandController(t, d, claim, 96*harness.MiB)
	harness.RequireCode(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB), codes.Unavailable)
}

// TestOnlyTheGuestGrowsItsFilesystem, which can fail in each way. The host never does it instead.
func TestOnlyTheGuestGrowsItsFilesystem(t *testing.T) {
	d := directDriver(t)

	const larger = 96 * harness.MiB

	for name, test := range map[string]struct {
		strike func(t *testing.T, claim *csiclient.Publication, shim *guest.Shim)
		want   codes.Code
	}{
		"ok":            {switched(guest.OK), codes.OK},
		"legacy":        {switched(guest.Legacy), codes.OK},
		"unimplemented": {switched(guest.Unimplemented), codes.FailedPrecondition},
		"404":           {switched(guest.NotFound), codes.FailedPrecondition},
		"501":           {said(http.StatusNotImplemented, ""), codes.FailedPrecondition},
		"500":           {switched(guest.Failing), codes.Unavailable},
		"hang":          {switched(guest.Hanging), codes.Unavailable},
		"drop":          {switched(guest.Dropping), codes.Unavailable},
		"garbage":       {switched(guest.Garbage), codes.Unavailable},
		"babble":        {switched(guest.Babbling), codes.Unavailable},
		"no sandbox": {func(t *testing.T, claim *csiclient.Publication, _ *guest.Shim) {
			require.NoError(t, os.Remove(filepath.Join(harness.DirectEntry(d, claim), claim.VolumeID)))
		}, codes.FailedPrecondition},
		"no entry": {func(t *testing.T, claim *csiclient.Publication, _ *guest.Shim) {
			require.NoError(t, os.RemoveAll(harness.DirectEntry(d, claim)))
		}, codes.FailedPrecondition},
		"killed": {func(_ *testing.T, _ *csiclient.Publication, shim *guest.Shim) { shim.Kill() }, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim, shim := published(t, d)
			harness.RequireCode(t, expandNode(t, d, claim, claim.TargetPath, larger), codes.OutOfRange, "ControllerExpandVolume")
			require.NoError(t, expandNode(t, d, claim, claim.TargetPath, 64*harness.MiB), "it has that already")
			require.Empty(t, resizes(shim), "want: the guest is not asked to grow to a size that it has")

			expandController(t, d, claim, larger)

			s := watch(t, d, claim)

			test.strike(t, claim, shim)

			err := expandNode(t, d, claim, claim.TargetPath, larger)
			if test.want != codes.OK {
				harness.RequireCode(t, err, test.want, "guest", "staged the next time")
				require.EqualValues(t, larger, listed(t, d, claim).PendingBytes, "want: the failed growth of the guest is pending")
				recovers(t, d, claim, shim)

				err = expandNode(t, d, claim, claim.TargetPath, larger)
			}

			require.NoError(t, err)
			require.Zero(t, listed(t, d, claim).PendingBytes, "want: no growth is pending")
			require.EqualValues(t, larger, deviceOf(t, d, claim).SizeBytes, "want: the device has the larger size")

			// A finished step needs no request.
			shim.Stop()
			require.NoError(t, expandNode(t, d, claim, claim.TargetPath, larger))
			s.sawNothing(t)
		})
	}
}

// resizes are what the shim was asked to do.
func resizes(shim *guest.Shim) []guest.Request {
	var found []guest.Request

	for _, request := range shim.Requests() {
		if request.URI == "/direct-volume/resize" || request.URI == "/fs-resize" {
			found = append(found, request)
		}
	}

	return found
}

// TestDirectResizeRequestsHaveKatasFormat, for guests of both generations.
func TestDirectResizeRequestsHaveKatasFormat(t *testing.T) {
	d := directDriver(t)
	claim, shim := published(t, d)
	device := deviceOf(t, d, claim).Path

	expandController(t, d, claim, 96*harness.MiB)
	require.NoError(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB))

	now := guest.Request{Method: http.MethodPost, URI: "/direct-volume/resize", Body: fmt.Sprintf(`{"VolumePath":%q,"Size":100663296}`, device)}
	require.Equal(t, []guest.Request{now}, resizes(shim))

	shim.Switch(guest.Legacy)
	expandController(t, d, claim, 128*harness.MiB)
	// By the staging path, too, it is what the guest has.
	require.NoError(t, expandNode(t, d, claim, claim.StagingPath, 128*harness.MiB))
	require.Equal(t, guest.Request{
		Method: http.MethodPut, URI: "/fs-resize", Body: fmt.Sprintf(`{"block-device":%q,"volume-size":"134217728"}`, device),
	}, resizes(shim)[2])
	guestSays(t, d, claim, smallUsage())

	// Not the last: a probe may have begun, which tries today's words first.
	require.Contains(t, shim.Requests(), guest.Request{Method: http.MethodPut, URI: "/fs-stats", Body: fmt.Sprintf(`{"block-device":%q}`, device)})
}

// TestDirectReaderIsNotResized, since its guest can't write: it gets no request.
func TestDirectReaderIsNotResized(t *testing.T) {
	d := directDriver(t)
	claim := directClaim(t, d)
	claim.ReadOnly = true
	require.NoError(t, d.Publish(t.Context(), claim))

	shim := run(t, d, claim)
	expandController(t, d, claim, 96*harness.MiB)
	harness.RequireCode(t, expandNode(t, d, claim, claim.TargetPath, 96*harness.MiB), codes.FailedPrecondition, "read-only", "staged the next time")
	require.Empty(t, resizes(shim), "want: a reader's guest is not asked to grow")
	require.EqualValues(t, 96*harness.MiB, listed(t, d, claim).SizeBytes, "want: the assignment has the larger size")
}
