package freeze_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestFreezeHoldsWritersBack(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := harness.StartNode(t)
			claim := harness.StagedVolume(t, d, fsType)
			taken := takeOver(t, d, 0)
			require.True(t, taken.CanFreeze(claim.VolumeID), "want: the volume can be frozen")

			var waiting *harness.HeldWrite

			require.NoError(t, taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(context.Context) error {
				harness.RequireFrozen(t, claim.StagingPath)

				waiting = harness.StartHeldWrite(t, filepath.Join(claim.StagingPath, "file"))
				require.True(t, waiting.Pending(), "want: the write still waits")

				return nil
			}))
			waiting.RequireDone(t)
			harness.RequireFile(t, filepath.Join(claim.StagingPath, "file"), "written")
			harness.RequireThawed(t, claim.StagingPath)
		})
	}
}

// TestFreezeWindowIsReported: how long writers waited.
func TestFreezeWindowIsReported(t *testing.T) {
	namespace.NeedRoot(t)

	var said bytes.Buffer

	d := harness.StartNode(t)
	claim := harness.StagedVolume(t, d, "ext4")
	d.Config.Log = slog.New(slog.NewJSONHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	taken := takeOver(t, d, 0)

	said.Reset()
	require.NoError(t, taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(context.Context) error { return nil }))

	var reported struct {
		Volumes int           `json:"volumes"`
		First   string        `json:"first"`
		Window  time.Duration `json:"window"`
	}

	require.NoError(t, json.Unmarshal(said.Bytes(), &reported), "%s", said.String())
	require.Equal(t, 1, reported.Volumes, "want: one volume is frozen")
	require.Equal(t, claim.VolumeID, reported.First)
	require.Positive(t, reported.Window, "want: the freeze has a duration")
	t.Log(reported.Window)
}

var errWithin = errors.New("what was to be done failed")

func TestFreezeEndsAfterEachOutcome(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartNode(t)
	claim := harness.StagedVolume(t, d, "ext4")
	taken := takeOver(t, d, 0)
	ids := []string{claim.VolumeID}

	t.Run("error", func(t *testing.T) {
		require.ErrorIs(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error { return errWithin }), errWithin)
		harness.RequireThawed(t, claim.StagingPath)
	})
	t.Run("panic", func(t *testing.T) {
		require.PanicsWithError(t, errWithin.Error(), func() {
			_ = taken.WithFrozen(t.Context(), ids, func(context.Context) error {
				harness.RequireFrozen(t, claim.StagingPath)
				panic(errWithin)
			})
		})
		harness.RequireThawed(t, claim.StagingPath)
	})
	t.Run("caller gone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := taken.WithFrozen(ctx, ids, func(ctx context.Context) error {
			waiting := harness.StartHeldWrite(t, filepath.Join(claim.StagingPath, "file"))

			cancel()
			<-ctx.Done()
			// It is thawed although this goes on.
			waiting.RequireDone(t)

			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		harness.RequireThawed(t, claim.StagingPath)
	})
	t.Run("thawed by another", func(t *testing.T) {
		err := taken.WithFrozen(t.Context(), ids, func(context.Context) error { return harness.Thaw(claim.StagingPath) })
		harness.RequireCode(t, rpc.Status(err), codes.Aborted, claim.VolumeID, "thawed by another program")
	})
	t.Run("frozen by another", func(t *testing.T) {
		require.NoError(t, harness.AtRoot(claim.StagingPath, filesystem.Freeze))
		harness.RequireCode(t, rpc.Status(taken.WithFrozen(t.Context(), ids, neverCalled)), codes.FailedPrecondition, claim.VolumeID, "fsfreeze")
		harness.RequireFrozen(t, claim.StagingPath)
		require.NoError(t, harness.Thaw(claim.StagingPath))
	})
	t.Run("not begun", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, taken.WithFrozen(ctx, ids, neverCalled), context.Canceled)
		harness.RequireThawed(t, claim.StagingPath)
	})
	t.Run("and once more", func(t *testing.T) {
		require.NoError(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error { return nil }))
	})
}

func neverCalled(context.Context) error { panic("this must not be called") }

func TestFreezeIsLimited(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartNode(t)
	claim := harness.StagedVolume(t, d, "xfs")
	taken := takeOver(t, d, 3*time.Second)

	err := taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(ctx context.Context) error {
		waiting := harness.StartHeldWrite(t, filepath.Join(claim.StagingPath, "file"))
		<-ctx.Done()
		waiting.RequireDone(t)

		return nil
	})
	require.ErrorIs(t, err, freeze.ErrLimit)
	harness.RequireCode(t, rpc.Status(err), codes.FailedPrecondition, "3s")
	harness.RequireThawed(t, claim.StagingPath)
}

// TestUnfinishedFreezeIsGivenUp: a write is begun that does not end, so that the freeze does not
// complete: neither the caller nor the other volumes wait for it.
func TestUnfinishedFreezeIsGivenUp(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartNode(t)
	well, stuck := harness.StagedVolume(t, d, "ext4"), harness.StagedVolume(t, d, "ext4")
	// Enough for the one that can be frozen, on a busy machine, too.
	taken := takeOver(t, d, 2*time.Second)
	memory := newPendingMemory(t)
	ended := make(chan error, 1)
	ids := []string{well.VolumeID, stuck.VolumeID}

	file, err := os.Create(filepath.Join(stuck.StagingPath, "file"))
	require.NoError(t, err)

	go func() {
		_, err := file.Write(memory.page)
		ended <- errors.Join(err, file.Close())
	}()

	memory.awaitFault(t)

	err = taken.WithFrozen(t.Context(), ids, neverCalled)
	require.ErrorIs(t, err, freeze.ErrLimit)
	errtext.Require(t, err, stuck.VolumeID)
	harness.RequireThawed(t, well.StagingPath)

	memory.fill(t)
	require.NoError(t, await.Receive(t, ended, "the write to return once its page is filled"))
	require.Eventually(t, func() bool {
		return taken.WithFrozen(t.Context(), ids, func(context.Context) error { return nil }) == nil
	}, await.Limit, 10*time.Millisecond, "want: the volume can be frozen again")
	harness.RequireThawed(t, stuck.StagingPath)
}

// TestFilesystemsOfSeveralVolumesAreFrozen: there is one of each kind.
func TestFilesystemsOfSeveralVolumesAreFrozen(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartNode(t)

	var ids []string

	var frozen []string

	for _, fsType := range filesystem.Names() {
		claim := harness.StagedVolume(t, d, fsType)
		ids, frozen = append(ids, claim.VolumeID), append(frozen, claim.StagingPath)
	}

	others := map[string]*csiclient.Publication{
		"block":     harness.GivenVolume(t, d, csiclient.BlockCapability(harness.Writer), nil),
		"directory": harness.GivenVolume(t, d, csiclient.MountCapability(harness.Writer, ""), harness.DirectoryBacked()),
		"unstaged":  harness.GivenVolume(t, d, csiclient.MountCapability(harness.Writer, ""), nil),
		"read-only": harness.GivenVolume(t, d, csiclient.MountCapability(harness.ReaderOnly, ""), nil),
		"ro":        harness.GivenVolume(t, d, csiclient.MountCapability(harness.Writer, "", "ro"), nil),
	}

	for name, claim := range others {
		ids = append(ids, claim.VolumeID)

		if name != "unstaged" {
			harness.Stage(t, d, claim)
		}
	}

	ids = append(ids, ids[0], "unknown-id")
	taken := takeOver(t, d, 0)

	for name, can := range map[string]bool{"block": false, "directory": false, "unstaged": true, "read-only": true, "ro": true} {
		require.Equal(t, can, taken.CanFreeze(others[name].VolumeID), name)
	}

	require.NoError(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error {
		for _, path := range frozen {
			harness.RequireFrozen(t, path)
		}

		for _, name := range []string{"read-only", "ro"} {
			harness.RequireThawed(t, others[name].StagingPath)
		}

		return nil
	}))

	for _, path := range frozen {
		harness.RequireThawed(t, path)
	}
}

func TestAShutDownFilesystemIsNotFrozen(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			d := harness.StartNode(t)
			well, sick := harness.StagedVolume(t, d, "btrfs"), harness.StagedVolume(t, d, fsType)
			taken := takeOver(t, d, 0)

			require.NoError(t, harness.AtRoot(sick.StagingPath, harness.ShutDownFilesystem))

			err := taken.WithFrozen(t.Context(), []string{well.VolumeID, sick.VolumeID}, neverCalled)
			harness.RequireCode(t, rpc.Status(err), codes.FailedPrecondition, sick.VolumeID, "unstage")
			require.NotContains(t, err.Error(), well.VolumeID)
			harness.RequireThawed(t, well.StagingPath)
		})
	}
}
