package checks_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// awaitChecked waits for a check of the volume that began after the given time.
func awaitChecked(t *testing.T, d *harness.Driver, id, how string, after time.Time) *health.CheckReport {
	t.Helper()

	var found *health.CheckReport

	require.Eventually(t, func() bool {
		found = harness.ReportOf(t, d, id).Check

		return found != nil && found.How == how && found.At.After(after)
	}, await.Limit, 10*time.Millisecond, "%s: %+v", how, found)

	return found
}

// requireLeftAlone has another volume be checked some times, and this one never.
func requireLeftAlone(t *testing.T, d *harness.Driver, id, other string) {
	t.Helper()

	before := harness.ReportOf(t, d, id).Check.At

	for range 4 {
		awaitChecked(t, d, other, fsck.HowOnline, time.Now())
	}

	require.Equal(t, before, harness.ReportOf(t, d, id).Check.At)
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
			require.NoError(t, harness.Modify(t.Context(), d, id, map[string]string{volume.KeyCheckPeriod: period}))
		}},
		"of a node": {[]harness.Option{harness.InMode(driver.ModeNode)}, harness.SetCheckPeriod},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, test.options...)
			own, other := usedVolume(t, d), usedVolume(t, d)
			require.Equal(t, fsck.HowStage, harness.ReportOf(t, d, own.VolumeID).Check.How)

			for _, claim := range []*csiclient.Publication{own, other} {
				test.modify(t, d, claim.VolumeID, harness.ShortCheckPeriod.String())
			}

			awaitChecked(t, d, own.VolumeID, fsck.HowOnline, time.Now())
			require.Equal(t, fsck.VerdictClean, awaitChecked(t, d, own.VolumeID, fsck.HowOnline, time.Now()).Verdict)

			test.modify(t, d, own.VolumeID, "0s")
			// One may have begun.
			awaitChecked(t, d, other.VolumeID, fsck.HowOnline, time.Now())
			requireLeftAlone(t, d, own.VolumeID, other.VolumeID)

			// Not in use, it is one whose period only its pool stores.
			require.NoError(t, d.Unstage(t.Context(), own))
			test.modify(t, d, own.VolumeID, harness.ShortCheckPeriod.String())
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
		return harness.StagedVolume(t, d, "ext4")
	}

	id := volume.NewID()

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: id})
	harness.AttachAndStage(t, d, claim)

	return claim
}

// TestChecksFindDamage runs without any request.
func TestChecksFindDamage(t *testing.T) {
	eachPool(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, fsType string) {
		t.Helper()
		harness.BringUp(t, d, claim)
		harness.Populate(t, claim.TargetPath)
		harness.TakeDown(t, d, claim)
		harness.BringUp(t, d, claim)

		image, sound := harness.ImageOf(d, claim.VolumeID), filepath.Join(d.Root, "sound")
		output, err := child.Command(t, "cp", "--sparse=always", image, sound).CombinedOutput()
		require.NoError(t, err, "%s", output)
		harness.DamageInodes(t, fsType, image)
		require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, map[string]string{volume.KeyCheckPeriod: "1s"}))
		harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

		harness.TakeDown(t, d, claim)
		output, err = child.Command(t, "cp", "--sparse=always", sound, image).CombinedOutput()
		require.NoError(t, err, "%s", output)

		// On a busy machine two checks may be further apart than this period allows.
		require.Eventually(t, func() bool {
			left := harness.ReasonsOf(t, d, claim.VolumeID)

			return len(left) == 0 || slices.Equal(left, []health.Reason{health.CheckOverdue})
		}, await.Limit, 10*time.Millisecond, "want: the repaired volume is healthy or its check overdue")
		require.NoError(t, harness.Modify(t.Context(), d, claim.VolumeID, map[string]string{volume.KeyCheckPeriod: "1h"}))
		d.Restart(t)
		harness.AwaitReason(t, d, claim.VolumeID, "")
	})
}

// TestAllVolumesAreChecked in the driver's period, also after a restart.
func TestAllVolumesAreChecked(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.Node.CheckPeriod = 5 * harness.ShortCheckPeriod })

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

// TestDeletedVolumeLosesItsRecord of checks.
func TestDeletedVolumeLosesItsRecord(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	known := func(t *testing.T, d *harness.Driver, id string) bool {
		t.Helper()

		report, err := health.NewClient(d.Conn()).Report(t.Context())
		require.NoError(t, err)

		return slices.ContainsFunc(report.Volumes, func(v health.VolumeReport) bool { return v.ID == id })
	}

	for name, options := range map[string][]harness.Option{"deleted": nil, "deleted, without an event": {harness.PollingOnly}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, options...)
			claim := usedVolume(t, d)
			harness.TakeDown(t, d, claim)
			require.True(t, known(t, d, claim.VolumeID), "want: the driver knows a check of the volume")
			harness.DeleteVolume(t, d, claim.VolumeID)
			require.Eventually(t, func() bool { return !known(t, d, claim.VolumeID) }, await.Limit, 10*time.Millisecond, "want: the check of a deleted volume is forgotten")
		})
	}

	t.Run("while the driver is away", func(t *testing.T) {
		t.Parallel()

		d := harness.StartNode(t)
		claim := usedVolume(t, d)
		require.NoError(t, d.Unstage(t.Context(), claim))
		d.Stop()
		require.NoError(t, os.Remove(harness.ImageOf(d, claim.VolumeID)))
		d.Restart(t)
		require.Eventually(t, func() bool { return !known(t, d, claim.VolumeID) }, await.Limit, 10*time.Millisecond, "want: the check of a volume without an image is forgotten")
	})
	t.Run("while its pool does not answer", func(t *testing.T) {
		t.Parallel()

		served := faults.Serve(t)
		d := harness.Start(t, harness.InMode(driver.ModeNode), harness.PoolAt("default", filepath.Join(served.Path, "pool")))
		claim := usedVolume(t, d)
		require.NoError(t, d.Unstage(t.Context(), claim))
		require.True(t, known(t, d, claim.VolumeID), "want: the driver knows a check of the volume")

		served.Inject(t, faults.Fault{Errno: unix.EIO})
		harness.AwaitStorage(t, d, "default", health.PoolUnreachable)
		require.NoError(t, os.Remove(filepath.Join(served.Backing, "pool", "images", filepath.Base(harness.ImageOf(d, claim.VolumeID)))))
		served.Release(t)
		require.Eventually(t, func() bool { return !known(t, d, claim.VolumeID) }, await.Limit, 10*time.Millisecond, "want: the check of a volume without an image is forgotten")
	})
	t.Run("moved away in use", func(t *testing.T) {
		t.Parallel()

		d := harness.StartNode(t)
		claim := usedVolume(t, d)
		require.NoError(t, os.Rename(harness.ImageOf(d, claim.VolumeID), filepath.Join(d.Root, "moved")))
		harness.AwaitReason(t, d, claim.VolumeID, health.BackingFileMissing)
		require.NotNil(t, harness.ReportOf(t, d, claim.VolumeID).Check, "want: the check of a volume in use is kept")
		require.NoError(t, os.Rename(filepath.Join(d.Root, "moved"), harness.ImageOf(d, claim.VolumeID)))
		harness.AwaitReason(t, d, claim.VolumeID, "")
	})
}

// TestALostRecordIsMadeAgain covers a kill before the record of a staging's check is on disk.
func TestALostRecordIsMadeAgain(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.StartNode(t)
	used := harness.StagedVolume(t, d, "ext4")

	d.Stop()

	taken, err := harness.OpenNode(t.Context(), harness.NodeConfigOf(d), d.Config.Log)
	require.NoError(t, err)
	require.NoError(t, taken.Checker().Forget(used.VolumeID))
	require.NoError(t, taken.Close())
	d.Restart(t)

	found := harness.ReportOf(t, d, used.VolumeID).Check
	require.NotNil(t, found, "a volume without a record is never checked on schedule")
	require.Equal(t, fsck.HowStage, found.How)
	require.Equal(t, fsck.VerdictClean, found.Verdict)
}
