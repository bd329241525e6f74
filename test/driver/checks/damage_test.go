package checks_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
)

func TestCheckOfADamagedVolume(t *testing.T) {
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

		found := requireCheck(t, d, claim, fsck.VerdictDamaged, fsck.HowOnline)
		t.Log(found.Detail)
		harness.RequireThawed(t, claim.StagingPath)
		harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

		harness.TakeDown(t, d, claim)
		harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)
		requireCheck(t, d, claim, fsck.VerdictDamaged, fsck.HowOffline)

		// What says that it is clean is not believed any more.
		require.NoError(t, d.Attach(t.Context(), claim))
		harness.RequireCode(t, d.Stage(t.Context(), claim), codes.Internal, fsType, "damaged", "by hand")
		harness.RequireUnstaged(t, d, claim)
		require.Equal(t, fsck.HowStage, harness.ReportOf(t, d, claim.VolumeID).Check.How)
		harness.AwaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

		// Repaired by hand.
		output, err = child.Command(t, "cp", "--sparse=always", sound, image).CombinedOutput()
		require.NoError(t, err, "%s", output)
		requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOffline)
		harness.AwaitReason(t, d, claim.VolumeID, "")
		require.NoError(t, d.Stage(t.Context(), claim))
		harness.AwaitReason(t, d, claim.VolumeID, "")
	})
}
