package fsck_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// toolAt names a tool, and whether it works on the frozen filesystem.
type toolAt struct {
	tool   string
	frozen bool
}

func TestOnlineChecksWithoutReflinks(t *testing.T) {
	t.Parallel()

	const image, check = "e2image", "e2fsck"

	failed := func(code int) func() (filesystem.Result, error) {
		return func() (filesystem.Result, error) { return filesystem.Result{ExitCode: code, Output: "bad inode"}, nil }
	}
	killed := func() (filesystem.Result, error) { return filesystem.Result{}, errTool }
	rehearsal, frozenCopy := started{tool: image}, started{image, true, true}
	onImage, onFrozen := started{tool: check}, started{check, true, true}

	for name, test := range map[string]struct {
		results map[toolAt]func() (filesystem.Result, error)
		// slow is a tool that ends when it is cancelled.
		slow    toolAt
		prepare func(f *fixture)
		verdict string
		details []string
		started []started
	}{
		"clean": {verdict: fsck.VerdictClean, started: []started{rehearsal, frozenCopy, onImage}},
		"damaged": {
			results: map[toolAt]func() (filesystem.Result, error){{check, false}: failed(4)},
			verdict: fsck.VerdictDamaged, details: []string{"bad inode"}, started: []started{rehearsal, frozenCopy, onImage},
		},
		"only read": {
			prepare: func(f *fixture) { f.node.thawed, f.node.staged.ReadOnly = true, true },
			verdict: fsck.VerdictClean, started: []started{rehearsal, {image, false, true}, onImage},
		},
		"the errors are unknown": {
			prepare: func(f *fixture) { f.node.counting = errTool },
			verdict: fsck.VerdictFailed, details: []string{errTool.Error()},
		},
		"changes during the rehearsal": {
			results: map[toolAt]func() (filesystem.Result, error){{image, false}: failed(1)},
			verdict: fsck.VerdictClean, started: []started{rehearsal, frozenCopy, onImage},
		},
		"no tool for copies": {
			results: map[toolAt]func() (filesystem.Result, error){{image, false}: killed},
			verdict: fsck.VerdictFailed, details: []string{errTool.Error()}, started: []started{rehearsal},
		},
		"the copy is not made": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: killed},
			verdict: fsck.VerdictFailed, details: []string{errTool.Error()}, started: []started{rehearsal, frozenCopy},
		},
		"cannot be copied": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: failed(1)},
			verdict: fsck.VerdictClean, started: []started{rehearsal, frozenCopy, onImage, onFrozen},
		},
		"takes too long to be copied": {
			slow: toolAt{image, false}, verdict: fsck.VerdictClean, started: []started{rehearsal, onImage, onFrozen},
		},
		"takes too long to be copied while it is frozen": {
			slow: toolAt{image, true}, verdict: fsck.VerdictClean, started: []started{rehearsal, frozenCopy, onImage, onFrozen},
		},
		"cannot be copied, and damaged": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: failed(1), {check, true}: failed(4)},
			verdict: fsck.VerdictDamaged, details: []string{"bad inode"}, started: []started{rehearsal, frozenCopy, onImage, onFrozen},
		},
		"cannot be copied, and damaged until it is frozen": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: failed(1), {check, false}: failed(4)},
			verdict: fsck.VerdictClean, started: []started{rehearsal, frozenCopy, onImage, onFrozen},
		},
		"cannot be copied or checked": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: failed(1), {check, false}: killed},
			verdict: fsck.VerdictFailed, details: []string{errTool.Error(), image}, started: []started{rehearsal, frozenCopy, onImage},
		},
		"cannot be copied, or checked while it is frozen": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: failed(1), {check, true}: killed},
			verdict: fsck.VerdictFailed, details: []string{errTool.Error(), image}, started: []started{rehearsal, frozenCopy, onImage, onFrozen},
		},
		"cannot be copied or unmounted": {
			results: map[toolAt]func() (filesystem.Result, error){{image, true}: failed(1)},
			prepare: func(f *fixture) { setDirty(f.t, f.image(), true) },
			verdict: fsck.VerdictFailed, details: []string{"log has to be replayed", image}, started: []started{rehearsal, frozenCopy},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, 0)
				if f.pool.Images.Reflinks() {
					return // it copies the whole image
				}

				f.stage()
				f.node.errorCount = 7

				if test.prepare != nil {
					test.prepare(f)
				}

				f.tool = func(ctx context.Context, command filesystem.Command) (filesystem.Result, error) {
					if (toolAt{command.Tool, f.node.IsFrozen(f.id)}) == test.slow {
						<-ctx.Done()

						return filesystem.Result{}, context.Cause(ctx)
					}

					if result := test.results[toolAt{command.Tool, f.node.IsFrozen(f.id)}]; result != nil {
						return result()
					}

					if command.Tool == image {
						copyImage(t, command)
					}

					return filesystem.Result{}, nil
				}

				report, err := f.Check(t.Context(), f.id, fsck.HowOnline)
				require.NoError(t, err)
				require.Equal(t, test.verdict, report.Verdict, report.Detail)
				require.Equal(t, fsck.HowOnline, report.How)
				require.Equal(t, test.started, f.takeStarted())
				require.False(t, f.node.IsFrozen(f.id), "want: the filesystem is thawed after the check")
				f.requireNoScratch()

				for _, detail := range test.details {
					require.Contains(t, report.Detail, detail)
				}

				if f.node.counting == nil {
					require.EqualValues(t, 7, f.Get(f.id).Errors, "want: the record has the kernel's count before the check")
				}
			})
		})
	}
}

// TestUnstagedVolumeIsNotChecked: an operation changes the volume before the freeze.
func TestUnstagedVolumeIsNotChecked(t *testing.T) {
	t.Parallel()

	unknown := rpc.Errorf(codes.Unavailable, "it is unknown")

	for name, test := range map[string]struct {
		meanwhile func(n *node)
		code      codes.Code
	}{
		"no record":           {func(n *node) { n.staged = nil }, codes.Aborted},
		"not in use":          {func(n *node) { n.path = "" }, codes.Aborted},
		"staged elsewhere":    {func(n *node) { n.staged = n.staged.Clone(); n.staged.StagingPath = "/elsewhere" }, codes.Aborted},
		"use is unknown":      {func(n *node) { n.inUse = unknown }, codes.Unavailable},
		"it cannot be frozen": {func(n *node) { n.thawed = true }, codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, 0)
			f.stage()
			f.node.meanwhile = func() { test.meanwhile(f.node) }

			_, err := f.Check(t.Context(), f.id, fsck.HowOnline)
			rpccode.Require(t, err, test.code)

			urgent := func(s started) bool { return s.urgent }
			require.False(t, slices.ContainsFunc(f.takeStarted(), urgent), "want: no tool is started after the change")
			f.requireUnrecorded()
		})
	}
}
