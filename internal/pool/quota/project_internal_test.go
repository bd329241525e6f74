package quota

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
)

const (
	projectMebi = 1 << 20
	projectName = "01a211b3-3c45-725d-a660-3004fcb0160e"
	otherName   = "01a211b3-5a93-710a-a500-2c75962c2bf7"
)

// requireEachCallFails has each call to the kernel fail once. The operation reports each, and succeeds
// when it is repeated.
func requireEachCallFails(t *testing.T, prepare func(t *testing.T) (*fakeKernel, func() error), verify func(t *testing.T, k *fakeKernel)) {
	t.Helper()

	total := 1

	for failing := 0; failing <= total; failing++ {
		k, run := prepare(t)
		k.calls, k.failing = 0, failing

		err := run()
		if failing == 0 {
			require.NoError(t, err)

			total = k.calls
			require.Positive(t, total, "want: the operation calls the kernel")
		} else {
			require.ErrorIs(t, err, errCall, "want: a failure of call %d is reported", failing)
			require.NoError(t, run(), "want: the operation succeeds when it is repeated after the failure of call %d", failing)
		}

		k.failing = 0
		verify(t, k)
	}
}

// TestProjectsFailOnce has each call for a directory fail once.
func TestProjectsFailOnce(t *testing.T) {
	t.Parallel()

	first := candidates(projectName)[0]
	made := func(t *testing.T) (*fakeKernel, *projects, *os.Root) {
		t.Helper()

		k, p, root := newFakeKernel(t)
		require.NoError(t, p.Make(root, projectName, 0o777))
		require.NoError(t, p.Limit(openDirectory(t, k, projectName), projectMebi))
		require.NoError(t, os.WriteFile(filepath.Join(k.root, projectName, "file"), make([]byte, 1000), 0o600))

		return k, p, root
	}
	limits := projectquota.Amount{Bytes: projectMebi, Inodes: leastInodes}

	for name, test := range map[string]struct {
		run    func(t *testing.T, k *fakeKernel, p *projects, root *os.Root) error
		verify func(t *testing.T, k *fakeKernel)
	}{
		"make": {
			run: func(_ *testing.T, _ *fakeKernel, p *projects, root *os.Root) error {
				err := p.Make(root, otherName, 0o777)
				if errors.Is(err, fs.ErrExist) {
					return nil
				}

				return err
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()

				info, err := os.Stat(filepath.Join(k.root, otherName))
				require.NoError(t, err)
				require.Equal(t, fs.FileMode(0o777), info.Mode().Perm(), "want: the umask does not change the mode")

				member := k.member(t, otherName)
				require.True(t, member.Inherited && isProjectOf(otherName, member.Project), "want: the directory has a project of its own")
			},
		},
		"raise the limit": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				return p.Limit(openDirectory(t, k, projectName), 64*projectMebi)
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()
				require.Equal(t, projectquota.Amount{Bytes: 64 * projectMebi, Inodes: 4096}, k.limits[first])
			},
		},
		"usage": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				usage, limited, err := p.Usage(openDirectory(t, k, projectName))
				require.Equal(t, err == nil, limited, "want: the usage of a directory with a limit is known unless a call fails")

				if err == nil {
					require.Equal(t, Usage{LimitBytes: projectMebi, LimitInodes: leastInodes, Bytes: 1000, Inodes: 2}, usage)
				}

				return err
			},
			verify: func(*testing.T, *fakeKernel) {},
		},
		"allocated": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				bytes, known, err := p.Allocated(openDirectory(t, k, projectName))
				require.Equal(t, err == nil, known, "want: the space of a project is known unless a call fails")

				if err == nil {
					require.EqualValues(t, 1000, bytes, "want: the space of the project is that of its files")
				}

				return err
			},
			verify: func(*testing.T, *fakeKernel) {},
		},
		"sync": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				changed := false
				k.joined = func(project uint32) { changed = changed || project == first }
				err := p.Sync(openDirectory(t, k, projectName))
				require.Equal(t, err == nil, changed, "want: the directory is changed, so that fsync waits for the limit")

				return err
			},
			verify: func(*testing.T, *fakeKernel) {},
		},
		"remove": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				removed, err := p.Remove(t.Context(), openDirectory(t, k, "."), projectName)
				require.False(t, removed, "want: the tree is left to the caller")

				return err
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()
				require.Equal(t, projectquota.Amount{}, k.limits[first], "want: the limit is cleared")
				require.False(t, k.member(t, projectName).Inherited, "want: what is renamed into the directory need not have its project")
			},
		},
		"remove a directory that has left its project": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				if k.calls == 0 {
					k.members[inodeOf(openDirectory(t, k, projectName))] = projectquota.Membership{}
				}

				_, err := p.Remove(t.Context(), openDirectory(t, k, "."), projectName)

				return err
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()
				require.Equal(t, projectquota.Amount{}, k.limits[first], "want: the limit is cleared")
			},
		},
		"sweep": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				_, err := p.Sweep(t.Context(), openDirectory(t, k, projectName))

				return err
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()
				require.Equal(t, projectquota.Membership{Project: first}, k.member(t, projectName+"/file"))
			},
		},
		"sweep of a directory that has left its project": {
			run: func(t *testing.T, k *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				if k.calls == 0 {
					k.members[inodeOf(openDirectory(t, k, projectName))] = projectquota.Membership{}
				}

				_, err := p.Sweep(t.Context(), openDirectory(t, k, projectName))

				return err
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()
				require.Equal(t, projectquota.Membership{Project: first, Inherited: true}, k.member(t, projectName))
				require.Equal(t, projectquota.Membership{Project: first}, k.member(t, projectName+"/file"))
			},
		},
		"reason": {
			run: func(t *testing.T, _ *fakeKernel, p *projects, _ *os.Root) error {
				t.Helper()

				reason, err := p.reasonWithout()
				require.Empty(t, reason, "want: projects can be used")

				return err
			},
			verify: func(t *testing.T, k *fakeKernel) {
				t.Helper()
				require.Equal(t, limits, k.limits[first], "want: the limit is as it was")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireEachCallFails(t, func(t *testing.T) (*fakeKernel, func() error) {
				t.Helper()

				k, p, root := made(t)

				return k, func() error { return test.run(t, k, p, root) }
			}, test.verify)
		})
	}
}

// TestProjectsOfOthersAreNotTaken has projects that other directories or administrators use.
func TestProjectsOfOthersAreNotTaken(t *testing.T) {
	t.Parallel()

	all := candidates(projectName)

	t.Run("with limits", func(t *testing.T) {
		t.Parallel()

		k, p, root := newFakeKernel(t)
		k.limits[all[0]] = projectquota.Amount{Inodes: 1}
		require.NoError(t, p.Make(root, projectName, 0o700))
		require.Equal(t, projectquota.Membership{Project: all[1], Inherited: true}, k.member(t, projectName))
	})

	t.Run("with files", func(t *testing.T) {
		t.Parallel()

		k, p, root := newFakeKernel(t)
		require.NoError(t, root.Mkdir("foreign", 0o700))
		k.members[inodeOf(openDirectory(t, k, "foreign"))] = projectquota.Membership{Project: all[0]}
		require.NoError(t, p.Make(root, projectName, 0o700))
		require.Equal(t, projectquota.Membership{Project: all[1], Inherited: true}, k.member(t, projectName))
	})

	t.Run("chosen by two at once", func(t *testing.T) {
		t.Parallel()

		k, p, root := newFakeKernel(t)
		require.NoError(t, root.Mkdir("foreign", 0o700))

		foreign := inodeOf(openDirectory(t, k, "foreign"))
		k.joined = func(project uint32) {
			if project == all[0] {
				k.members[foreign] = projectquota.Membership{Project: project}
			}
		}

		require.NoError(t, p.Make(root, projectName, 0o700))
		require.Equal(t, projectquota.Membership{Project: all[1], Inherited: true}, k.member(t, projectName))
	})

	t.Run("all in use", func(t *testing.T) {
		t.Parallel()

		k, p, root := newFakeKernel(t)
		for _, each := range all {
			k.limits[each] = projectquota.Amount{Bytes: 1}
		}

		require.ErrorIs(t, p.Make(root, projectName, 0o700), errNoProject)
		require.False(t, k.member(t, projectName).Inherited, "want: the directory has no project")
	})
}

// TestProjectsOfExistingDirectoriesAreCompleted, and directories with content are kept.
func TestProjectsOfExistingDirectoriesAreCompleted(t *testing.T) {
	t.Parallel()

	first := candidates(projectName)[0]
	kept := projectquota.Membership{Project: candidates(projectName)[1], Inherited: true}

	for name, test := range map[string]struct {
		has  projectquota.Membership
		file bool
		want projectquota.Membership
		// counted reports whether its usage is known.
		counted bool
	}{
		"empty, without a project":        {want: projectquota.Membership{Project: first, Inherited: true}, counted: true},
		"with files, without a project":   {file: true},
		"with a project of its own":       {has: kept, want: kept, file: true, counted: true},
		"empty, with another's project":   {has: projectquota.Membership{Project: 7, Inherited: true}, want: projectquota.Membership{Project: first, Inherited: true}, counted: true},
		"with files of another's project": {has: projectquota.Membership{Project: 7, Inherited: true}, file: true, want: projectquota.Membership{Project: 7, Inherited: true}},
		"with a project that it has left": {has: projectquota.Membership{Project: first}, file: true, want: projectquota.Membership{Project: first}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			k, p, root := newFakeKernel(t)
			require.NoError(t, root.Mkdir(projectName, 0o700))

			if test.file {
				require.NoError(t, root.WriteFile(projectName+"/file", []byte("x"), 0o600))
			}

			directory := openDirectory(t, k, projectName)
			if test.has != (projectquota.Membership{}) {
				k.members[inodeOf(directory)] = test.has
			}

			require.ErrorIs(t, p.Make(root, projectName, 0o700), fs.ErrExist)
			require.Equal(t, test.want, k.member(t, projectName))

			_, known, err := p.Allocated(directory)
			require.NoError(t, err)
			require.Equal(t, test.counted, known, "want: the space is known of a directory with a project of its own")

			_, limited, err := p.Usage(directory)
			require.NoError(t, err)
			require.False(t, limited, "want: the directory has no limit yet")

			require.NoError(t, p.Limit(directory, projectMebi))
			require.NoError(t, p.Sync(directory))

			_, limited, err = p.Usage(directory)
			require.NoError(t, err)
			require.Equal(t, test.counted, limited, "want: a directory with a project of its own is limited")
			require.Equal(t, test.want, k.member(t, projectName), "want: Sync does not change the project")
		})
	}

	t.Run("no directory", func(t *testing.T) {
		t.Parallel()

		k, p, root := newFakeKernel(t)
		require.NoError(t, root.WriteFile("file", nil, 0o600))
		require.ErrorIs(t, p.Make(root, "file", 0o700), unix.ENOTDIR)
		require.ErrorIs(t, p.Make(root, "missing/directory", 0o700), fs.ErrNotExist)
		require.NoError(t, root.Symlink(".", "link"))

		for _, name := range []string{"missing", "file", "link"} {
			removed, err := p.Remove(t.Context(), openDirectory(t, k, "."), name)
			require.NoError(t, err)
			require.False(t, removed, "want: what is no directory is left to the caller")
		}

		require.Zero(t, k.calls, "want: the kernel is not called for it")
	})
}

// TestProjectsOfAClosedDirectory: what cannot be read or synced is no success.
func TestProjectsOfAClosedDirectory(t *testing.T) {
	t.Parallel()

	k, p, root := newFakeKernel(t)
	require.NoError(t, p.Make(root, projectName, 0o700))

	directory := openDirectory(t, k, projectName)
	k.joined = func(uint32) { _ = directory.Close() }

	require.ErrorIs(t, p.Sync(directory), os.ErrClosed, "want: the directory is synced after it has been changed")

	_, err := p.Remove(t.Context(), directory, "inside")
	require.ErrorIs(t, err, unix.EBADF)
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Close(), os.ErrClosed)
}

// TestRemoveKeepsForeignLimits removes a directory that its owner has given another project.
func TestRemoveKeepsForeignLimits(t *testing.T) {
	t.Parallel()

	k, p, root := newFakeKernel(t)
	foreign := candidates(otherName)[0]
	limit := projectquota.Amount{Bytes: projectMebi}
	k.limits[foreign] = limit

	require.NoError(t, root.Mkdir(projectName, 0o700))
	k.members[inodeOf(openDirectory(t, k, projectName))] = projectquota.Membership{Project: foreign, Inherited: true}

	_, err := p.Remove(t.Context(), openDirectory(t, k, "."), projectName)
	require.NoError(t, err)
	require.Equal(t, limit, k.limits[foreign], "want: the limit of the other volume stays")
	require.Equal(t, projectquota.Membership{Project: foreign}, k.member(t, projectName))

	// An immutable directory, whose flag the caller clears.
	k.members[inodeOf(openDirectory(t, k, projectName))] = projectquota.Membership{Project: foreign, Inherited: true}
	p.leave = func(*os.File) error { return unix.EPERM }
	_, err = p.Remove(t.Context(), openDirectory(t, k, "."), projectName)
	require.NoError(t, err)
}

// TestSweepReturnsFiles has files that their owner has moved to other projects.
func TestSweepReturnsFiles(t *testing.T) {
	t.Parallel()

	first := candidates(projectName)[0]

	k, p, root := newFakeKernel(t)
	require.NoError(t, p.Make(root, projectName, 0o700))
	require.NoError(t, root.Mkdir(projectName+"/sub", 0o700))
	require.NoError(t, root.WriteFile(projectName+"/sub/file", []byte("x"), 0o600))

	sweep := func() bool {
		evaded, err := p.Sweep(t.Context(), openDirectory(t, k, projectName))
		require.NoError(t, err)

		return evaded
	}

	require.False(t, sweep(), "want: no file has another project")

	for _, name := range []string{projectName + "/sub/file", projectName + "/sub"} {
		k.members[inodeOf(openDirectory(t, k, name))] = projectquota.Membership{Project: 7}
		require.True(t, sweep(), "want: the file of another project is reported")
		require.Equal(t, first, k.member(t, name).Project, "want: the file has the project of the volume")
		require.False(t, sweep(), "want: the file is reported once")
	}

	require.True(t, k.member(t, projectName+"/sub").Inherited, "want: new files in the directory have the project, too")

	// Without a limit, a directory that has left its project has none to return to.
	k.members[inodeOf(openDirectory(t, k, projectName))] = projectquota.Membership{}
	k.members[inodeOf(openDirectory(t, k, projectName+"/sub/file"))] = projectquota.Membership{Project: 7}
	k.limits[candidates(otherName)[0]] = projectquota.Amount{Bytes: 1}
	require.False(t, sweep(), "want: nothing is returned to a project without a limit")
}

// TestAllocatedOfSharedFiles is not known where files share blocks, which count for each project.
func TestAllocatedOfSharedFiles(t *testing.T) {
	t.Parallel()

	k, p, root := newFakeKernel(t)
	require.NoError(t, p.Make(root, projectName, 0o700))

	p.shares = true
	_, known, err := p.Allocated(openDirectory(t, k, projectName))
	require.NoError(t, err)
	require.False(t, known, "want: the space is not known")
}

// TestReasonWithoutProjects names what keeps projects from being used.
func TestReasonWithoutProjects(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(k *fakeKernel, p *projects)
		want   string
		fails  error
	}{
		"usable":       {change: func(*fakeKernel, *projects) {}},
		"off, on ext4": {change: func(k *fakeKernel, _ *projects) { k.off = true }, want: "run tune2fs"},
		"off, on XFS":  {change: func(k *fakeKernel, p *projects) { k.off, p.shares = true, true }, want: "rootflags=prjquota"},
		"no privilege": {change: func(_ *fakeKernel, p *projects) {
			p.enforced = func(*os.File) (bool, error) { return false, unix.EPERM }
		}, want: "CAP_SYS_ADMIN"},
		"it fails":       {change: func(k *fakeKernel, _ *projects) { k.failing = 1 }, fails: errCall},
		"the list fails": {change: func(k *fakeKernel, _ *projects) { k.failing = 2 }, fails: errCall},
		"the pool is in a project": {
			change: func(k *fakeKernel, p *projects) {
				k.members[inodeOf(p.pool)] = projectquota.Membership{Project: 42, Inherited: true}
			}, want: "belongs to project 42",
		},
		"the pool has a project that nothing inherits": {
			change: func(k *fakeKernel, p *projects) { k.members[inodeOf(p.pool)] = projectquota.Membership{Project: 42} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			k, p, _ := newFakeKernel(t)
			test.change(k, p)

			reason, err := p.reasonWithout()
			require.ErrorIs(t, err, test.fails)
			require.Contains(t, reason, test.want)
			require.Equal(t, test.want == "", reason == "", "want: there is no reason against what can be used")
		})
	}
}
