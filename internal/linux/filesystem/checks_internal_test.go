package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestChecksOfAnXFS: which tools run, and what is concluded of what they print.
func TestChecksOfAnXFS(t *testing.T) {
	t.Parallel()

	const (
		dirty  = "state: <DIRTY>"
		log    = "valuable metadata changes in a log"
		copies = "Primary superblock would have been modified"
		second = "primary/secondary superblock 1 conflict"
		bad    = "Metadata CRC error detected at 0x1"
	)

	// The first copy of the superblock has a smaller size, or is damaged.
	older := handXFSImage(idA)
	binary.BigEndian.PutUint64(older[handGroupBlocks*handBlock+8:], 2*handGroupBlocks)

	other := handXFSImage(idA)
	other[2*handGroupBlocks*handBlock+32]++

	both := slices.Clone(older)
	both[2*handGroupBlocks*handBlock+32]++

	short := handXFSImage(idA)[:2*handGroupBlocks*handBlock]

	noLayout := handXFSImage(idA)
	clear(noLayout[48:56])

	for name, test := range map[string]struct {
		image            []byte
		logprint, repair Result
		readOnly         bool
		frozen           bool
		want             Verdict
		tools            []string
		err              error
	}{
		"clean":              {want: Verdict{State: Clean}, tools: []string{"xfs_repair"}},
		"output of no error": {repair: Result{Output: "text"}, want: Verdict{State: Clean}, tools: []string{"xfs_repair"}},
		"a foreign log": {
			repair: Result{Output: "mismatched uuid in log"},
			want:   Verdict{Damaged, "mismatched uuid in log"}, tools: []string{"xfs_repair"},
		},
		"a log":        {repair: Result{ExitCode: 2, Output: log}, want: Verdict{NeedsReplay, "the log holds changes"}, tools: []string{"xfs_repair"}},
		"damage":       {repair: Result{ExitCode: 1, Output: "bad\n"}, want: Verdict{Damaged, "bad"}, tools: []string{"xfs_repair"}},
		"a read error": {repair: Result{ExitCode: 1, Output: "Input/output error"}, tools: []string{"xfs_repair"}, err: ErrReadIncomplete},
		"other copies": {
			repair: Result{ExitCode: 1, Output: copies}, want: Verdict{Damaged, copies}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"another copy": {
			repair: Result{ExitCode: 1, Output: second}, want: Verdict{Damaged, second}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"other copies and a log": {
			repair: Result{ExitCode: 1, Output: copies}, logprint: Result{ExitCode: 1, Output: dirty},
			want: Verdict{NeedsReplay, "the log holds changes of the superblock"}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"older copies": {
			image: older, repair: Result{ExitCode: 1, Output: copies},
			want: Verdict{NeedsReplay, "copies of the superblock lack a growth"}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"a damaged copy": {
			image: other, repair: Result{ExitCode: 1, Output: copies}, want: Verdict{Damaged, copies}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"an older copy and a damaged one": {
			image: both, repair: Result{ExitCode: 1, Output: copies}, want: Verdict{Damaged, copies}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"a missing copy": {
			image: short, repair: Result{ExitCode: 1, Output: copies}, tools: []string{"xfs_repair", "xfs_logprint"}, err: ErrNoSuperblock,
		},
		"a damaged superblock": {
			image: noLayout, repair: Result{ExitCode: 1, Output: copies}, want: Verdict{Damaged, copies}, tools: []string{"xfs_repair", "xfs_logprint"},
		},
		"no superblock": {image: make([]byte, 4096), want: Verdict{Damaged, "there is no xfs superblock"}},

		"read-only, clean": {readOnly: true, want: Verdict{State: Clean}, tools: []string{"xfs_logprint", "xfs_repair"}},
		"read-only, a log": {
			readOnly: true, logprint: Result{Output: dirty}, want: Verdict{NeedsReplay, "the log holds changes"}, tools: []string{"xfs_logprint"},
		},
		"read-only, damage": {
			readOnly: true, repair: Result{ExitCode: 1, Output: bad}, want: Verdict{Damaged, bad}, tools: []string{"xfs_logprint", "xfs_repair"},
		},
		"read-only, no superblock": {readOnly: true, image: make([]byte, 4096), want: Verdict{Damaged, "there is no xfs superblock"}},
		"frozen, clean":            {readOnly: true, frozen: true, want: Verdict{State: Clean}, tools: []string{"xfs_logprint", "xfs_repair"}},
		"frozen, a log": {
			readOnly: true, frozen: true, logprint: Result{Output: dirty}, repair: Result{ExitCode: 2, Output: log},
			want: Verdict{NeedsReplay, "the log holds changes"}, tools: []string{"xfs_logprint", "xfs_repair"},
		},
		"frozen, a log and damage": {
			readOnly: true, frozen: true, logprint: Result{Output: dirty}, repair: Result{ExitCode: 2, Output: log + "\n" + bad},
			want: Verdict{Damaged, log + "; " + bad}, tools: []string{"xfs_logprint", "xfs_repair"},
		},
		"frozen, damage that a log may explain": {
			readOnly: true, frozen: true, repair: Result{ExitCode: 2, Output: log + "\n" + bad},
			want: Verdict{NeedsReplay, "the log holds changes"}, tools: []string{"xfs_logprint", "xfs_repair"},
		},
	} {
		if test.image == nil {
			test.image = handXFSImage(idA)
		}

		path := handFile(t, int64(len(test.image)), map[int64][]byte{0: test.image})
		run := &scripted{work: func(command Command) (Result, error) {
			if command.Tool == "xfs_logprint" {
				return test.logprint, nil
			}

			return test.repair, nil
		}}
		fs := &xfs{run: run}
		check := fs.Check

		if test.readOnly {
			check = func(ctx context.Context, path string) (Verdict, error) {
				return fs.CheckReadOnly(ctx, path, ReadOnlyCheckOptions{Frozen: test.frozen})
			}
		}

		got, err := check(t.Context(), path)
		require.ErrorIs(t, err, test.err, name)
		require.Equal(t, test.want, got, "the verdict: %s", name)

		arguments := map[string][]string{
			"xfs_repair": {"xfs_repair", "-n", "-o", "bhash=2048", "-f", "--", path}, "xfs_logprint": {"xfs_logprint", "-t", "--", path},
		}

		var want [][]string
		for _, tool := range test.tools {
			want = append(want, arguments[tool])
		}

		require.Equal(t, want, run.did(), "the tools: %s", name)

		// A tool that does not run is no verdict.
		for _, tool := range test.tools {
			run.work = func(command Command) (Result, error) {
				switch command.Tool {
				case tool:
					return test.repair, errHand
				case "xfs_logprint":
					return test.logprint, nil
				default:
					return test.repair, nil
				}
			}

			got, err = check(t.Context(), path)
			require.ErrorIs(t, err, errHand, "%s without %s", name, tool)
			require.Equal(t, Verdict{}, got, "the verdict: %s without %s", name, tool)
		}
	}
}

func TestPrefetchingOfAnXFSEndsWith128Groups(t *testing.T) {
	t.Parallel()

	for groups, want := range map[uint32][]string{
		2: {"-n", "-o", "bhash=2048", "-f", "--"}, 128: {"-n", "-o", "bhash=2048", "-f", "--"}, 129: {"-n", "-o", "bhash=2048", "-P", "-f", "--"},
	} {
		super := edited(handXFS(idA), func(super []byte) { binary.BigEndian.PutUint32(super[88:], groups) }, sumXFS)
		path := handFile(t, 4096, map[int64][]byte{0: super})
		run := &scripted{}

		_, err := (&xfs{run: run}).Check(t.Context(), path)
		require.NoError(t, err)
		require.Equal(t, append(want, path), run.commands[0].Args, "the arguments for %d groups", groups)
	}

	path := handFile(t, 91, map[int64][]byte{0: handXFS(idA)[:91]})
	groups, err := readFrom(path, readXFSGroups)
	require.NoError(t, err)
	require.Zero(t, groups, "the groups in a file that ends before their number")

	_, err = readFrom(path+"2", readXFSGroups)
	require.ErrorIs(t, err, unix.ENOENT)

	_, err = readFrom(path+"2", copiesAreOlder)
	require.ErrorIs(t, err, unix.ENOENT)
}

// TestChecksOfAnExt4: which tools run, and what is concluded of their exit code.
func TestChecksOfAnExt4(t *testing.T) {
	t.Parallel()

	with := func(change func(super []byte)) []byte { return edited(handExt4(idA), change, sumExt4) }
	journal := with(func(super []byte) { super[0x60] |= 4 })
	orphans := with(func(super []byte) { super[0x66] |= 1 })
	orphan := with(func(super []byte) { super[0xe8] = 12 })

	const (
		holds   = "the journal holds changes"
		deleted = "files that were deleted while they were open are to be removed"
	)

	preen, force, look := []string{"-p"}, []string{"-f", "-p"}, []string{"-f", "-n"}

	for name, test := range map[string]struct {
		super   []byte
		result  Result
		verdict Verdict
		err     error
		// readOnly is what a read-only check concludes where that differs.
		readOnly *Verdict
	}{
		"clean":                 {verdict: Verdict{State: Clean}},
		"output of no error":    {result: Result{Output: "text"}, verdict: Verdict{State: Clean}},
		"repaired":              {result: Result{1, "text"}, verdict: Verdict{Repaired, "text"}},
		"reboot":                {result: Result{2, "text"}, verdict: Verdict{Repaired, "text"}},
		"both":                  {result: Result{3, "text"}, verdict: Verdict{Repaired, "text"}},
		"errors left":           {result: Result{4, "text"}, verdict: Verdict{Damaged, "text"}},
		"repaired in part":      {result: Result{5, "text"}, verdict: Verdict{Damaged, "text"}},
		"unusable":              {result: Result{8, "text"}, verdict: Verdict{Damaged, "text"}},
		"all of it":             {result: Result{15, "text"}, verdict: Verdict{Damaged, "text"}},
		"usage":                 {result: Result{16, "text"}, err: &ToolError{}},
		"cancelled":             {result: Result{33, "text"}, err: &ToolError{}},
		"a journal":             {super: journal, verdict: Verdict{State: Clean}, readOnly: &Verdict{NeedsReplay, holds}},
		"a file of orphans":     {super: orphans, verdict: Verdict{State: Clean}, readOnly: &Verdict{NeedsReplay, deleted}},
		"an orphan":             {super: orphan, verdict: Verdict{State: Clean}, readOnly: &Verdict{NeedsReplay, deleted}},
		"another magic number":  {super: make([]byte, 1024), verdict: Verdict{Damaged, "there is no ext4 superblock"}},
		"another one's journal": {super: with(func(super []byte) { super[0x60] |= 8 }), verdict: Verdict{State: Clean}},
	} {
		if test.super == nil {
			test.super = handExt4(idA)
		}

		path := handFile(t, 128<<10, map[int64][]byte{1024: test.super})
		run := &scripted{work: func(Command) (Result, error) { return test.result, nil }}
		fs := &ext4{run: run}

		for kind, each := range map[string]struct {
			check   func(ctx context.Context, path string) (Verdict, error)
			options []string
		}{
			"a check":  {fs.Check, preen},
			"a forced": {fs.ForceCheck, force},
			"a read-only": {func(ctx context.Context, path string) (Verdict, error) {
				return fs.CheckReadOnly(ctx, path, ReadOnlyCheckOptions{Urgent: true})
			}, look},
		} {
			run.commands = nil
			want := test.verdict

			if kind == "a read-only" && test.readOnly != nil {
				want = *test.readOnly
			}

			got, err := each.check(t.Context(), path)
			require.Equal(t, want, got, "the verdict of %s one: %s", kind, name)

			var failed *ToolError
			require.Equal(t, test.err != nil, errors.As(err, &failed), "whether %s one has an error: %s", kind, name)

			if want.State == NeedsReplay || want.Detail == "there is no ext4 superblock" {
				require.Empty(t, run.commands, "the tools of %s one: %s", kind, name)
			} else {
				require.Equal(t, [][]string{slices.Concat([]string{"e2fsck"}, each.options, []string{"--", path})}, run.did(), "the tools of %s one: %s", kind, name)
				require.Equal(t, kind != "a read-only", run.commands[0].InheritedFile != nil, "whether %s one is locked: %s", kind, name)
			}
		}
	}
}

// TestUnmountedGrowthOfAnExt4: resize2fs runs again after the check that it wants.
func TestUnmountedGrowthOfAnExt4(t *testing.T) {
	t.Parallel()

	const wants = "Please run 'e2fsck -f image' first."

	resize, check := []string{"resize2fs", "--"}, []string{"e2fsck", "-f", "-p", "--"}

	for name, test := range map[string]struct {
		results []Result
		errs    []error
		tools   [][]string
		err     error
		failed  bool
	}{
		"grown":                 {results: []Result{{}}, tools: [][]string{resize}},
		"grown, with words":     {results: []Result{{Output: wants}}, tools: [][]string{resize}},
		"grown after a check":   {results: []Result{{1, wants}, {}, {}}, tools: [][]string{resize, check, resize}},
		"grown after a repair":  {results: []Result{{1, wants}, {ExitCode: 1}, {}}, tools: [][]string{resize, check, resize}},
		"damaged":               {results: []Result{{1, wants}, {4, "bad"}}, tools: [][]string{resize, check}, err: ErrDamaged},
		"not checked":           {results: []Result{{1, wants}, {16, "usage"}}, tools: [][]string{resize, check}, failed: true},
		"failed":                {results: []Result{{1, "no space"}}, tools: [][]string{resize}, failed: true},
		"failed after a check":  {results: []Result{{1, wants}, {}, {1, "no space"}}, tools: [][]string{resize, check, resize}, failed: true},
		"wants another check":   {results: []Result{{1, wants}, {}, {1, wants}}, tools: [][]string{resize, check, resize}, failed: true},
		"aborted":               {results: []Result{{1, "aborted resize operation"}}, tools: [][]string{resize}, err: ErrDamaged, failed: true},
		"not begun":             {results: []Result{{}}, errs: []error{errHand}, tools: [][]string{resize}, err: errHand},
		"not begun, with words": {results: []Result{{1, wants}}, errs: []error{errHand}, tools: [][]string{resize}, err: errHand},
		"no check":              {results: []Result{{1, wants}, {}}, errs: []error{nil, errHand}, tools: [][]string{resize, check}, err: errHand},
		"not begun again": {
			results: []Result{{1, wants}, {}, {}}, errs: []error{nil, nil, errHand}, tools: [][]string{resize, check, resize}, err: errHand,
		},
	} {
		super := edited(handExt4(idA), func(super []byte) {
			binary.LittleEndian.PutUint32(super[0x04:], 32)
			binary.LittleEndian.PutUint32(super[0x28:], 8192)
		}, sumExt4)
		path := handFile(t, 34*4096, map[int64][]byte{1024: super})

		run := &scripted{}
		run.work = func(Command) (Result, error) {
			n := len(run.commands) - 1
			if n < len(test.errs) {
				return test.results[n], test.errs[n]
			}

			return test.results[n], nil
		}

		err := (&ext4{run: run}).GrowUnmounted(t.Context(), path)

		if test.err != nil {
			require.ErrorIs(t, err, test.err, name)
			errtext.Require(t, err, path, name)
		}

		var failed *ToolError
		require.Equal(t, test.failed, errors.As(err, &failed), "whether a tool has failed: %s: %v", name, err)
		require.Equal(t, test.failed || test.err != nil, err != nil, "whether there is an error: %s", name)
		require.Equal(t, test.err != nil && errors.Is(test.err, ErrDamaged), errors.Is(err, ErrDamaged), "whether it is damaged: %s", name)

		var want [][]string
		for _, tool := range test.tools {
			want = append(want, append(slices.Clone(tool), path))
		}

		require.Equal(t, want, run.did(), "the tools: %s", name)

		for _, command := range run.commands {
			require.NotNil(t, command.InheritedFile, "want: %s inherits the lock", command.Tool)
			require.Equal(t, command.Tool == "resize2fs", command.Uninterruptible, "whether nothing ends %s", command.Tool)
		}
	}
}
