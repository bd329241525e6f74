package btrfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// site is a directory with the subvolumes a, a/b, a/b/c, a/d and e.
type site struct {
	path string
	// wrong are answers of a success that are not right, and failures without their cause.
	wrong error
}

// onSite returns an operation of a site.
func onSite(run func(s *site, top *os.File) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		s := &site{path: directory}

		return func() error {
			err := s.in(".", func(top *os.File) error { return run(s, top) })
			if err != nil && !errors.Is(err, unix.EIO) {
				s.wrong = errors.Join(s.wrong, fmt.Errorf("not the cause of the failure: %w", err))
			}

			return err
		}, func() error { return s.wrong }, nil
	}
}

// in calls run with an open directory.
func (s *site) in(name string, run func(directory *os.File) error) error {
	directory, err := os.Open(filepath.Join(s.path, name))
	if err != nil {
		return err
	}

	return errors.Join(run(directory), directory.Close())
}

func (s *site) id(name string) (id uint64, err error) {
	err = s.in(name, func(directory *os.File) (err error) {
		id, err = btrfs.ID(directory)

		return err
	})

	return id, err
}

// ids returns the ids of the subvolumes of a site, in the order of their names.
func (s *site) ids() (ids []uint64, err error) {
	for _, name := range []string{"a", "a/b", "a/b/c", "a/d", "e"} {
		id, err := s.id(name)
		if err != nil {
			return nil, err
		}

		ids = append(ids, id)
	}

	return ids, nil
}

// equal returns the error of an observation, and takes note of a wrong one without an error.
func equal[T any](s *site, what string, err error, want, got T) error {
	if err == nil && !reflect.DeepEqual(want, got) {
		s.wrong = errors.Join(s.wrong, fmt.Errorf("%s: %v instead of %v", what, got, want))
	}

	return err
}

// eachAnswer asks everything about the subvolumes of a site.
func eachAnswer(s *site, top *os.File) error {
	ids, err := s.ids()
	if err != nil {
		return err
	}

	a, b, c, d, e := ids[0], ids[1], ids[2], ids[3], ids[4]

	outer, outerErr := btrfs.ID(top)
	on, onErr := btrfs.IsFilesystem(top)
	plain, plainErr := btrfs.IsSubvolume(top)
	id, idErr := btrfs.UUID(top)
	_, missing := os.Stat("/sys/fs/btrfs/" + id)
	inside, insideErr := btrfs.Inside(top, a)
	all, allErr := btrfs.AllInside(top, a)
	place, found, placeErr := btrfs.PlaceOf(top, c)
	_, lost, lostErr := btrfs.PlaceOf(top, e+1<<32)
	from, fromErr := btrfs.From(top, d)
	exists, existsErr := btrfs.Exists(top, a)
	never, neverErr := btrfs.Exists(top, e+1<<32)

	isErr := s.in("a", func(directory *os.File) error {
		is, err := btrfs.IsSubvolume(directory)

		return equal(s, "IsSubvolume(a)", err, true, is)
	})

	return errors.Join(isErr,
		equal(s, "ID of the top", outerErr, true, outer != 0 && outer < a),
		equal(s, "IsFilesystem", onErr, true, on),
		equal(s, "IsSubvolume", plainErr, false, plain),
		equal(s, "UUID", idErr, nil, missing),
		equal(s, "Inside", insideErr, []uint64{b, d}, inside),
		equal(s, "AllInside", allErr, []uint64{b, d, c}, all),
		equal(s, "PlaceOf", placeErr, btrfs.Place{Outer: b, Name: "c"}, place),
		equal(s, "PlaceOf finds", placeErr, true, found),
		equal(s, "PlaceOf finds what is not there", lostErr, false, lost),
		equal(s, "From", fromErr, []uint64{d, e}, from[:min(2, len(from))]),
		equal(s, "Exists", existsErr, true, exists),
		equal(s, "Exists without a subvolume", neverErr, false, never),
	)
}

// unlessThere returns nil if what is made is there already, by an attempt before.
func unlessThere(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}

	return err
}

// groups returns the own groups of a and e, and one that is to limit them.
func (s *site) groups() (first, second, both btrfs.Group, err error) {
	ids, err := s.ids()
	if err != nil {
		return 0, 0, 0, err
	}

	return btrfs.GroupOf(0, ids[0]), btrfs.GroupOf(0, ids[4]), btrfs.GroupOf(1, ids[0]), nil
}

var onceOperations = map[string]syscallfault.Operation{
	"observe": onSite(eachAnswer),
	"open root": onSite(func(s *site, _ *os.File) error {
		root, within, err := btrfs.OpenRoot(filepath.Join(s.path, "a", "plain"))
		if err != nil {
			return err
		}

		return errors.Join(equal(s, "OpenRoot", nil, []string{filepath.Join(s.path, "a"), "plain"}, []string{root.Name(), within}), root.Close())
	}),
	"make": onSite(func(s *site, top *os.File) error {
		if err := unlessThere(btrfs.Create(top, "made")); err != nil {
			return err
		}

		err := s.in("a", func(source *os.File) error { return unlessThere(btrfs.Snapshot(source, top, "copy")) })
		if err != nil {
			return err
		}

		err = s.in("copy", func(made *os.File) error { return btrfs.SetReadOnly(made, true) })
		if err != nil {
			return err
		}

		return btrfs.Commit(top)
	}),
	"destroy": onSite(func(s *site, top *os.File) error {
		id, err := s.id("a")
		if err != nil {
			return err
		}

		return btrfs.DestroyAll(top, "a", id)
	}),
	"limit": onSite(func(s *site, top *os.File) error {
		first, second, both, err := s.groups()
		if err != nil {
			return err
		}

		for _, err := range []error{
			btrfs.CreateGroup(top, both), btrfs.Assign(top, first, both), btrfs.Assign(top, second, both),
			btrfs.Limit(top, both, 1<<20), btrfs.Commit(top),
		} {
			if err != nil {
				return err
			}
		}

		members, membersErr := btrfs.Members(top, both)
		parents, parentsErr := btrfs.Parents(top, second)
		all, allErr := btrfs.Groups(top)

		return errors.Join(
			equal(s, "Members", membersErr, []btrfs.Group{first, second}, members),
			equal(s, "Parents", parentsErr, []btrfs.Group{both}, parents),
			equal(s, "Groups", allErr, true, len(all) > 3),
		)
	}),
	"unlimit": onSite(func(s *site, top *os.File) error {
		first, _, both, err := s.groups()
		if err != nil {
			return err
		}

		if err := btrfs.Unlimit(top, both); err != nil {
			return err
		}

		times, err := btrfs.Unassign(top, first, both)
		if err != nil {
			return err
		}

		return errors.Join(equal(s, "Unassign", nil, true, times == 0 || times == 1), btrfs.RemoveGroup(top, both))
	}),
}

// prepare makes the subvolumes of a site, and those inside of a read-only one.
func prepare(t *testing.T, directory string) {
	t.Helper()

	at := func(names ...string) string { return filepath.Join(append([]string{directory}, names...)...) }

	for _, each := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}, {"a", "d"}, {"e"}} {
		last := len(each) - 1
		parent := open(t, at(each[:last]...))
		require.NoError(t, btrfs.Create(parent, each[last]))
		require.NoError(t, parent.Close())
	}

	require.NoError(t, os.Mkdir(at("a", "plain"), 0o700))

	unwritable := open(t, at("a", "b"))
	require.NoError(t, btrfs.SetReadOnly(unwritable, true))
	require.NoError(t, unwritable.Close())
}

// TestEachCallFailsOnce has each call fail once that is made for subvolumes and their quota groups. Its
// failure is the one that is reported, and the call succeeds when it is repeated.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	within := mounted(t)
	top := open(t, within)

	err := btrfs.Enable(top)
	hasGroups := !errors.Is(err, unix.EINVAL) // Linux 6.7
	require.True(t, err == nil || !hasGroups, "%v", err)

	groupsOf := func(t *testing.T, directory string) (both btrfs.Group, limit int64, all []btrfs.Group) {
		t.Helper()

		s := &site{path: directory}
		_, _, both, err := s.groups()
		require.NoError(t, err)
		require.NoError(t, btrfs.Commit(top))

		all, err = btrfs.Groups(top)
		require.NoError(t, err)

		id, err := btrfs.UUID(top)
		require.NoError(t, err)

		counted, err := btrfs.QuotasOf(id).Read(both)
		if !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}

		return both, counted.Limit, all
	}

	for name, c := range map[string]*syscallfault.Case{
		"observe": {}, "open root": {},
		"make": {Verify: func(t *testing.T, directory string) {
			t.Helper()
			requireSubvolume(t, true, filepath.Join(directory, "made"))
			require.DirExists(t, filepath.Join(directory, "copy", "plain"))
			require.ErrorIs(t, os.Mkdir(filepath.Join(directory, "copy", "new"), 0o700), unix.EROFS)
		}},
		"destroy": {Verify: func(t *testing.T, directory string) {
			t.Helper()
			require.NoDirExists(t, filepath.Join(directory, "a"))
			require.DirExists(t, filepath.Join(directory, "e"))
		}},
		"limit": {Verify: func(t *testing.T, directory string) {
			t.Helper()

			_, limit, _ := groupsOf(t, directory)
			require.EqualValues(t, 1<<20, limit, "want: the group has its limit")
		}},
		"unlimit": {Prepare: func(t *testing.T, directory string) {
			t.Helper()
			prepare(t, directory)

			run, end, err := onceOperations["limit"](directory)
			require.NoError(t, err)
			require.NoError(t, run())
			require.NoError(t, end())
		}, Verify: func(t *testing.T, directory string) {
			t.Helper()

			both, _, all := groupsOf(t, directory)
			require.NotContains(t, all, both, "want: the group is removed with its members")
		}},
	} {
		c.Operation, c.Within, c.Reported, c.Lossy = name, within, []string{""}, []string{"*", "*/*"}

		if c.Prepare == nil {
			c.Prepare = prepare
		}

		if c.Verify == nil {
			c.Verify = func(*testing.T, string) {}
		}

		t.Run(name, func(t *testing.T) {
			if !hasGroups && (name == "limit" || name == "unlimit") {
				t.Skip("simple quotas need Linux 6.7")
			}

			syscallfault.EachCallFailsOnce(t, c)
		})
	}
}
