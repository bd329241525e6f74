package staging_test

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// unstagedClaim is a use of a volume by a CO that does not stage.
func unstagedClaim(t *testing.T, d *harness.Driver, request *csi.CreateVolumeRequest) *csiclient.Publication {
	t.Helper()

	claim := harness.NewVolume(t, d, request)
	require.NoError(t, d.Attach(t.Context(), claim))
	claim.StagingPath = ""
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		require.NoError(t, d.Unpublish(ctx, claim))
		require.NoError(t, d.Detach(ctx, claim))
	})

	return claim
}

func unstagedKinds() map[string]*csi.CreateVolumeRequest {
	kinds := harness.KindRequests(harness.MultiWriter)
	maps.DeleteFunc(kinds, func(name string, _ *csi.CreateVolumeRequest) bool { return name == "xfs" || name == "btrfs" })

	return kinds
}

func TestPublishWithoutStaging(t *testing.T) {
	namespace.NeedRoot(t)

	for name, request := range unstagedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, harness.WithoutCapabilities("STAGE_UNSTAGE_VOLUME"))
			first := unstagedClaim(t, d, request)
			second, reader := harness.AnotherTarget(first, "second"), harness.AnotherTarget(first, "reader")
			reader.ReadOnly = true

			require.NoError(t, d.Publish(t.Context(), first))
			harness.WriteBlock(t, first)

			for _, more := range []*csiclient.Publication{second, reader} {
				require.NoError(t, d.Publish(t.Context(), more))
				harness.RequireBlock(t, more)
			}

			// The last unpublish unstages, whichever target was first, and
			// however often the driver was restarted in between.
			for _, gone := range []*csiclient.Publication{first, reader} {
				require.NoError(t, d.Unpublish(t.Context(), gone))
				harness.RequireBlock(t, second)
				d.Restart(t)
				harness.RequireBlock(t, second)
			}

			require.NoError(t, d.Unpublish(t.Context(), second))
			harness.RequireNothingStaged(t, d)
			require.NoError(t, d.Detach(t.Context(), first))
			harness.DeleteVolume(t, d, first.VolumeID)
		})
	}
}

func TestFailedPublicationUndoesItsStaging(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, harness.WithoutCapabilities("STAGE_UNSTAGE_VOLUME"))
	claim := unstagedClaim(t, d, &csi.CreateVolumeRequest{})

	target := claim.TargetPath
	claim.TargetPath = filepath.Join(d.Root, "elsewhere")
	harness.RequireCode(t, d.Publish(t.Context(), claim), codes.InvalidArgument, "elsewhere")
	harness.RequireNothingStaged(t, d)

	claim.TargetPath = target
	require.NoError(t, d.Publish(t.Context(), claim))
	requireNothingElseStaged(t, d, claim.VolumeID)
}

func requireNothingElseStaged(t *testing.T, d *harness.Driver, id string) {
	t.Helper()

	left, err := os.ReadDir(harness.OwnStaging(d))
	require.NoError(t, err)
	require.Len(t, left, 1, "want: the volume alone is staged")
	require.Equal(t, id, left[0].Name())
}

// TestStagingWithoutPublicationEndsAtTheStart after a crash, or a process that unmounts.
func TestStagingWithoutPublicationEndsAtTheStart(t *testing.T) {
	namespace.NeedRoot(t)

	for name, request := range unstagedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, harness.WithoutCapabilities("STAGE_UNSTAGE_VOLUME"))
			claim := unstagedClaim(t, d, request)
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.WriteBlock(t, claim)
			harness.Unmount(t, claim.TargetPath)

			d.Restart(t)
			harness.RequireNothingStaged(t, d)
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.RequireBlock(t, claim)
		})
	}
}

// TestStagingIsDisabledWhileVolumesAreUsed and enabled again: what is published
// stays so, and nothing of it remains in the end.
func TestStagingIsDisabledWhileVolumesAreUsed(t *testing.T) {
	namespace.NeedRoot(t)

	for name, request := range unstagedKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t)
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)
			harness.WriteBlock(t, claim)

			d.Restart(t, harness.WithoutCapabilities("STAGE_UNSTAGE_VOLUME"))
			harness.RequireBlock(t, claim)

			second := harness.AnotherTarget(claim, "second")
			require.NoError(t, d.Publish(t.Context(), second))
			harness.RequireBlock(t, second)
			require.NoError(t, d.Unpublish(t.Context(), second))
			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			requireNothingElseStagedUnless(t, d, claim)
			harness.RequireBlock(t, claim)

			d.Restart(t, harness.WithoutCapabilities())
			harness.RequireBlock(t, claim)
			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireNothingStaged(t, d)

			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			harness.RequireBlock(t, claim)
		})
	}
}

// requireNothingElseStagedUnless it is a device, which needs no mount point.
func requireNothingElseStagedUnless(t *testing.T, d *harness.Driver, claim *csiclient.Publication) {
	t.Helper()

	if claim.Capability.GetBlock() == nil {
		requireNothingElseStaged(t, d, claim.VolumeID)
	}
}
