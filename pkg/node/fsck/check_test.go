package fsck_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var errTool = errors.New("the tool was killed")

// requireUnrecorded requires that a check without a verdict changes nothing.
func (f *fixture) requireUnrecorded() {
	f.t.Helper()
	require.Nil(f.t, f.Get(f.id), "want: a check without a verdict has no record")
	require.Empty(f.t, f.node.takeProbed(), "want: a check without a verdict requests no probe")
	f.requireNoScratch()
}

func TestRefusedChecks(t *testing.T) {
	t.Parallel()

	refused := rpc.Errorf(codes.FailedPrecondition, "the node refuses")

	for name, test := range map[string]struct {
		how     string
		prepare func(f *fixture)
		code    codes.Code
		text    string
	}{
		"no id":           {fsck.HowOnline, func(f *fixture) { f.id = "" }, codes.InvalidArgument, "volume_id"},
		"unknown kind":    {fsck.HowStage, func(*fixture) {}, codes.InvalidArgument, `how is "stage"`},
		"ephemeral":       {fsck.HowOnline, func(f *fixture) { f.node.ephemeral = true }, codes.FailedPrecondition, "ephemeral"},
		"unknown use":     {fsck.HowOnline, func(f *fixture) { f.node.inUse = refused }, codes.FailedPrecondition, "the node refuses"},
		"perhaps a guest": {fsck.HowOnline, func(f *fixture) { f.node.guest = refused }, codes.FailedPrecondition, "the node refuses"},
		"perhaps a guest, staged but not in use": {fsck.HowOnline, func(f *fixture) {
			f.node.guest, f.node.staged = refused, f.record()
		}, codes.FailedPrecondition, "the node refuses"},
		"in use, offline": {fsck.HowOffline, func(f *fixture) { f.stage() }, codes.FailedPrecondition, "in use at /staged"},
		"hanging":         {fsck.HowOnline, func(f *fixture) { f.stage(); f.node.hanging = true }, codes.Unavailable, "does not answer"},
		"raw block": {fsck.HowOnline, func(f *fixture) {
			f.stage()
			f.node.staged.Capability.Block = true
		}, codes.FailedPrecondition, "raw block"},
		"read by several nodes": {fsck.HowOnline, func(f *fixture) {
			f.stage()
			f.node.staged.Capability.Mode = "MULTI_NODE_READER_ONLY"
		}, codes.FailedPrecondition, "several nodes"},
		"in no pool": {fsck.HowOnline, func(f *fixture) {
			require.NoError(f.t, os.Remove(f.image()))
		}, codes.NotFound, "not in a pool"},
		"in another pool than it is staged from": {fsck.HowOnline, func(f *fixture) {
			f.stage()
			f.node.staged.Parameters.Pool = "first"
		}, codes.NotFound, "not in a pool"},
		"in an unknown pool": {fsck.HowOnline, func(f *fixture) {
			f.stage()
			f.node.staged.Parameters.Pool = "third"
		}, codes.NotFound, "not in a pool"},
		"a pool has failed": {fsck.HowOnline, func(f *fixture) {
			require.NoError(f.t, f.pools.Fail("first", errors.New("broken")))
		}, codes.Unavailable, "broken"},
		"a pool does not respond": {fsck.HowOnline, func(f *fixture) {
			f.node.unreachable = errors.New("it hangs")
		}, codes.Unavailable, "it hangs"},
		"directory": {fsck.HowOnline, func(f *fixture) {
			require.NoError(f.t, os.Remove(f.image()))
			require.NoError(f.t, f.pool.Directories.Create(f.id, 0, false))
		}, codes.FailedPrecondition, "directory"},
		"no filesystem": {fsck.HowOnline, func(f *fixture) {
			require.NoError(f.t, os.Truncate(f.image(), 0))
			require.NoError(f.t, os.Truncate(f.image(), 1<<20))
		}, codes.FailedPrecondition, "no filesystem"},
		"locked": {fsck.HowOnline, func(f *fixture) { f.lock() }, codes.FailedPrecondition, "in use on another node"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, 0)
			test.prepare(f)

			_, err := f.Check(t.Context(), f.id, test.how)
			rpccode.Require(t, err, test.code)
			errtext.Require(t, err, test.text)
			require.Empty(t, f.takeStarted(), "want: a refused check starts no tool")
			f.requireUnrecorded()
		})
	}
}

// lock locks the image as an attachment for writing does.
func (f *fixture) lock() {
	file, err := os.Open(f.image())
	require.NoError(f.t, err)
	f.t.Cleanup(func() { file.Close() })
	await.Flock(f.t, file, unix.LOCK_EX)
}

// copyImage is e2image of a filesystem that the replay of its log makes clean.
func copyImage(t *testing.T, command filesystem.Command) {
	t.Helper()

	source, target := command.Args[len(command.Args)-2], command.Args[len(command.Args)-1]
	content, err := os.ReadFile(source)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(target, content, 0o600))
	setDirty(t, target, false)
}

func TestEachExitCodeHasItsVerdict(t *testing.T) {
	t.Parallel()

	exits := func(code int) func(*testing.T, filesystem.Command) (filesystem.Result, error) {
		return func(*testing.T, filesystem.Command) (filesystem.Result, error) {
			return filesystem.Result{ExitCode: code, Output: "bad inode"}, nil
		}
	}
	checked := []started{{tool: "e2fsck"}}

	for name, test := range map[string]struct {
		tool    func(*testing.T, filesystem.Command) (filesystem.Result, error)
		prepare func(f *fixture)
		verdict string
		detail  string
		started []started
	}{
		"clean":   {exits(0), nil, fsck.VerdictClean, "", checked},
		"damaged": {exits(4), nil, fsck.VerdictDamaged, "bad inode", checked},
		"fails":   {exits(32), nil, fsck.VerdictFailed, "exit code 32", checked},
		"killed": {func(*testing.T, filesystem.Command) (filesystem.Result, error) {
			return filesystem.Result{}, errTool
		}, nil, fsck.VerdictFailed, errTool.Error(), checked},
		"no superblock, but a record": {exits(0), func(f *fixture) {
			f.RecordFormatted(t.Context(), f.record())
			require.NoError(f.t, os.Truncate(f.image(), 0))
		}, fsck.VerdictDamaged, "no ext4 superblock", nil},
		"checked before, and another pool has failed": {exits(0), func(f *fixture) {
			f.RecordFormatted(t.Context(), f.record())
			require.NoError(f.t, f.pools.Fail("first", errTool))
		}, fsck.VerdictClean, "", checked},
		"not unmounted": {func(t *testing.T, command filesystem.Command) (filesystem.Result, error) {
			t.Helper()

			if command.Tool == "e2image" {
				copyImage(t, command)
			}

			return filesystem.Result{}, nil
		}, func(f *fixture) { setDirty(f.t, f.image(), true) }, fsck.VerdictClean, "", []started{{tool: "e2image"}, {tool: "e2fsck"}}},
		"not unmounted, and no copy": {exits(1), func(f *fixture) {
			setDirty(f.t, f.image(), true)
		}, fsck.VerdictFailed, "e2image", []started{{tool: "e2image"}}},
		"not unmounted, and damaged": {exits(0), func(f *fixture) {
			setDirty(f.t, f.image(), true)
		}, fsck.VerdictDamaged, "no ext4 superblock", []started{{tool: "e2image"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, time.Hour)
			if f.pool.Images.Reflinks() && test.prepare != nil {
				return // it copies without a tool
			}

			if test.prepare != nil {
				test.prepare(f)
			}

			f.tool = func(_ context.Context, command filesystem.Command) (filesystem.Result, error) {
				return test.tool(t, command)
			}
			f.node.takeProbed()

			began := time.Now()
			report, err := f.Check(t.Context(), f.id, fsck.HowOnline)
			require.NoError(t, err)
			require.Equal(t, test.verdict, report.Verdict)
			require.Contains(t, report.Detail, test.detail)
			require.Equal(t, fsck.HowOffline, report.How)
			require.WithinRange(t, report.At, began, time.Now())
			require.Positive(t, report.Took, "want: the check takes some time")
			require.Equal(t, time.Hour, report.Period)
			require.Equal(t, test.started, f.takeStarted())
			require.Equal(t, []string{f.id}, f.node.takeProbed())
			f.requireNoScratch()
			f.requireCounted(fsck.HowOffline, test.verdict)

			found := f.Get(f.id)
			require.Equal(t, []*fsck.Result{found}, f.All())
			require.Equal(t, "second", found.Pool)
			require.Equal(t, filesystem.Ext4, found.FSType)
			require.Equal(t, report, *f.Report(found))

			if test.verdict == fsck.VerdictClean {
				require.Equal(t, report.At, report.CleanAt, "want: the time of the clean check")
				require.Nil(t, f.durable(), "want: a clean verdict does not wait for the disk")
			}

			if test.verdict == fsck.VerdictDamaged {
				require.Equal(t, fsck.VerdictDamaged, f.durable().Verdict, "want: damage is on the disk at once")
			}

			f.closeStore()
			require.Equal(t, test.verdict, f.durable().Verdict, "want: the next start finds the verdict")
		})
	}
}

// requireCounted requires that the metrics have one check, with the verdict.
func (f *fixture) requireCounted(how, verdict string) {
	f.t.Helper()

	families, err := f.registry.Gather()
	require.NoError(f.t, err)

	for _, family := range families {
		if family.GetName() != "touchstone_filesystem_checks_total" {
			continue
		}

		for _, each := range family.GetMetric() {
			labels, want := each.GetLabel(), 0.0
			if labels[0].GetValue() == how && labels[1].GetValue() == verdict {
				want = 1
			}

			require.InDelta(f.t, want, each.GetCounter().GetValue(), 0, "the number of checks %v", labels)
		}

		return
	}

	f.t.Error("the metrics have no checks")
}

// TestAChangeDuringAnOfflineCheckHasNoVerdict has the tool find damage in an image that changes meanwhile.
func TestAChangeDuringAnOfflineCheckHasNoVerdict(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(f *fixture)
		code   codes.Code
	}{
		"written": {func(f *fixture) { setDirty(f.t, f.image(), true) }, codes.Aborted},
		"grown, at the same time": {func(f *fixture) {
			f.keepTime(func() { require.NoError(f.t, os.Truncate(f.image(), 2<<20)) })
		}, codes.Aborted},
		"replaced, at the same time": {func(f *fixture) {
			f.keepTime(func() {
				content, err := os.ReadFile(f.image())
				require.NoError(f.t, err)
				require.NoError(f.t, os.WriteFile(f.image()+".new", content, 0o600))
				require.NoError(f.t, os.Rename(f.image()+".new", f.image()))
			})
		}, codes.Aborted},
		"attached": {func(f *fixture) { f.lock() }, codes.Aborted},
		"deleted":  {func(f *fixture) { require.NoError(f.t, os.Remove(f.image())) }, codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, 0)
			f.tool = func(context.Context, filesystem.Command) (filesystem.Result, error) {
				test.change(f)

				return filesystem.Result{ExitCode: 4}, nil
			}

			_, err := f.Check(t.Context(), f.id, fsck.HowOffline)
			rpccode.Require(t, err, test.code)
			f.requireUnrecorded()
		})
	}
}

// keepTime changes the image, and keeps the time at which it was changed.
func (f *fixture) keepTime(change func()) {
	info, err := os.Stat(f.image())
	require.NoError(f.t, err)
	change()
	require.NoError(f.t, os.Chtimes(f.image(), info.ModTime(), info.ModTime()))
}

func TestACancelledCheckHasNoVerdict(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ inUse, late bool }{
		"offline": {}, "online": {inUse: true}, "offline, when its tool has found nothing": {late: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, 0)
			if test.inUse {
				f.stage()
			}

			checking, checked := make(chan struct{}), make(chan error, 1)
			f.tool = func(ctx context.Context, _ filesystem.Command) (filesystem.Result, error) {
				close(checking)

				<-ctx.Done()

				if test.late {
					return filesystem.Result{}, nil
				}

				return filesystem.Result{}, context.Cause(ctx)
			}

			go func() {
				_, err := f.Check(context.WithoutCancel(t.Context()), f.id, fsck.HowOnline)
				checked <- err
			}()

			await.Receive(t, checking, "the check to begin")
			require.NoError(t, f.Cancel(t.Context(), f.id))

			err := await.Receive(t, checked, "the cancelled check to end")
			rpccode.Require(t, err, codes.Aborted)
			errtext.Require(t, err, "virtual machine")
			f.requireUnrecorded()
		})
	}
}

// TestWithoutACopyACheckHasNoVerdict: the pool cannot make the file of the copy.
func TestWithoutACopyACheckHasNoVerdict(t *testing.T) {
	t.Parallel()

	for name, prepare := range map[string]func(f *fixture){
		"offline": func(f *fixture) { setDirty(f.t, f.image(), true) }, "online": (*fixture).stage,
	} {
		f := newFixture(t, 0)
		prepare(f)

		scratch := filepath.Join(f.pool.Path(), "scratch")
		require.NoError(t, os.Rename(scratch, scratch+".moved"))
		require.NoError(t, os.WriteFile(scratch, nil, 0o600))

		report, err := f.Check(t.Context(), f.id, fsck.HowOnline)
		require.NoError(t, err)
		require.Equal(t, fsck.VerdictFailed, report.Verdict, name)
		require.Contains(t, report.Detail, unix.ENOTDIR.Error(), name)
	}
}
