package quota

import (
	"errors"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
)

var errCall = errors.New("the call fails")

// fakeKernel has the projects of a directory that is on a filesystem without them.
type fakeKernel struct {
	root    string
	limits  map[uint32]projectquota.Amount
	members map[uint64]projectquota.Membership
	off     bool
	// calls counts those that were made, and failing is the one that fails with errCall.
	calls, failing int
	// joined is called after each change of a project.
	joined func(project uint32)
}

func newFakeKernel(t *testing.T) (*fakeKernel, *projects, *os.Root) {
	t.Helper()

	k := &fakeKernel{
		root: t.TempDir(), limits: map[uint32]projectquota.Amount{}, members: map[uint64]projectquota.Membership{}, joined: func(uint32) {},
	}

	pool, err := os.Open(k.root)
	require.NoError(t, err)
	t.Cleanup(func() { _ = pool.Close() })

	root, err := os.OpenRoot(k.root)
	require.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })

	return k, &projects{projectCalls: k.projectCalls(), pool: pool}, root
}

func (k *fakeKernel) fails() error {
	k.calls++
	if k.calls == k.failing {
		return errCall
	}

	return nil
}

func inodeOf(file *os.File) uint64 {
	info, err := file.Stat()
	if err != nil {
		panic(err)
	}

	return info.Sys().(*syscall.Stat_t).Ino
}

// observe returns the project of each inode, and what each project uses. A file belongs to the project
// that its directory had, unless it was changed.
func (k *fakeKernel) observe() (map[uint64]projectquota.Membership, map[uint32]projectquota.Amount) {
	members, used, paths := map[uint64]projectquota.Membership{}, map[uint32]projectquota.Amount{}, map[string]projectquota.Membership{}

	_ = filepath.WalkDir(k.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		info, err := entry.Info()
		if err != nil {
			return err
		}

		number := info.Sys().(*syscall.Stat_t).Ino

		member, changed := k.members[number]
		if outer := paths[filepath.Dir(path)]; !changed && outer.Inherited {
			member = projectquota.Membership{Project: outer.Project, Inherited: entry.IsDir()}
		}

		members[number], paths[path] = member, member
		amount := used[member.Project]
		amount.Inodes++

		if !entry.IsDir() {
			amount.Bytes += info.Size()
		}

		used[member.Project] = amount

		return nil
	})

	return members, used
}

func (k *fakeKernel) projectCalls() projectCalls {
	change := func(file *os.File, edit func(*projectquota.Membership)) error {
		if err := k.fails(); err != nil {
			return err
		}

		members, _ := k.observe()
		member := members[inodeOf(file)]
		edit(&member)

		k.members[inodeOf(file)] = member
		k.joined(member.Project)

		return nil
	}

	get := func(project uint32) projectquota.Quota {
		_, used := k.observe()

		return projectquota.Quota{Limit: k.limits[project], Used: used[project]}
	}

	return projectCalls{
		enforced: func(*os.File) (bool, error) { return !k.off, k.fails() },
		all: func(_ *os.File, from uint32) iter.Seq2[projectquota.Project, error] {
			return func(yield func(projectquota.Project, error) bool) {
				if err := k.fails(); err != nil {
					yield(projectquota.Project{}, err)

					return
				}

				_, used := k.observe()
				for id := range k.limits {
					used[id] = get(id).Used
				}

				for _, id := range slices.Sorted(maps.Keys(used)) {
					if id >= from && !yield(projectquota.Project{ID: id, Quota: get(id)}, nil) {
						return
					}
				}
			}
		},
		get: func(_ *os.File, project uint32) (projectquota.Quota, error) {
			if err := k.fails(); err != nil {
				return projectquota.Quota{}, err
			}

			return get(project), nil
		},
		setLimits: func(_ *os.File, project uint32, limit projectquota.Amount) error {
			if err := k.fails(); err != nil {
				return err
			}

			k.limits[project] = limit

			return nil
		},
		membershipOf: func(directory *os.File) (projectquota.Membership, error) {
			if err := k.fails(); err != nil {
				return projectquota.Membership{}, err
			}

			members, _ := k.observe()

			return members[inodeOf(directory)], nil
		},
		join: func(directory *os.File, project uint32) error {
			return change(directory, func(m *projectquota.Membership) { *m = projectquota.Membership{Project: project, Inherited: true} })
		},
		giveBack: func(file *os.File, project uint32, directory bool) (bool, error) {
			members, _ := k.observe()
			if found := members[inodeOf(file)]; found.Project == project && found.Inherited == directory {
				return false, k.fails()
			}

			return true, change(file, func(m *projectquota.Membership) {
				*m = projectquota.Membership{Project: project, Inherited: directory}
			})
		},
		leave: func(directory *os.File) error {
			return change(directory, func(m *projectquota.Membership) { m.Inherited = false })
		},
	}
}

// candidates are the project ids of an object, in the order in which they are tried.
func candidates(id string) []uint32 { return slices.Collect(projectIDs(id)) }

// member returns the project of a name.
func (k *fakeKernel) member(t *testing.T, name string) projectquota.Membership {
	t.Helper()

	var stat unix.Stat_t
	require.NoError(t, unix.Lstat(filepath.Join(k.root, name), &stat))

	members, _ := k.observe()

	return members[stat.Ino]
}

func openDirectory(t *testing.T, k *fakeKernel, name string) *os.File {
	t.Helper()

	directory, err := os.Open(filepath.Join(k.root, name))
	require.NoError(t, err)
	t.Cleanup(func() { _ = directory.Close() })

	return directory
}
