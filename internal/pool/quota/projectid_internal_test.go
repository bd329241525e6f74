package quota

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
)

func TestProjectIDsFollowFromTheVolume(t *testing.T) {
	t.Parallel()

	const id, other = "01a211b3-3c45-725d-a660-3004fcb0160e", "01a211b3-5a93-710a-a500-2c75962c2bf7"

	ids := slices.Collect(projectIDs(id))
	require.Len(t, ids, projectCandidates, "want: each directory has several candidates for its project id")
	require.Equal(t, ids, slices.Collect(projectIDs(id)), "they follow from the id")
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(ids))), projectCandidates, "want: the candidates differ")

	// Directories on disk have these: another order or another hash would not find them again.
	require.Equal(t, []uint32{0x16311d75, 0x5f188aa3}, ids[:2])

	for _, each := range ids {
		require.GreaterOrEqual(t, each, uint32(firstProject), "want: no candidate is below the range")
		require.LessOrEqual(t, each, uint32(lastProject), "want: no candidate is above the range")
		require.True(t, isProjectOf(id, each), "a project of the volume")
		require.False(t, isProjectOf(other, each), "a project of another volume")
	}

	require.False(t, isProjectOf(id, 0), "no project")
}

func TestALimitOfADirectoryHasInodes(t *testing.T) {
	t.Parallel()

	const mebi = 1 << 20

	for _, test := range []struct {
		name            string
		current, wanted projectquota.Amount
		bytes           int64
	}{
		{name: "small", bytes: mebi, wanted: projectquota.Amount{Bytes: mebi, Inodes: 1024}},
		{name: "large", bytes: 160 * mebi, wanted: projectquota.Amount{Bytes: 160 * mebi, Inodes: 10240}},
		{
			name: "raised", bytes: 32 * mebi,
			current: projectquota.Amount{Bytes: 16 * mebi, Inodes: 1024}, wanted: projectquota.Amount{Bytes: 32 * mebi, Inodes: 2048},
		},
		{
			name: "never lowered", bytes: mebi,
			current: projectquota.Amount{Bytes: 32 * mebi, Inodes: 9999}, wanted: projectquota.Amount{Bytes: 32 * mebi, Inodes: 9999},
		},
		{
			name: "interrupted between bytes and inodes", bytes: mebi,
			current: projectquota.Amount{Bytes: 32 * mebi}, wanted: projectquota.Amount{Bytes: 32 * mebi, Inodes: 2048},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			got, changed := raised(test.current, test.bytes)
			require.Equal(t, test.wanted, got)
			require.Equal(t, test.wanted != test.current, changed, "want: the change of the limit is reported")
		})
	}
}

// TestPlainDirectoriesHaveNoSnapshots: they are not copied at one point in time, and what only
// subvolumes need finds nothing in them.
func TestPlainDirectoriesHaveNoSnapshots(t *testing.T) {
	t.Parallel()

	k, p, root := newFakeKernel(t)
	require.NoError(t, root.Mkdir(projectName, 0o700))

	directory := openDirectory(t, k, projectName)

	for kind, d := range map[Kind]Directories{Plain: plain{reason: "because"}, Project: p} {
		require.Equal(t, kind, d.Support().Kind)
		require.False(t, d.Support().Snapshots, "want: no copies at one point in time")
		require.False(t, d.CanSnapshot(directory), "want: no copies at one point in time")
		require.ErrorIs(t, d.Snapshot(directory, root, "copy"), errors.ErrUnsupported)

		evaded, err := d.Confine(directory)
		require.NoError(t, err)
		require.False(t, evaded, "want: nothing evades it without a walk")

		grown, err := d.Grown()
		require.NoError(t, err)
		require.Empty(t, grown, "want: nothing is made inside")

		removed, err := d.Remove(t.Context(), p.pool, "missing")
		require.NoError(t, err)
		require.False(t, removed, "want: the caller removes what is no subvolume")
	}

	made := plain{}
	require.NoError(t, made.Make(root, otherName, 0o777))
	require.ErrorIs(t, made.Make(root, otherName, 0o777), fs.ErrExist)

	info, err := root.Stat(otherName)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o777), info.Mode().Perm(), "want: the umask does not change the mode")

	swept, err := made.Sweep(t.Context(), directory)
	require.NoError(t, err)
	require.False(t, swept, "want: nothing is limited")
}

// TestProjectsAreOfXFSAndExt4, where they can be used.
func TestProjectsAreOfXFSAndExt4(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		kind    int64
		change  func(k *fakeKernel)
		support Support
		fails   error
		// counted reports whether the space of a directory is known.
		counted bool
	}{
		"ext4":    {kind: unix.EXT4_SUPER_MAGIC, support: Support{Kind: Project, Limited: true}, counted: true},
		"XFS":     {kind: unix.XFS_SUPER_MAGIC, support: Support{Kind: Project, Limited: true}},
		"another": {kind: unix.TMPFS_MAGIC},
		"off":     {kind: unix.XFS_SUPER_MAGIC, change: func(k *fakeKernel) { k.off = true }, support: Support{Kind: Plain}},
		"failing": {kind: unix.XFS_SUPER_MAGIC, change: func(k *fakeKernel) { k.failing = 1 }, fails: errCall},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			k, p, root := newFakeKernel(t)
			if test.change != nil {
				test.change(k)
			}

			made, found, err := p.on(test.kind)
			require.ErrorIs(t, err, test.fails)
			require.Equal(t, test.support.Kind != "", found, "want: directories are made on XFS and ext4")

			if !found {
				require.Nil(t, made, "want: nothing is made elsewhere")

				return
			}

			support := made.Support()
			require.Equal(t, test.support.Kind == Plain, support.Reason != "", "want: a reason why sizes are not limited")
			support.Reason = ""
			require.Equal(t, test.support, support)

			require.NoError(t, made.Make(root, projectName, 0o700))

			_, counted, err := made.Allocated(openDirectory(t, k, projectName))
			require.NoError(t, err)
			require.Equal(t, test.counted, counted, "want: the space is known where files share no blocks")
		})
	}
}
