package filesystem

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommandsOfMkfs have all options, and the path as the last word.
func TestCommandsOfMkfs(t *testing.T) {
	t.Parallel()

	made := map[string]map[int64][]byte{
		Ext4: {1024: handExt4(idA)}, XFS: {0: handXFS(idA)}, Btrfs: {64 << 10: handBtrfs(idA)},
	}

	const (
		lazy  = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
		eager = "lazy_itable_init=0,lazy_journal_init=1,nodiscard"
	)

	for name, test := range map[string]struct {
		fs   string
		o    MakeOptions
		want []string
	}{
		"ext4":           {Ext4, MakeOptions{}, []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-E", lazy}},
		"ext4, 512":      {Ext4, MakeOptions{BlockSize: 512}, []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-E", lazy}},
		"ext4, no lazy":  {Ext4, MakeOptions{NoLazyInit: true}, []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-E", eager}},
		"ext4, extended": {Ext4, MakeOptions{Options: []string{"-m", "1", "-E", "stride=4", "-Lx", "-Enodiscard"}}, []string{"mkfs.ext4", "-q", "-F", "-b", "4096", "-E", lazy + ",stride=4,nodiscard", "-m", "1", "-L", "x"}},
		"xfs":            {XFS, MakeOptions{}, []string{"mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096"}},
		"xfs, 4096":      {XFS, MakeOptions{BlockSize: 4096}, []string{"mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096"}},
		"xfs, 512":       {XFS, MakeOptions{BlockSize: 512}, []string{"mkfs.xfs", "-q", "-f", "-K", "-s", "size=512"}},
		"xfs, given":     {XFS, MakeOptions{BlockSize: 512, Options: []string{"-s", "size=4096", "-L", "x"}}, []string{"mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096", "-L", "x"}},
		"xfs, label":     {XFS, MakeOptions{Options: []string{"-L", "x"}}, []string{"mkfs.xfs", "-q", "-f", "-K", "-s", "size=4096", "-L", "x"}},
		"btrfs":          {Btrfs, MakeOptions{}, []string{"mkfs.btrfs", "-q", "-f", "-K"}},
		"btrfs, mixed":   {Btrfs, MakeOptions{BlockSize: 512, Options: []string{"-M", "--csum=xxhash"}}, []string{"mkfs.btrfs", "-q", "-f", "-K", "-M", "--csum=xxhash"}},
	} {
		row, _ := typeByName(test.fs)
		run := &scripted{}
		fs := row.new(run)

		path := handFile(t, fs.MinimumBytes(), nil)
		run.work = func(Command) (Result, error) {
			for offset, part := range made[test.fs] {
				writePart(t, path, offset, part)
			}

			return Result{}, nil
		}

		require.NoError(t, fs.Make(t.Context(), path, test.o), name)
		require.Equal(t, [][]string{append(test.want, "--", path)}, run.did(), "the command of %s", name)
		require.Equal(t, Command{Tool: run.commands[0].Tool, Package: row.debianPackage, Args: run.commands[0].Args}, run.commands[0], "the rest of the command of %s", name)
	}
}

func writePart(t *testing.T, path string, offset int64, part []byte) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)

	_, err = file.WriteAt(part, offset)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// TestMkfsThatDoesNotMakeIt: no tool runs for an image that is too small or an option that is refused,
// and one that fails, or makes nothing, is an error.
func TestMkfsThatDoesNotMakeIt(t *testing.T) {
	t.Parallel()

	for _, name := range Names() {
		row, _ := typeByName(name)

		for what, test := range map[string]struct {
			less   int64
			o      MakeOptions
			result Result
			err    error
			want   error
			runs   int
		}{
			"too small":     {less: 1, want: ErrTooSmall},
			"no block size": {o: MakeOptions{BlockSize: 1024}, want: ErrOption},
			"no option":     {o: MakeOptions{Options: []string{"/dev/sda"}}, want: ErrOption},
			"no tool":       {err: errHand, want: errHand, runs: 1},
			"no success":    {result: Result{ExitCode: 1, Output: "bad"}, want: &ToolError{Tool: row.tools[0], ExitCode: 1, Detail: "bad"}, runs: 1},
			"nothing made":  {want: ErrNoSuperblock, runs: 1},
		} {
			run := &scripted{work: func(Command) (Result, error) { return test.result, test.err }}
			fs := row.new(run)
			err := fs.Make(t.Context(), handFile(t, fs.MinimumBytes()-test.less, nil), test.o)

			if tool, isTool := test.want.(*ToolError); isTool { //nolint:errorlint // it is one of the table
				var failed *ToolError
				require.ErrorAs(t, err, &failed, "%s: %s", name, what)
				require.Equal(t, tool, failed, "%s: %s", name, what)
			} else {
				require.ErrorIs(t, err, test.want, "%s: %s", name, what)
			}

			require.Len(t, run.commands, test.runs, "the tools of %s: %s", name, what)
		}
	}
}

// TestChecksOfABtrfs: which tool runs, and what is concluded of its exit code.
func TestChecksOfABtrfs(t *testing.T) {
	t.Parallel()

	const unknown = "unsupported option features (10000)"

	for name, test := range map[string]struct {
		super  []byte
		result Result
		err    error
		want   Verdict
		fails  error
	}{
		"clean":              {want: Verdict{State: Clean}},
		"output of no error": {result: Result{Output: unknown}, want: Verdict{State: Clean}},
		"damage":             {result: Result{1, "bad"}, want: Verdict{Damaged, "bad"}},
		"a read error":       {result: Result{1, "Input/output error"}, want: Verdict{Damaged, "Input/output error"}},
		"unknown features":   {result: Result{1, unknown}, fails: ErrUnknownFeatures},
		"no tool":            {err: errHand, fails: errHand},
		"no superblock":      {super: make([]byte, 4096), want: Verdict{Damaged, "there is no btrfs superblock"}},
	} {
		if test.super == nil {
			test.super = handBtrfs(idA)
		}

		path := handFile(t, 128<<10, map[int64][]byte{64 << 10: test.super})
		run := &scripted{work: func(Command) (Result, error) { return test.result, test.err }}
		fs := &btrfs{run: run}

		for kind, each := range map[string]struct {
			check   func() (Verdict, error)
			options []string
			idle    bool
		}{
			"a check":        {func() (Verdict, error) { return fs.Check(t.Context(), path) }, nil, false},
			"a forced check": {func() (Verdict, error) { return fs.ForceCheck(t.Context(), path) }, nil, false},
			"a read-only check": {func() (Verdict, error) {
				return fs.CheckReadOnly(context.Background(), path, ReadOnlyCheckOptions{})
			}, []string{"--force"}, true},
		} {
			run.commands = nil
			got, err := each.check()
			require.ErrorIs(t, err, test.fails, "%s: %s", kind, name)
			require.Equal(t, test.fails == nil, err == nil, "whether %s has no error: %s: %v", kind, name, err)
			require.Equal(t, test.want, got, "the verdict of %s: %s", kind, name)

			if test.want.Detail == "there is no btrfs superblock" {
				require.Empty(t, run.commands, "the tools of %s: %s", kind, name)

				continue
			}

			require.Equal(t, []Command{{
				Tool: "btrfs", Package: "btrfs-progs", Args: append(append([]string{"check", "--readonly"}, each.options...), "--", path), Idle: each.idle,
			}}, run.commands, "the tools of %s: %s", kind, name)
		}
	}
}
