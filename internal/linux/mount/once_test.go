package mount_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// site is what an operation of a directory finds in it: targets, and what is mounted there.
type site struct {
	directory string
	dirs      *mount.AllowedDirs
	targets   map[string]*mount.Target
	// mounted is what is mounted at the target of this name.
	mounted mount.Point
}

func openSite(directory string, mountinfo bool) (*site, error) {
	dirs, err := mount.NewAllowedDirs(directory)
	if err != nil {
		return nil, err
	}

	if mountinfo {
		mount.ReadMountinfo(dirs)
	}

	s := &site{directory: directory, dirs: dirs, targets: map[string]*mount.Target{}}

	for _, name := range []string{"directory", "file", "mounted", "new"} {
		if s.targets[name], err = dirs.Target(filepath.Join(directory, name)); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}

	if s.mounted, _, err = s.targets["mounted"].Mounted(); err != nil {
		return nil, errors.Join(err, s.close())
	}

	return s, nil
}

func (s *site) close() error {
	for _, target := range s.targets {
		if target != nil {
			target.Close()
		}
	}

	return nil
}

// onSite returns an operation of a site that is open.
func onSite(run func(s *site) error) syscallfault.Operation { return onSiteBy(false, run) }

func onSiteBy(mountinfo bool, run func(s *site) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		s, err := openSite(directory, mountinfo)
		if err != nil {
			return nil, nil, err
		}

		return func() error { return asReported(run(s)) }, s.close, nil
	}
}

// asReported returns the error of an operation, which must be that of the call that was made to fail.
func asReported(err error) error {
	if err == nil || isAny(err, unix.EIO, unix.ENOSPC, unix.ENOMEM, unix.EMFILE) {
		return err
	}

	return syscallfault.Differs("the report", "that of the failed call", err)
}

// answered returns the error of a call, or one that says that its answer is not the expected one. An
// answer beside an error is wrong, too.
func answered[T any](want, got T, err error) error {
	if err != nil {
		var none T

		return errors.Join(err, syscallfault.Differs("the answer beside an error", none, got))
	}

	return syscallfault.Differs("the answer", want, got)
}

// isMounted is an answer of Mounted.
type isMounted struct {
	point   mount.Point
	mounted bool
}

func (s *site) askMounted(name string, want mount.Point) error {
	point, mounted, err := s.targets[name].Mounted()

	return answered(isMounted{want, want.ID != 0}, isMounted{point, mounted}, err)
}

// rootAs checks that a root is open exactly if its call has succeeded.
func rootAs(root *os.File, err error) error {
	if err != nil {
		return errors.Join(err, syscallfault.Differs("the root beside an error", (*os.File)(nil), root))
	}

	names, err := root.Readdirnames(-1)
	if err != nil {
		return errors.Join(err, root.Close())
	}

	return errors.Join(syscallfault.Differs("the names in the root", []string{"inside"}, names), root.Close())
}

// attach makes a detached mount appear at "directory".
func (s *site) attach(tree *mount.Detached, err error) error {
	if err != nil {
		return errors.Join(err, syscallfault.Differs("the mount beside an error", (*mount.Detached)(nil), tree))
	}
	defer tree.Close()

	return tree.Attach(s.targets["directory"])
}

var onceOperations = map[string]syscallfault.Operation{
	"target": onSite(func(s *site) error {
		target, err := s.dirs.Target(filepath.Join(s.directory, "directory", "deeper", "new"))
		if err != nil {
			return errors.Join(err, syscallfault.Differs("the target beside an error", (*mount.Target)(nil), target))
		}
		defer target.Close()

		return syscallfault.Differs("the path", filepath.Join(s.directory, "directory", "deeper", "new"), target.Path())
	}),
	"exists": onSite(func(s *site) error {
		for name, want := range map[string]bool{"file": true, "new": false} {
			exists, err := s.targets[name].Exists()
			if err := answered(want, exists, err); err != nil {
				return err
			}
		}

		return nil
	}),
	"make directory": onSite(func(s *site) error {
		made, err := s.targets["new"].MakeDir(0o700)
		if err != nil {
			return answered(false, made, err)
		}

		made, err = s.targets["directory"].MakeDir(0o700)
		if err != nil {
			return errors.Join(answered(false, made, err), s.targets["new"].Remove())
		}

		return syscallfault.Differs("made what is there", false, made)
	}),
	"make file": onSite(func(s *site) error {
		made, err := s.targets["new"].MakeFile(0o600)
		if err != nil {
			return answered(false, made, err)
		}

		made, err = s.targets["file"].MakeFile(0o600)
		if err != nil {
			return errors.Join(answered(false, made, err), s.targets["new"].Remove())
		}

		return syscallfault.Differs("made what is there", false, made)
	}),
	"remove": onSite(func(s *site) error {
		return errors.Join(s.targets["file"].Remove(), s.targets["new"].Remove())
	}),
	"open": onSite(func(s *site) error {
		file, err := s.targets["file"].Open()
		if err != nil {
			return errors.Join(err, syscallfault.Differs("the file beside an error", (*os.File)(nil), file))
		}

		return file.Close()
	}),
	"usage": onSite(func(s *site) error {
		usage, err := s.targets["mounted"].Usage()
		usage.Filesystem, usage.Inodes = [2]int32{}, mount.Amount{}

		return answered(mount.Usage{Bytes: mount.Amount{Total: 1 << 20, Available: 1 << 20}}, usage, err)
	}),
	"list beneath": onSite(func(s *site) error {
		points, err := mount.ListBeneath(filepath.Join(s.directory, "mounted"))
		want := s.mounted

		// Its ids are of another kind where it could not find out the better one.
		if len(points) == 1 {
			want.ID = points[0].ID
		}

		return answered([]mount.Point{want}, points, err)
	}),
	"unmount": onSite(func(s *site) error { return s.targets["mounted"].Unmount() }),
	"unmount of nothing": onSite(func(s *site) error {
		return s.targets["directory"].Unmount()
	}),
	"check support": onSite(func(*site) error { return mount.CheckSupport("tmpfs") }),
	"mount": onSite(func(s *site) error {
		options, err := mount.ParseFlags([]string{"nodev", "ro", "size=1m"})
		if err != nil {
			return err
		}

		return s.attach(mount.Mount("other", "tmpfs", options))
	}),
	"bind": onSite(func(s *site) error {
		from, err := s.targets["mounted"].Open()
		if err != nil {
			return err
		}
		defer from.Close()

		options, err := mount.ParseFlags([]string{"ro"})
		if err != nil {
			return err
		}

		return s.attach(mount.Bind(from, options))
	}),
	"files": onSite(func(s *site) error {
		return s.attach(mount.NewReadOnlyTmpfs("other", map[string][]byte{"one": []byte("1")}))
	}),
	"replay": onSite(func(*site) error {
		finished := 0

		err := mount.Replay("other", "tmpfs", nil, func(root *os.File) error {
			finished++

			_, err := root.Stat()

			return err
		})
		if err != nil {
			return err
		}

		return syscallfault.Differs("finished", 1, finished)
	}),
}

// observations are the operations that read the mount table, in each of the two ways.
var observations = map[string]func(s *site) error{
	"mounted":     func(s *site) error { return s.askMounted("mounted", s.mounted) },
	"not mounted": func(s *site) error { return s.askMounted("file", mount.Point{}) },
	"list": func(s *site) error {
		points, err := s.targets["mounted"].List()
		if err != nil {
			return errors.Join(err, syscallfault.Differs("the answer beside an error", []mount.Point(nil), points))
		}

		return syscallfault.Differs("those beneath", []mount.Point{s.mounted}, slices.DeleteFunc(points, func(p mount.Point) bool {
			return !strings.HasPrefix(p.Path, s.directory+"/")
		}))
	},
	"layers": func(s *site) error {
		points, err := s.targets["mounted"].Layers()

		return answered([]mount.Point{s.mounted}, points, err)
	},
	"open root": func(s *site) error { return rootAs(s.targets["mounted"].OpenRoot(s.mounted)) },
}

func allOnceOperations() map[string]syscallfault.Operation {
	all := maps.Clone(onceOperations)

	for name, run := range observations {
		all[name] = onSite(run)
		all[name+" by mountinfo"] = onSiteBy(true, run)
	}

	return all
}

// prepareSite makes the targets of a site: a tmpfs is mounted at "mounted".
func prepareSite(t *testing.T, directory string) {
	t.Helper()

	for _, name := range []string{"directory/deeper", "mounted"} {
		makeDir(t, directory, name)
	}

	writeFile(t, filepath.Join(directory, "file"), "")
	t.Cleanup(func() { unmountBeneath(t, directory) })

	at := filepath.Join(directory, "mounted")
	require.NoError(t, unix.Mount("scratch", at, "tmpfs", unix.MS_NODEV|unix.MS_NOATIME, "size=1m,mode=700"))
	makeDir(t, at, "inside")
}

// pointAt returns what is mounted at a name in a directory.
func pointAt(t *testing.T, directory, name string) (mount.Point, bool) {
	t.Helper()

	s, err := openSite(directory, true)
	require.NoError(t, err)

	point, mounted, err := s.targets[name].Mounted()
	require.NoError(t, errors.Join(err, s.close()))

	return point, mounted
}

// requireAttached requires a mount of this source, type and root, with these options, at "directory".
func requireAttached(source, fsType string, options ...string) func(t *testing.T, directory string) {
	return func(t *testing.T, directory string) {
		t.Helper()

		point, mounted := pointAt(t, directory, "directory")
		require.True(t, mounted, "want: the mount is attached")
		require.Equal(t, []string{source, fsType, "/"}, []string{point.Source, point.FSType, point.Root})
		require.Equal(t, options, point.Options)
	}
}

// TestEachCallFailsOnce has each system call fail once that is made for a target. It is reported
// with no answer beside, the operation succeeds with the whole answer when it is repeated, and
// nothing is attached before it succeeds.
func TestEachCallFailsOnce(t *testing.T) {
	needRoot(t)
	t.Parallel()

	missing := func(names ...string) func(t *testing.T, directory string) {
		return func(t *testing.T, directory string) {
			t.Helper()

			for _, name := range names {
				_, err := os.Lstat(filepath.Join(directory, name))
				require.ErrorIs(t, err, fs.ErrNotExist, name)
			}
		}
	}

	made := func(name string, mode fs.FileMode) func(t *testing.T, directory string) {
		return func(t *testing.T, directory string) {
			t.Helper()

			info, err := os.Lstat(filepath.Join(directory, name))
			require.NoError(t, err)
			require.Equal(t, mode, info.Mode())
		}
	}

	cases := map[string]*syscallfault.Case{
		"target": {}, "exists": {}, "open": {}, "usage": {},
		"make directory": {Verify: made("new", fs.ModeDir|0o700)},
		"make file":      {Verify: made("new", 0o600)},
		"remove":         {Verify: missing("file", "new")},
		"check support":  {Mounts: true},
		// The first statmount is how the kernel's way is found out.
		"list beneath": {Mounts: true, Reported: []string{"fstatat", "listmount"}},
		"open root":    {Mounts: true},
		"unmount": {Mounts: true, Verify: func(t *testing.T, directory string) {
			t.Helper()

			_, mounted := pointAt(t, directory, "mounted")
			require.False(t, mounted, "want: nothing is mounted any more")
		}},
		// What is mounted is asked in another way where statx fails.
		"unmount of nothing": {Mounts: true, Reported: []string{"umount2"}},
		"mount":              {Mounts: true, Verify: requireAttached("other", "tmpfs", "ro", "nodev", "relatime")},
		"bind":               {Mounts: true, Verify: requireAttached("scratch", "tmpfs", "ro", "nodev", "noatime")},
		"files":              {Mounts: true, Verify: requireAttached("other", "tmpfs", "ro", "nosuid", "nodev", "noexec", "relatime")},
		"replay":             {Mounts: true},
	}

	for name := range observations {
		for _, by := range []string{"", " by mountinfo"} {
			cases[name+by] = &syscallfault.Case{Mounts: true, Reported: []string{"listmount", "statmount", "open", "read"}}
		}
	}

	for name, c := range cases {
		c.Operation, c.Prepare, c.Lossy = name, prepareSite, []string{"*"}

		if c.Reported == nil {
			c.Reported = []string{""}
		}

		if c.Mounts && c.Verify != nil && name != "unmount" {
			c.Failed = func(t *testing.T, directory string) {
				t.Helper()

				_, mounted := pointAt(t, directory, "directory")
				require.False(t, mounted, "want: a failed operation attaches nothing")
			}
		}

		if c.Verify == nil {
			c.Verify = func(*testing.T, string) {}
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}

// TestEachCallForAShutDownXFSFailsOnce while the mount of a filesystem that answers with EIO is
// searched for: it is found, or the failure is reported, and it never passes for not mounted.
func TestEachCallForAShutDownXFSFailsOnce(t *testing.T) {
	needRoot(t)
	t.Parallel()

	dir, dirs := allowedDir(t)
	down := findDir(t, dirs, dir+"/down")
	attach(t, loopDevice(t, 320<<20, "mkfs.xfs", "-q", "-s", "size=4096"), "xfs", down)
	shutDown(t, down)

	for _, operation := range []string{"mounted", "mounted by mountinfo"} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: operation, Mounts: true, Reported: []string{"open", "listmount", "statmount"},
				Prepare: func(t *testing.T, directory string) {
					t.Helper()

					at := makeDir(t, directory, "mounted")
					require.NoError(t, unix.Mount(down.Path(), at, "", unix.MS_BIND, ""))
					t.Cleanup(func() { require.NoError(t, unix.Unmount(at, 0)) })
				},
				Verify: func(*testing.T, string) {},
			})
		})
	}
}
