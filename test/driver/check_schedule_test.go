package driver_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// shortPeriod is the time between two checks that a test awaits.
const shortPeriod = 200 * time.Millisecond

// awaitChecked waits for a check of the volume that began after the given time.
func awaitChecked(t *testing.T, d *harness.Driver, id, how string, after time.Time) *health.CheckReport {
	t.Helper()

	var found *health.CheckReport

	require.Eventually(t, func() bool {
		found = reportOf(t, d, id).Check

		return found != nil && found.How == how && found.At.After(after)
	}, soon, 10*time.Millisecond, "%s: %+v", how, found)

	return found
}

// requireLeftAlone has another volume be checked some times, and this one never.
func requireLeftAlone(t *testing.T, d *harness.Driver, id, other string) {
	t.Helper()

	before := reportOf(t, d, id).Check.At

	for range 4 {
		awaitChecked(t, d, other, fsck.HowOnline, time.Now())
	}

	require.Equal(t, before, reportOf(t, d, id).Check.At)
}

func TestChecksFollowThePeriod(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		options []harness.Option
		modify  func(t *testing.T, d *harness.Driver, id, period string)
	}{
		"of a driver that serves all": {nil, func(t *testing.T, d *harness.Driver, id, period string) {
			t.Helper()
			require.NoError(t, modify(t.Context(), d, id, map[string]string{volume.KeyCheckPeriod: period}))
		}},
		"of a node": {[]harness.Option{inMode(driver.ModeNode)}, modifyElsewhere},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, test.options...)
			own, other := usedVolume(t, d), usedVolume(t, d)
			require.Equal(t, fsck.HowStage, reportOf(t, d, own.VolumeID).Check.How)

			for _, claim := range []*csiclient.Publication{own, other} {
				test.modify(t, d, claim.VolumeID, shortPeriod.String())
			}

			awaitChecked(t, d, own.VolumeID, fsck.HowOnline, time.Now())
			require.Equal(t, fsck.VerdictClean, awaitChecked(t, d, own.VolumeID, fsck.HowOnline, time.Now()).Verdict)

			test.modify(t, d, own.VolumeID, "0s")
			// One may have begun.
			awaitChecked(t, d, other.VolumeID, fsck.HowOnline, time.Now())
			requireLeftAlone(t, d, own.VolumeID, other.VolumeID)

			// Not in use, it is one whose period only its pool stores.
			require.NoError(t, d.Unstage(t.Context(), own))
			test.modify(t, d, own.VolumeID, shortPeriod.String())
			awaitChecked(t, d, own.VolumeID, fsck.HowOffline, time.Now())
			require.Equal(t, fsck.VerdictClean, awaitChecked(t, d, own.VolumeID, fsck.HowOffline, time.Now()).Verdict)
		})
	}
}

// usedVolume is staged, and was made by the driver or, where it makes none, for
// it.
func usedVolume(t *testing.T, d *harness.Driver) *csiclient.Publication {
	t.Helper()

	if d.Config.Mode == driver.ModeNode {
		return stagedFor(t, d, "ext4")
	}

	id, err := volume.NewID()
	require.NoError(t, err)

	claim := newVolume(t, d, &csi.CreateVolumeRequest{Name: id})
	attachAndStage(t, d, claim)

	return claim
}

// modifyElsewhere does what a controller in another process does.
func modifyElsewhere(t *testing.T, d *harness.Driver, id, period string) {
	t.Helper()

	opened, err := pool.Open("default", d.Pool())
	require.NoError(t, err)

	defer opened.Close()

	attributes, err := volume.ParseMutable(map[string]string{volume.KeyCheckPeriod: period})
	require.NoError(t, err)
	require.NoError(t, opened.SetAttributes(id, attributes))
}

// TestChecksFindDamage runs without any request.
func TestChecksFindDamage(t *testing.T) {
	eachPool(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, fsType string) {
		t.Helper()
		bringUp(t, d, claim)
		populate(t, claim.TargetPath)
		takeDown(t, d, claim)
		bringUp(t, d, claim)

		image, sound := imageOf(d, claim.VolumeID), filepath.Join(d.Root, "sound")
		output, err := child.Command(t, "cp", "--sparse=always", image, sound).CombinedOutput()
		require.NoError(t, err, "%s", output)
		damageInodes(t, fsType, image)
		require.NoError(t, modify(t.Context(), d, claim.VolumeID, map[string]string{volume.KeyCheckPeriod: "1s"}))
		awaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

		takeDown(t, d, claim)
		output, err = child.Command(t, "cp", "--sparse=always", sound, image).CombinedOutput()
		require.NoError(t, err, "%s", output)

		// On a busy machine two checks may be further apart than this period allows.
		require.Eventually(t, func() bool {
			left := reasonsOf(t, d, claim.VolumeID)

			return len(left) == 0 || slices.Equal(left, []health.Reason{health.CheckOverdue})
		}, soon, 10*time.Millisecond)
		require.NoError(t, modify(t.Context(), d, claim.VolumeID, map[string]string{volume.KeyCheckPeriod: "1h"}))
		d.Restart(t)
		awaitReason(t, d, claim.VolumeID, "")
	})
}

// TestChecksOfAll has the driver's period, and goes on after a restart.
func TestChecksOfAll(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.CheckPeriod = 5 * shortPeriod })

	var ids []string

	for range 5 {
		ids = append(ids, usedVolume(t, d).VolumeID)
	}

	for range 2 {
		began := time.Now()

		for _, id := range ids {
			awaitChecked(t, d, id, fsck.HowOnline, began)
		}

		d.Restart(t)
	}
}

// TestChecksForgetVolumes has the record go with the volume.
func TestChecksForgetVolumes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	known := func(t *testing.T, d *harness.Driver, id string) bool {
		t.Helper()

		report, err := health.NewClient(d.Conn()).Report(t.Context())
		require.NoError(t, err)

		return slices.ContainsFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == id })
	}

	for name, options := range map[string][]harness.Option{"deleted": nil, "deleted, without an event": {pollingOnly}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, options...)
			claim := usedVolume(t, d)
			takeDown(t, d, claim)
			require.True(t, known(t, d, claim.VolumeID), "want: the driver knows a check of the volume")
			deleteVolume(t, d, claim.VolumeID)
			require.Eventually(t, func() bool { return !known(t, d, claim.VolumeID) }, soon, 10*time.Millisecond)
		})
	}

	t.Run("while the driver is away", func(t *testing.T) {
		t.Parallel()

		d := startNode(t)
		claim := usedVolume(t, d)
		require.NoError(t, d.Unstage(t.Context(), claim))
		d.Stop()
		require.NoError(t, os.Remove(imageOf(d, claim.VolumeID)))
		d.Restart(t)
		require.Eventually(t, func() bool { return !known(t, d, claim.VolumeID) }, soon, 10*time.Millisecond)
	})
	t.Run("while its pool does not answer", func(t *testing.T) {
		t.Parallel()

		served := faults.Serve(t)
		d := harness.Start(t, inMode(driver.ModeNode), poolAt("default", filepath.Join(served.Path, "pool")))
		claim := usedVolume(t, d)
		require.NoError(t, d.Unstage(t.Context(), claim))
		require.True(t, known(t, d, claim.VolumeID), "want: the driver knows a check of the volume")

		served.Inject(t, faults.Fault{Errno: unix.EIO})
		storage(t, d, "default", health.PoolUnreachable)
		require.NoError(t, os.Remove(filepath.Join(served.Backing, "pool", "images", filepath.Base(imageOf(d, claim.VolumeID)))))
		served.Release(t)
		require.Eventually(t, func() bool { return !known(t, d, claim.VolumeID) }, soon, 10*time.Millisecond)
	})
	t.Run("moved away in use", func(t *testing.T) {
		t.Parallel()

		d := startNode(t)
		claim := usedVolume(t, d)
		require.NoError(t, os.Rename(imageOf(d, claim.VolumeID), filepath.Join(d.Root, "moved")))
		awaitReason(t, d, claim.VolumeID, health.BackingFileMissing)
		require.NotNil(t, reportOf(t, d, claim.VolumeID).Check)
		require.NoError(t, os.Rename(filepath.Join(d.Root, "moved"), imageOf(d, claim.VolumeID)))
		awaitReason(t, d, claim.VolumeID, "")
	})
}
