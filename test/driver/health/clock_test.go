package health_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// year is how far a clock is wrong in these tests.
const year = 365 * 24 * time.Hour

// TestChecksWhenTheClockWasSetBack: a clean check that is recorded in the future hides
// neither that none has succeeded since nor I/O errors.
func TestChecksWhenTheClockWasSetBack(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	inFuture := func(record map[string]any) { record["cleanAt"] = time.Now().Add(year) }

	t.Run("CheckOverdue", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, harness.InMode(driver.ModeNode), harness.Relists)
		claim := harness.StagedVolume(t, d, "ext4")
		harness.Populate(t, claim.StagingPath)
		harness.DamageInodes(t, "ext4", harness.ImageOf(d, claim.VolumeID))
		harness.SetCheckPeriod(t, d, claim.VolumeID, harness.ShortCheckPeriod.String())
		harness.EditRecord(t, d, "checks", claim.VolumeID, inFuture)
		harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)
		harness.AwaitReason(t, d, claim.VolumeID, health.CheckOverdue)
		require.False(t, harness.ReportOf(t, d, claim.VolumeID).Check.CleanAt.After(time.Now()), "want: the time of the last check is not in the future")
	})
	t.Run("IOErrors", func(t *testing.T) {
		t.Parallel()

		// Without checks nothing corrects the record.
		p := (&illness{served: true, options: []harness.Option{func(c *driver.Config) { c.Node.CheckPeriod = 0 }}}).admit(t, harness.Relists)
		harness.EditRecord(t, p.Driver, "checks", p.claim.VolumeID, inFuture)
		p.awaitLook(t)
		failReads(t, p)
		harness.AwaitReason(t, p.Driver, p.claim.VolumeID, health.IOErrors)
		releaseAndRestage(t, p)
		harness.TakeDown(t, p.Driver, p.claim)
		require.NoError(t, os.Remove(p.image))
	})
}
