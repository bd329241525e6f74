package quota_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

const (
	mebi       = 1 << 20
	limitBytes = 16 * mebi
	mode       = 0o777
)

// site is a directory of a btrfs with the implementation for it.
type site struct {
	quota.Directories

	root *os.Root
	// evaded are the directories of which a call has reported that they evade a limit, and grown are those
	// of Grown.
	evaded map[string]bool
	grown  []string
	// interrupted means that a call has failed.
	interrupted bool
}

// openPool opens the quotas of a directory.
func openPool(directory string, inspect bool) (quota.Directories, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, err
	}
	defer root.Close()

	return quota.Open(root, inspect)
}

func openSite(directory string) (*site, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, err
	}

	made, err := quota.Open(root, false)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}

	return &site{Directories: made, root: root, evaded: map[string]bool{}}, nil
}

func (s *site) close() error { return errors.Join(s.root.Close(), s.Close()) }

// in calls run with an open directory.
func (s *site) in(name string, run func(directory *os.File) error) error {
	directory, err := s.root.Open(name)
	if err != nil {
		return err
	}

	return errors.Join(run(directory), directory.Close())
}

func (s *site) confine(name string) error {
	return s.in(name, func(directory *os.File) error {
		evaded, err := s.Confine(directory)
		s.evaded[name] = s.evaded[name] || evaded

		return err
	})
}

// onSite returns an operation of a site that is open.
func onSite(run func(s *site) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		s, err := openSite(directory)
		if err != nil {
			return nil, nil, err
		}

		return func() error { return run(s) }, s.close, nil
	}
}

var onceOperations = map[string]syscallfault.Operation{
	"open": func(directory string) (run, end func() error, err error) {
		return func() error {
			s, err := openSite(directory)
			if err != nil {
				return err
			}

			if reason := s.Support().Reason; reason != "" {
				return errors.Join(errors.New(reason), s.close())
			}

			return errors.Join(syscallfault.Differs("support", quota.Support{Kind: quota.Subvolume, Limited: true, Snapshots: true}, s.Support()), s.close())
		}, func() error { return nil }, nil
	},
	"open without quotas": func(directory string) (run, end func() error, err error) {
		return func() error {
			s, err := openSite(directory)
			if err != nil {
				return err
			}

			return errors.Join(syscallfault.Differs("kind", quota.Plain, s.Support().Kind), s.close())
		}, func() error { return nil }, nil
	},
	"make": onSite(func(s *site) error { return s.Make(s.root, "made", mode) }),
	"limit": onSite(func(s *site) error {
		return s.in("volume", func(directory *os.File) error {
			return errors.Join(s.Limit(directory, 2*limitBytes), s.Sync(directory))
		})
	}),
	"first limit": onSite(func(s *site) error {
		return s.in("unlimited", func(directory *os.File) error { return s.Limit(directory, limitBytes) })
	}),
	"limit of a plain directory": onSite(func(s *site) error {
		return s.in("plain", func(directory *os.File) error {
			_, limited, err := s.Usage(directory)
			_, known, unknown := s.Allocated(directory)
			evaded, failed := s.Confine(directory)

			return errors.Join(s.Limit(directory, limitBytes), s.Seal(directory), err, unknown, failed,
				syscallfault.Differs("limited, allocated, evaded", []bool{false, false, false}, []bool{limited, known, evaded}))
		})
	}),
	"usage": onSite(func(s *site) error {
		return s.in("volume", func(directory *os.File) error {
			if err := s.Sync(directory); err != nil {
				return err // what is counted is what was committed
			}

			err := s.in("unlimited", func(unlimited *os.File) error {
				_, limited, err := s.Usage(unlimited)

				return errors.Join(err, syscallfault.Differs("limited", false, limited))
			})
			if err != nil {
				return err
			}

			usage, limited, err := s.Usage(directory)
			if err != nil {
				return err
			}

			allocated, known, err := s.Allocated(directory)
			if err != nil {
				return err
			}

			return syscallfault.Differs("limit, allocation",
				[]any{true, limitBytes, true, true}, []any{limited, usage.LimitBytes, known, allocated == usage.Bytes && allocated >= mebi})
		})
	}),
	"snapshot": onSite(func(s *site) error {
		return s.in("volume", func(directory *os.File) error {
			if !s.CanSnapshot(directory) {
				return errors.New("the subvolume cannot be copied")
			}

			err := s.Snapshot(directory, s.root, "snapshot")
			if errors.Is(err, fs.ErrExist) {
				err = nil
			}

			if err != nil {
				return err
			}

			return s.in("snapshot", s.Seal)
		})
	}),
	"confine": onSite(func(s *site) error {
		if err := errors.Join(s.confine("volume"), s.confine("other"), s.confine("unlimited")); err != nil {
			return err
		}

		return syscallfault.Differs("evaded", map[string]bool{"volume": true, "other": false, "unlimited": false}, s.evaded)
	}),
	"confine the other one": onSite(func(s *site) error { return s.confine("other") }),
	"confine what names a group twice": onSite(func(s *site) error {
		err := s.confine("volume")
		s.interrupted = s.interrupted || err != nil

		if s.interrupted {
			return err // the other volume's group may not have been made again
		}

		return s.in("other", func(directory *os.File) error {
			usage, limited, err := s.Usage(directory)
			if err != nil {
				return err
			}

			return syscallfault.Differs("limited, limit, all counted",
				[]any{true, int64(limitBytes), true}, []any{limited, usage.LimitBytes, usage.Bytes >= mebi})
		})
	}),
	"grown": onSite(func(s *site) error {
		found, err := s.Grown()
		if err != nil {
			return err
		}

		s.grown = append(s.grown, found...)

		return syscallfault.Differs("those with subvolumes inside", []string{"another's", "other", "volume"}, slices.Compact(s.grown))
	}),
	"remove": onSite(func(s *site) error {
		parent, err := s.root.Open(".")
		if err != nil {
			return err
		}
		defer parent.Close()

		for _, name := range volumes {
			removed, err := s.Remove(context.Background(), parent, name)
			if err != nil {
				return err
			}

			if _, missing := s.root.Lstat(name); !removed && missing == nil {
				return fmt.Errorf("%s is left to a walk", name)
			}
		}

		return nil
	}),
	"remove stale": onSite(func(s *site) error { return s.RemoveStale(context.Background()) }),
}

// volumes are the subvolumes of a site; the last one has no limit.
var volumes = []string{"volume", "other", "unlimited"}

func prepare(t *testing.T, directory string) {
	t.Helper()
	at := func(names ...string) string { return filepath.Join(append([]string{directory}, names...)...) }

	s, err := openSite(directory)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(at("plain"), 0o700))

	for _, name := range volumes {
		require.NoError(t, s.Make(s.root, name, mode))

		writeMebi(t, at(name, "file"))
	}

	var groups []btrfs.Group

	for _, name := range volumes[:2] {
		require.NoError(t, s.in(name, func(directory *os.File) error {
			id, err := btrfs.ID(directory)
			groups = append(groups, btrfs.GroupOf(1, id))

			return errors.Join(err, s.Limit(directory, limitBytes))
		}))
	}

	// The user of a volume chooses the groups of what is inside.
	for _, each := range []struct {
		at, name string
		groups   []btrfs.Group
	}{
		{at: at("volume"), name: "another's", groups: groups[1:]},
		{at: at("volume", "another's"), name: "innermost"},
		{at: at("other"), name: "own", groups: groups[1:]},
	} {
		require.NoError(t, testpool.MakeSubvolume(each.at, each.name, 0, each.groups...))
	}

	require.NoError(t, s.close())
}

// TestEachCallForSubvolumesFailsOnce has each call fail once that is made for the directories of a
// btrfs. It is reported, the call succeeds when it is repeated, and nothing is counted for another
// volume or left behind then.
func TestEachCallForSubvolumesFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	var removed sync.Map // by path

	// prepareStale removes a volume whose space a snapshot uses, and the snapshot.
	prepareStale := func(t *testing.T, directory string) {
		t.Helper()
		prepare(t, directory)
		removed.Store(directory, btrfs.GroupOf(0, idOf(t, filepath.Join(directory, "other"))))

		s, err := openSite(directory)
		require.NoError(t, err)

		root, err := s.root.Open(".")
		require.NoError(t, err)
		require.NoError(t, s.in("other", func(source *os.File) error { return s.Snapshot(source, s.root, "snapshot") }))

		for _, name := range []string{"other", "snapshot"} {
			_, err := s.Remove(t.Context(), root, name)
			require.NoError(t, err)
			groupsOf(t, directory, true)
		}

		group, _ := removed.Load(directory)
		require.Contains(t, groupsOf(t, directory, false), group, "want: the kernel has left the group")
		require.NoError(t, errors.Join(root.Close(), s.close()))
	}

	cases := map[string]*syscallfault.Case{
		"open": {Reported: []string{"openat", "fstatfs", "ioctl", "read"}, Within: testpool.Btrfs(t, 256*mebi), Prepare: func(t *testing.T, directory string) {
			t.Helper()

			output, err := child.Command(t, "btrfs", "quota", "disable", directory).CombinedOutput()
			require.NoError(t, err, "%s", output)
		}},
		"make":  {Reported: []string{"openat", "ioctl"}, Causes: true, Verify: verifyMade},
		"limit": {Causes: true}, "first limit": {Causes: true}, "usage": {},
		"limit of a plain directory": {Verify: func(t *testing.T, directory string) {
			t.Helper()

			s, err := openSite(directory)
			require.NoError(t, err)
			require.NoError(t, s.in("plain", func(plain *os.File) error {
				return syscallfault.Differs("plain directories are copied at one point in time", false, s.CanSnapshot(plain))
			}))
			require.NoError(t, s.close())
		}},
		"snapshot": {Verify: func(t *testing.T, directory string) {
			t.Helper()
			require.Error(t, os.WriteFile(filepath.Join(directory, "snapshot", "new"), nil, 0o600), "want: a sealed snapshot cannot be written")
		}},
		"confine": {Every: true, Verify: func(t *testing.T, directory string) {
			t.Helper()

			requireParents(t, directory, "volume", "volume/another's", "volume/another's/innermost")
			requireParents(t, directory, "other", "other/own")
		}},
		"confine the other one": {Every: true, Causes: true, Verify: func(t *testing.T, directory string) {
			t.Helper()

			requireParents(t, directory, "other", "other/own")
			requireMembers(t, directory, "other", 2)
		}},
		"confine what names a group twice": {Prepare: func(t *testing.T, directory string) {
			t.Helper()
			prepare(t, directory)

			other := btrfs.GroupOf(1, idOf(t, filepath.Join(directory, "other")))
			require.NoError(t, testpool.MakeSubvolume(filepath.Join(directory, "volume"), "twice", 0, other, other))
			writeMebi(t, filepath.Join(directory, "volume", "twice", "file"))
		}, Verify: func(t *testing.T, directory string) {
			t.Helper()
			requireParents(t, directory, "volume", "volume/twice", "volume/another's")
		}},
		"grown": {},
		"remove": {Every: true, Reported: []string{"openat", "fstat ", "fstatfs", "ioctl", "read"}, Prepare: func(t *testing.T, directory string) {
			t.Helper()
			prepare(t, directory)

			for _, name := range volumes {
				removed.Store(filepath.Join(directory, name), btrfs.GroupOf(1, idOf(t, filepath.Join(directory, name))))
			}
		}, Verify: func(t *testing.T, directory string) {
			t.Helper()

			groups := groupsOf(t, directory, false)

			for _, name := range volumes {
				path := filepath.Join(directory, name)
				require.NoDirExists(t, path)

				group, _ := removed.Load(path)
				require.NotContains(t, groups, group, "want: the group of a removed volume is removed")
			}
		}},
		// The groups that other operations leave would be stale, too.
		"remove stale": {Within: testpool.Btrfs(t, 256*mebi), Prepare: prepareStale, Verify: func(t *testing.T, directory string) {
			t.Helper()

			group, _ := removed.Load(directory)
			require.NotContains(t, groupsOf(t, directory, false), group, "want: the group of a removed volume is removed once its space is free")
		}},
	}

	within := testpool.Btrfs(t, 1024*mebi)

	for name, c := range cases {
		c.Operation, c.Within, c.Lossy = name, cmp.Or(c.Within, within), []string{"*", "*/*"}
		// Of sysfs, the opening of one attribute of each group and of the mode.
		c.Beside, c.Except = quotasOf(t, c.Within), regexp.MustCompile("^[^o][^ ]* /sys/|/(referenced|exclusive|max_referenced)#")

		if c.Reported == nil {
			c.Reported = []string{""}
		}

		if c.Prepare == nil {
			c.Prepare = prepare
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
