package driver_test

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
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

func TestFreezeHoldsWritersBack(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range filesystem.Names() {
		t.Run(fsType, func(t *testing.T) {
			d := startNode(t)
			claim := stagedFor(t, d, fsType)
			taken := takeOver(t, d, 0)
			require.True(t, taken.CanFreeze(claim.VolumeID), "want: the volume can be frozen")

			var waiting *held

			require.NoError(t, taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(context.Context) error {
				requireFrozen(t, claim.StagingPath)

				waiting = write(t, filepath.Join(claim.StagingPath, "file"))
				require.True(t, waiting.pending(), "want: the write still waits")

				return nil
			}))
			waiting.requireDone(t)
			fileHolds(t, filepath.Join(claim.StagingPath, "file"), "written")
			requireThawed(t, claim.StagingPath)
		})
	}
}

// TestFreezeWindowIsTold reports how long writers waited.
func TestFreezeWindowIsTold(t *testing.T) {
	namespace.NeedRoot(t)

	var said bytes.Buffer

	d := startNode(t)
	claim := stagedFor(t, d, "ext4")
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
	require.Equal(t, 1, reported.Volumes)
	require.Equal(t, claim.VolumeID, reported.First)
	require.Positive(t, reported.Window)
	t.Log(reported.Window)
}

var errWithin = errors.New("what was to be done failed")

func TestFreezeEndsHoweverItEnds(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)
	claim := stagedFor(t, d, "ext4")
	taken := takeOver(t, d, 0)
	ids := []string{claim.VolumeID}

	t.Run("error", func(t *testing.T) {
		require.ErrorIs(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error { return errWithin }), errWithin)
		requireThawed(t, claim.StagingPath)
	})
	t.Run("panic", func(t *testing.T) {
		require.PanicsWithError(t, errWithin.Error(), func() {
			_ = taken.WithFrozen(t.Context(), ids, func(context.Context) error {
				requireFrozen(t, claim.StagingPath)
				panic(errWithin)
			})
		})
		requireThawed(t, claim.StagingPath)
	})
	t.Run("caller gone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := taken.WithFrozen(ctx, ids, func(ctx context.Context) error {
			waiting := write(t, filepath.Join(claim.StagingPath, "file"))

			cancel()
			<-ctx.Done()
			// It is thawed although this goes on.
			waiting.requireDone(t)

			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		requireThawed(t, claim.StagingPath)
	})
	t.Run("thawed by another", func(t *testing.T) {
		err := taken.WithFrozen(t.Context(), ids, func(context.Context) error { return thaw(claim.StagingPath) })
		fails(t, rpc.Status(err), codes.Aborted, claim.VolumeID, "thawed by another program")
	})
	t.Run("frozen by another", func(t *testing.T) {
		require.NoError(t, atRoot(claim.StagingPath, filesystem.Freeze))
		fails(t, rpc.Status(taken.WithFrozen(t.Context(), ids, neverCalled)), codes.FailedPrecondition, claim.VolumeID, "fsfreeze")
		requireFrozen(t, claim.StagingPath)
		require.NoError(t, thaw(claim.StagingPath))
	})
	t.Run("not begun", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, taken.WithFrozen(ctx, ids, neverCalled), context.Canceled)
		requireThawed(t, claim.StagingPath)
	})
	t.Run("and once more", func(t *testing.T) {
		require.NoError(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error { return nil }))
	})
}

func neverCalled(context.Context) error { panic("this must not be called") }

func TestFreezeIsLimited(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)
	claim := stagedFor(t, d, "xfs")
	taken := takeOver(t, d, 3*time.Second)

	err := taken.WithFrozen(t.Context(), []string{claim.VolumeID}, func(ctx context.Context) error {
		waiting := write(t, filepath.Join(claim.StagingPath, "file"))
		<-ctx.Done()
		waiting.requireDone(t)

		return nil
	})
	require.ErrorIs(t, err, freeze.ErrLimit)
	fails(t, rpc.Status(err), codes.FailedPrecondition, "3s")
	requireThawed(t, claim.StagingPath)
}

// TestFreezeThatIsGivenUp has a write begun that does not end, so that no freeze
// comes about: neither the caller nor the other volumes wait for it.
func TestFreezeThatIsGivenUp(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)
	well, stuck := stagedFor(t, d, "ext4"), stagedFor(t, d, "ext4")
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
	require.ErrorContains(t, err, stuck.VolumeID)
	requireThawed(t, well.StagingPath)

	memory.fill(t)
	require.NoError(t, await.Receive(t, ended, "the write to return once its page is filled"))
	require.Eventually(t, func() bool {
		return taken.WithFrozen(t.Context(), ids, func(context.Context) error { return nil }) == nil
	}, soon, 10*time.Millisecond)
	requireThawed(t, stuck.StagingPath)
}

// TestFreezeOfSeveral has one volume of each kind, and freezes what there is to
// freeze of them.
func TestFreezeOfSeveral(t *testing.T) {
	namespace.NeedRoot(t)

	d := startNode(t)

	var ids []string

	var frozen []string

	for _, fsType := range filesystem.Names() {
		claim := stagedFor(t, d, fsType)
		ids, frozen = append(ids, claim.VolumeID), append(frozen, claim.StagingPath)
	}

	others := map[string]*csiclient.Publication{
		"block":     given(t, d, csiclient.BlockCapability(writer), nil),
		"directory": given(t, d, csiclient.MountCapability(writer, ""), directoryBacked()),
		"unstaged":  given(t, d, csiclient.MountCapability(writer, ""), nil),
		"read-only": given(t, d, csiclient.MountCapability(readerOnly, ""), nil),
		"ro":        given(t, d, csiclient.MountCapability(writer, "", "ro"), nil),
	}

	for name, claim := range others {
		ids = append(ids, claim.VolumeID)

		if name != "unstaged" {
			stage(t, d, claim)
		}
	}

	ids = append(ids, ids[0], "unknown-id")
	taken := takeOver(t, d, 0)

	for name, can := range map[string]bool{"block": false, "directory": false, "unstaged": true, "read-only": true, "ro": true} {
		require.Equal(t, can, taken.CanFreeze(others[name].VolumeID), name)
	}

	require.NoError(t, taken.WithFrozen(t.Context(), ids, func(context.Context) error {
		for _, path := range frozen {
			requireFrozen(t, path)
		}

		for _, name := range []string{"read-only", "ro"} {
			requireThawed(t, others[name].StagingPath)
		}

		return nil
	}))

	for _, path := range frozen {
		requireThawed(t, path)
	}
}

// TestFreezeOfTheSick has the filesystem give up writing.
func TestFreezeOfTheSick(t *testing.T) {
	namespace.NeedRoot(t)

	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			d := startNode(t)
			well, sick := stagedFor(t, d, "btrfs"), stagedFor(t, d, fsType)
			taken := takeOver(t, d, 0)

			require.NoError(t, atRoot(sick.StagingPath, shutDown))

			err := taken.WithFrozen(t.Context(), []string{well.VolumeID, sick.VolumeID}, neverCalled)
			fails(t, rpc.Status(err), codes.FailedPrecondition, sick.VolumeID, "unstage")
			require.NotContains(t, err.Error(), well.VolumeID)
			requireThawed(t, well.StagingPath)
		})
	}
}

// shutDown is XFS's ioctl, which ext4 took over: _IOR of X, 125, a __u32.
func shutDown(root *os.File) error {
	const (
		goingDown = 0x8004587d
		noLog     = 2
	)

	return unix.IoctlSetPointerInt(int(root.Fd()), goingDown, noLog)
}
