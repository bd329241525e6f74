package projectquota_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(onceOperations)
	os.Exit(namespace.Main(m))
}

const project = 1<<32 - 2 // the largest id

// onDirectory returns an operation of an open directory. Its end returns what was wrong: a success with
// another answer, or a failure without its cause.
func onDirectory(run func(directory *os.File) (wrong, err error)) syscallfault.Operation {
	return func(path string) (func() error, func() error, error) {
		directory, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}

		var all error

		return func() error {
			wrong, err := run(directory)
			if err != nil && !errors.Is(err, unix.EIO) {
				wrong = fmt.Errorf("not the cause of the failure: %w", err)
			}

			all = errors.Join(all, wrong)

			return err
		}, func() error { return errors.Join(all, directory.Close()) }, nil
	}
}

var onceOperations = map[string]syscallfault.Operation{
	"join": onDirectory(func(directory *os.File) (wrong, err error) {
		return nil, projectquota.Join(directory, project)
	}),
	"leave": onDirectory(func(directory *os.File) (wrong, err error) { return nil, projectquota.Leave(directory) }),
	"membership": onDirectory(func(directory *os.File) (wrong, err error) {
		got, err := projectquota.MembershipOf(directory)
		if want := (projectquota.Membership{Project: project, Inherited: true}); err == nil && got != want {
			wrong = fmt.Errorf("membership is %v instead of %v", got, want)
		}

		return wrong, err
	}),
	"return": onDirectory(func(directory *os.File) (wrong, err error) {
		changed, err := projectquota.Return(directory, project-1, true)
		if err == nil && !changed {
			wrong = errors.New("a directory of another project was not changed")
		}

		return wrong, err
	}),
	"return what is there": onDirectory(func(directory *os.File) (wrong, err error) {
		changed, err := projectquota.Return(directory, project, true)
		if err == nil && changed {
			wrong = errors.New("a directory of the project was changed")
		}

		return wrong, err
	}),
}

// membership returns the project of a path.
func membership(t *testing.T, path string) projectquota.Membership {
	t.Helper()

	file, err := os.Open(path)
	require.NoError(t, err)

	defer file.Close()

	found, err := projectquota.MembershipOf(file)
	require.NoError(t, err)

	return found
}

// TestEachCallFailsOnce has each call fail once that is made for the project of a directory.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	within := testpool.Reflink(t, 512<<20)

	for name, want := range map[string]projectquota.Membership{
		"join":                 {Project: project, Inherited: true},
		"leave":                {Project: project},
		"membership":           {Project: project, Inherited: true},
		"return":               {Project: project - 1, Inherited: true},
		"return what is there": {Project: project, Inherited: true},
	} {
		t.Run(name, func(t *testing.T) {
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: name, Within: within, Reported: []string{""},
				Prepare: func(t *testing.T, path string) {
					t.Helper()
					require.Equal(t, projectquota.Membership{}, membership(t, path))

					if name != "join" {
						run, end, err := onceOperations["join"](path)
						require.NoError(t, err)
						require.NoError(t, run())
						require.NoError(t, end())
					}
				},
				Verify: func(t *testing.T, path string) {
					t.Helper()
					require.Equal(t, want, membership(t, path))

					inherited := projectquota.Membership{}
					if want.Inherited {
						inherited = want
					}

					require.NoError(t, os.Mkdir(filepath.Join(path, "new"), 0o700))
					require.Equal(t, inherited, membership(t, filepath.Join(path, "new")), "the project of a new directory")
				},
			})
		})
	}
}

// TestReturnChangesForeignFiles and directories only: those of another project, or that pass none
// on.
func TestReturnChangesForeignFiles(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	top := testpool.Reflink(t, 512<<20)

	for name, test := range map[string]struct {
		from      uint32
		inherited bool
		directory bool
		changed   bool
		want      projectquota.Membership
	}{
		"a file of another":          {from: 6, changed: true, want: projectquota.Membership{Project: 7}},
		"a file of it":               {from: 7, want: projectquota.Membership{Project: 7}},
		"a directory of another":     {from: 6, inherited: true, directory: true, changed: true, want: projectquota.Membership{Project: 7, Inherited: true}},
		"a directory of it":          {from: 7, inherited: true, directory: true, want: projectquota.Membership{Project: 7, Inherited: true}},
		"a directory without effect": {from: 7, directory: true, changed: true, want: projectquota.Membership{Project: 7, Inherited: true}},
	} {
		path := filepath.Join(top, name)

		if test.directory {
			require.NoError(t, os.Mkdir(path, 0o700))
		} else {
			require.NoError(t, os.WriteFile(path, nil, 0o600))
		}

		file, err := os.Open(path)
		require.NoError(t, err)

		if test.inherited {
			require.NoError(t, projectquota.Join(file, test.from))
		} else {
			_, err := projectquota.Return(file, test.from, false)
			require.NoError(t, err)
		}

		changed, err := projectquota.Return(file, 7, test.directory)
		require.NoError(t, err)
		require.Equal(t, test.changed, changed, name)
		require.Equal(t, test.want, membership(t, path), name)
		require.NoError(t, file.Close())
	}
}

// TestFilesystemWithoutQuotasIsUnsupported: only whether they are on is known where there are none.
func TestFilesystemWithoutQuotasIsUnsupported(t *testing.T) {
	t.Parallel()

	file, err := os.Open("/proc")
	require.NoError(t, err)

	_, err = projectquota.Get(file, 7)
	errtext.Require(t, err, "quota of project 7 on the filesystem of /proc: quotactl_fd")
	errtext.Require(t, projectquota.SetLimits(file, 7, projectquota.Amount{Bytes: 1}),
		"set the limits of project 7 on the filesystem of /proc: quotactl_fd")

	times := 0
	for found, err := range projectquota.All(file, 7) {
		times++

		require.Zero(t, found, "want: no project comes with an error")
		errtext.Require(t, err, "project quotas from 7 on the filesystem of /proc: quotactl_fd")
	}

	require.Equal(t, 1, times, "want: the list ends after its first error")
	require.ErrorIs(t, projectquota.Join(file, 7), errors.ErrUnsupported)
	require.ErrorIs(t, projectquota.Leave(file), errors.ErrUnsupported)

	_, err = projectquota.Return(file, 7, true)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.NoError(t, file.Close())

	_, err = projectquota.Enforced(file)
	require.ErrorIs(t, err, os.ErrClosed)
}
