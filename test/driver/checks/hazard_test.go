package checks_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestCheckThaws has a pool that can't clone, where a tool works while the
// filesystem is frozen.
func TestCheckThaws(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartNode(t)
	claim := harness.StagedVolume(t, d, "ext4")
	run := harness.NewToolbox()
	taken := harness.TakeOver(t, d, 0, run)
	asked := func(ctx context.Context) error {
		_, err := taken.Checker().Check(ctx, claim.VolumeID, fsck.HowOnline)
		harness.RequireThawed(t, claim.StagingPath)
		requireNoScratch(t, d)

		return err
	}
	duringFreeze := func(do func(ctx context.Context) (*filesystem.Result, error)) {
		whileFrozen(t, run, claim.StagingPath, do)
	}

	t.Run("clean", func(t *testing.T) {
		worked := false

		duringFreeze(func(context.Context) (*filesystem.Result, error) {
			worked = true

			return nil, nil
		})
		require.NoError(t, asked(t.Context()))
		require.True(t, worked, "want: the tool worked")
	})
	t.Run("panic", func(t *testing.T) {
		duringFreeze(func(context.Context) (*filesystem.Result, error) { panic("the tool") })
		harness.RequireCode(t, asked(t.Context()), codes.Internal, claim.VolumeID, "panic")
	})
	t.Run("caller leaves", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		duringFreeze(func(ctx context.Context) (*filesystem.Result, error) {
			cancel()
			<-ctx.Done()

			return nil, context.Cause(ctx)
		})
		harness.RequireCode(t, asked(ctx), codes.Canceled)
	})
	t.Run("no copy", func(t *testing.T) {
		duringFreeze(func(context.Context) (*filesystem.Result, error) { return &filesystem.Result{ExitCode: 1}, nil })

		found, err := taken.Checker().Check(t.Context(), claim.VolumeID, fsck.HowOnline)
		require.NoError(t, err)
		require.Equal(t, fsck.VerdictClean, found.Verdict, "the image itself is checked")
		harness.RequireThawed(t, claim.StagingPath)
	})
	t.Run("no tool", func(t *testing.T) {
		run.Before = func(context.Context, filesystem.Command) (*filesystem.Result, error) {
			return nil, &filesystem.ToolMissingError{Tool: "e2image", Package: "e2fsprogs"}
		}

		found, err := taken.Checker().Check(t.Context(), claim.VolumeID, fsck.HowOnline)
		require.NoError(t, err)
		require.Equal(t, fsck.VerdictFailed, found.Verdict)
		require.Contains(t, found.Detail, "install the package e2fsprogs")
		require.False(t, found.CleanAt.IsZero(), "what was known stays known")
		require.True(t, found.CleanAt.Before(found.At), "want: the filesystem was clean at an earlier check")
	})
}

// whileFrozen has the tool that works then do something else.
func whileFrozen(t *testing.T, b *harness.Toolbox, path string, do func(ctx context.Context) (*filesystem.Result, error)) {
	t.Helper()

	b.Before = func(ctx context.Context, command filesystem.Command) (*filesystem.Result, error) {
		if command.Tool != "e2image" || command.Idle {
			return nil, nil
		}

		harness.RequireFrozen(t, path)

		return do(ctx)
	}
}

// TestCheckIsLimited: a tool does not end while the filesystem is frozen.
func TestCheckIsLimited(t *testing.T) {
	namespace.NeedRoot(t)

	const limit = 200 * time.Millisecond

	d := harness.StartNode(t)
	claim := harness.StagedVolume(t, d, "ext4")
	run := harness.NewToolbox()
	taken := harness.TakeOver(t, d, limit, run)

	whileFrozen(t, run, claim.StagingPath, func(ctx context.Context) (*filesystem.Result, error) {
		<-ctx.Done()

		return nil, context.Cause(ctx)
	})

	_, err := taken.Checker().Check(t.Context(), claim.VolumeID, fsck.HowOnline)
	harness.RequireCode(t, err, codes.FailedPrecondition, claim.VolumeID, limit.String())
	harness.RequireThawed(t, claim.StagingPath)
	requireNoScratch(t, d)
}

// heldTool is a tool that a test holds; it continues on request.
type heldTool struct{ begun, goOn chan struct{} }

func hold(b *harness.Toolbox, tool string) *heldTool {
	h := &heldTool{begun: make(chan struct{}), goOn: make(chan struct{})}
	b.Before = func(_ context.Context, command filesystem.Command) (*filesystem.Result, error) {
		if command.Tool == tool && slices.Contains(command.Args, "-n") {
			h.begun <- struct{}{}
			<-h.goOn
		}

		return nil, nil
	}

	return h
}

// TestCallsDoNotWaitForACheck: a tool is slow.
func TestCallsDoNotWaitForACheck(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.StartNode(t)
	claim := harness.StagedVolume(t, d, "ext4")
	run := harness.NewToolbox()
	taken := harness.TakeOver(t, d, 0, run)
	asked := make(chan error, 1)
	ask := func() {
		_, err := taken.Checker().Check(t.Context(), claim.VolumeID, fsck.HowOnline)
		asked <- err
	}

	unstage := func() error {
		_, err := taken.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{
			VolumeId: claim.VolumeID, StagingTargetPath: claim.StagingPath,
		})

		return err
	}
	stageAgain := func() error {
		_, err := taken.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: claim.VolumeID, StagingTargetPath: claim.StagingPath, VolumeCapability: claim.Capability,
		})

		return err
	}

	t.Run("online", func(t *testing.T) {
		tool := hold(run, "e2fsck")

		go ask()

		await.Receive(t, tool.begun, "the tool to begin")
		harness.RequireThawed(t, claim.StagingPath)
		require.NoError(t, unstage())
		close(tool.goOn)
		require.NoError(t, await.Receive(t, asked, "the answer of the check"))
	})
	t.Run("offline", func(t *testing.T) {
		tool := hold(run, "e2fsck")

		go ask()

		await.Receive(t, tool.begun, "the tool to begin")
		require.NoError(t, stageAgain())
		close(tool.goOn)
		harness.RequireCode(t, await.Receive(t, asked, "the answer of the check"), codes.Aborted, claim.VolumeID, "again")
	})
	t.Run("and is used for a while", func(t *testing.T) {
		require.NoError(t, unstage())

		tool := hold(run, "e2fsck")

		go ask()

		await.Receive(t, tool.begun, "the tool to begin")
		require.NoError(t, stageAgain())
		harness.WriteFile(t, filepath.Join(claim.StagingPath, "file"), "written")
		require.NoError(t, unstage())
		close(tool.goOn)
		harness.RequireCode(t, await.Receive(t, asked, "the answer of the check"), codes.Aborted, claim.VolumeID, "again")
		require.NoError(t, stageAgain())
	})
}

// fakeTool puts a script before the real tool, for drivers that are processes.
func fakeTool(t *testing.T, tool, script string) {
	t.Helper()

	directory := t.TempDir()
	path := filepath.Join(directory, tool)
	text := fmt.Sprintf("#!/bin/sh\n%s\nPATH=%s exec %s \"$@\"\n", script, os.Getenv("PATH")+":/usr/sbin:/sbin", tool)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o700))
	t.Setenv("PATH", directory+":"+os.Getenv("PATH"))
}

// TestKilledDriverDuringACheck is started again.
func TestKilledDriverDuringACheck(t *testing.T) {
	namespace.NeedRoot(t)

	// The copy of the metadata is rehearsed before the filesystem is frozen.
	first := filepath.Join(t.TempDir(), "first")

	for name, test := range map[string]struct{ tool, when string }{
		"with the copy":         {"e2fsck", `case "$*" in *-n*) true;; *) false;; esac`},
		"while it is frozen":    {"e2image", "test -e " + first + " || ! touch " + first},
		"while it is rehearsed": {"e2image", "true"},
	} {
		t.Run(name, func(t *testing.T) {
			begun := filepath.Join(t.TempDir(), "begun")
			require.NoError(t, unix.Mkfifo(begun, 0o600))
			fakeTool(t, test.tool, "if "+test.when+"; then echo $$ >"+begun+"; exec sleep 1000; fi")

			d := harness.StartProcess(t)
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
			harness.BringUp(t, d, claim)

			ended := make(chan error, 1)

			go func() {
				_, err := askCheck(t.Context(), d, claim.VolumeID, fsck.HowOnline)
				ended <- err
			}()

			said := await.ReadPipe(t, begun)

			if strings.Contains(name, "frozen") {
				harness.RequireFrozen(t, claim.StagingPath)
			}

			d.Kill(t)
			require.Error(t, await.Receive(t, ended, "the answer of the check"), "a check whose driver was killed")
			harness.RequireThawed(t, claim.StagingPath)
			requireNoScratch(t, d)
			require.Eventually(t, func() bool {
				_, err := os.Stat("/proc/" + strings.TrimSpace(string(said)))

				return os.IsNotExist(err)
			}, await.Limit, time.Millisecond, "the tool works on")
			harness.WriteFile(t, filepath.Join(claim.TargetPath, "file"), "written")
		})
	}
}

// TestDamageThatOnlyTheKernelFoundIsReported: the superblock of an ext4 has the state clean.
func TestDamageThatOnlyTheKernelFoundIsReported(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	claim := harness.NewVolume(t, d, harness.MountRequest("ext4", 64*harness.MiB))
	harness.BringUp(t, d, claim)
	harness.TakeDown(t, d, claim)
	harness.DamageExt4Root(t, harness.ImageOf(d, claim.VolumeID))

	require.NoError(t, d.Attach(t.Context(), claim))
	harness.RequireCode(t, d.Stage(t.Context(), claim), codes.Internal, "damaged")

	found := harness.ReportOf(t, d, claim.VolumeID).Check
	require.Equal(t, fsck.VerdictDamaged, found.Verdict)
	require.Equal(t, fsck.HowStage, found.How)
	require.NotEmpty(t, found.Detail, "want: the check has the detail of the damage")
}

func TestRawBlockUseDropsTheFilesystemsRecord(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.StartNode(t)
	claim := harness.GivenVolume(t, d, csiclient.MountCapability(harness.Writer, "ext4"), nil)
	require.NoError(t, os.MkdirAll(claim.StagingPath, 0o750))
	require.NoError(t, d.Stage(t.Context(), claim))
	require.NotNil(t, harness.ReportOf(t, d, claim.VolumeID).Check, "want: the report has the check")
	require.NoError(t, d.Unstage(t.Context(), claim))

	claim.Capability = csiclient.BlockCapability(harness.Writer)
	require.NoError(t, d.Stage(t.Context(), claim))
	require.Nil(t, harness.ReportOf(t, d, claim.VolumeID).Check, "want: a raw block volume has no check")
	require.NoError(t, d.Unstage(t.Context(), claim))
}
