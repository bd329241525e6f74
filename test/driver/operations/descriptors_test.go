package operations_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// withoutDescriptors leaves the driver unable to open anything: every observation of a mount, a
// device or a pool fails with EMFILE. What is open stays open, the connection of
// the client among it.
func withoutDescriptors(t *testing.T, d *harness.Driver) (restore func()) {
	t.Helper()

	var before unix.Rlimit

	// Below the descriptors that a process always has open.
	require.NoError(t, unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, nil, &before))
	require.NoError(t, unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: before.Max}, nil))

	restore = func() {
		require.NoError(t, unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &before, nil))
	}
	t.Cleanup(func() { _ = unix.Prlimit(d.PID(), unix.RLIMIT_NOFILE, &before, nil) }) // the driver may have ended

	return restore
}

// failsUnseen requires that a call failed because an observation did.
func failsUnseen(t *testing.T, what string, err error) {
	t.Helper()
	require.Error(t, err, "%s succeeded although the driver could not see whether the volume is in use", what)
	require.Contains(t, []codes.Code{codes.Unavailable, codes.Internal}, status.Code(err), "%s: %v", what, err)
	require.Contains(t, status.Convert(err).Message(), "too many open files", what)
}

// TestWithoutDescriptorsNothingIsAbsent: the calls that could lose the data of a published volume
// are made while the driver can observe nothing. Each fails, and none leaves anything behind that a
// later start would act on.
func TestWithoutDescriptorsNothingIsAbsent(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	kinds := harness.KindRequests(harness.Writer)
	delete(kinds, "btrfs") // as ext4 in all that is observed
	kinds["direct"] = harness.DirectRequest("ext4")

	for name, request := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t)
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)

			check := func() { harness.RequireBlock(t, claim) }
			if name == "direct" {
				check = func() { require.FileExists(t, harness.MountInfoPath(d, claim), "the runtime's file is gone") }
			} else {
				harness.WriteBlock(t, claim)
			}

			ctx := t.Context()
			restore := withoutDescriptors(t, d)

			for what, call := range map[string]func() error{
				"NodeUnpublishVolume":       func() error { return d.Unpublish(ctx, claim) },
				"NodeUnstageVolume":         func() error { return d.Unstage(ctx, claim) },
				"ControllerUnpublishVolume": func() error { return d.Detach(ctx, claim) },
				"NodePublishVolume":         func() error { return d.Publish(ctx, harness.AnotherTarget(claim, "second")) },
				"NodeStageVolume":           func() error { return d.Stage(ctx, claim) },
			} {
				failsUnseen(t, what, call())
			}

			// The last usage with a condition is an answer, too; that it is gone is none.
			require.NotEqual(t, codes.NotFound, status.Code(harness.VolumeStats(t, d, claim, claim.TargetPath)), "NodeGetVolumeStats")

			restore()
			require.NoError(t, d.Publish(ctx, claim), "the publication was forgotten")
			check()

			d.Kill(t)
			check()
			require.NoError(t, d.Publish(ctx, claim), "the publication was forgotten at the start")
			harness.TakeDown(t, d, claim)
			harness.DeleteVolume(t, d, claim.VolumeID)
		})
	}
}

// TestDeleteVolumeWithoutDescriptors: the driver observes no attachment: it alone sees that the
// volume is published.
func TestDeleteVolumeWithoutDescriptors(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	kinds := harness.KindRequests(harness.Writer)
	delete(kinds, "btrfs") // as ext4 in all that is observed

	for name, request := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t, harness.WithoutCapabilities("PUBLISH_UNPUBLISH_VOLUME"))
			claim := harness.NewVolume(t, d, request)
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Publish(t.Context(), claim))
			t.Cleanup(func() {
				ctx := context.WithoutCancel(t.Context())
				require.NoError(t, d.Unpublish(ctx, claim))
				require.NoError(t, d.Unstage(ctx, claim))
			})
			harness.WriteBlock(t, claim)

			restore := withoutDescriptors(t, d)
			_, err := d.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})
			failsUnseen(t, "DeleteVolume", err)
			restore()

			// What was recorded is done at the next start.
			d.Kill(t)
			harness.RequireBlock(t, claim)
			require.Equal(t, []string{claim.VolumeID}, harness.ListAll(t, d), "the volume was recorded as deleted")

			require.NoError(t, d.Unpublish(t.Context(), claim))
			require.NoError(t, d.Unstage(t.Context(), claim))
			harness.DeleteVolume(t, d, claim.VolumeID)
		})
	}
}

// TestEphemeralVolumesWithoutDescriptors is the same for volumes that end with their
// only publication.
func TestEphemeralVolumesWithoutDescriptors(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, attributes := range map[string]map[string]string{
		"image": harness.SmallInline(), "directory": {"size": "16Mi", "backing": "directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := harness.StartProcess(t)
			claim := harness.InlineClaim(t, d, attributes)
			require.NoError(t, os.MkdirAll(filepath.Dir(claim.TargetPath), 0o750))
			require.NoError(t, d.Publish(t.Context(), claim))

			file := filepath.Join(claim.TargetPath, "data")
			harness.WriteFile(t, file, "precious")

			restore := withoutDescriptors(t, d)
			failsUnseen(t, "NodeUnpublishVolume", d.Unpublish(t.Context(), claim))
			failsUnseen(t, "NodePublishVolume", d.Publish(t.Context(), claim))
			restore()

			harness.RequireFile(t, file, "precious")
			d.Kill(t)
			harness.RequireFile(t, file, "precious")
			require.NoError(t, d.Publish(t.Context(), claim), "the publication was forgotten")

			require.NoError(t, d.Unpublish(t.Context(), claim))
			harness.RequireEphemeralGone(t, d, claim)
		})
	}
}
