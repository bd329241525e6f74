package kata_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// inRoot returns an operation of the root in a directory. Its error must be that of the call that was
// made to fail.
func inRoot(run func(root *kata.Root) error) syscallfault.Operation {
	return func(directory string) (func() error, func() error, error) {
		root := kata.NewRoot(filepath.Join(directory, "root"))

		return func() error {
			err := run(root)
			if err == nil || errors.Is(err, unix.EIO) || errors.Is(err, unix.ENOSPC) {
				return err
			}

			return syscallfault.Differs("the report", "that of the failed call", err)
		}, func() error { return nil }, nil
	}
}

// onceEntry is what has the volume at first.
func onceEntry() kata.Entry {
	return kata.Entry{Assignment: plain(), Sandbox: "sandbox"}
}

var onceOperations = map[string]syscallfault.Operation{
	"put":             inRoot(func(root *kata.Root) error { return root.Put(full()) }),
	"put the first":   inRoot(func(root *kata.Root) error { return root.Put(full()) }),
	"put in place":    inRoot(func(root *kata.Root) error { return root.Put(full()) }),
	"put an open one": inRoot(func(root *kata.Root) error { return root.Put(plain()) }),
	"restore":         inRoot(func(root *kata.Root) error { return root.Restore(full()) }),
	"restore a lost":  inRoot(func(root *kata.Root) error { return root.Restore(full()) }),
	"remove":          inRoot(func(root *kata.Root) error { return root.Remove(target) }),
	"get": inRoot(func(root *kata.Root) error {
		entry, found, err := root.Get(target)
		if err != nil {
			return errors.Join(err, syscallfault.Differs("found beside an error", false, found))
		}

		return errors.Join(syscallfault.Differs("found", true, found), syscallfault.Differs("the entry", onceEntry(), entry))
	}),
	"list": inRoot(func(root *kata.Root) error {
		entries, err := root.List()
		if err != nil {
			return errors.Join(err, syscallfault.Differs("the entries beside an error", 0, len(entries)))
		}

		return syscallfault.Differs("the entries", []kata.Entry{onceEntry()}, entries)
	}),
}

// TestEachCallFailsOnce has each system call fail once that is made for an assignment. It is reported,
// the operation succeeds when it is repeated, and nothing is left of what it replaces then.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	entry := filepath.Join("root", entryOfTarget)
	file := filepath.Join(entry, "mountInfo.json")
	assigned := func(name string, sandboxes ...string) map[string]string {
		found := map[string]string{".": "drwx------", entryOfTarget: "drwx------"}
		found[entryOfTarget+"/mountInfo.json"] = "-rw------- " + golden(t, name+".mountInfo.json")

		for _, sandbox := range sandboxes {
			found[entryOfTarget+"/"+sandbox] = "-rw------- "
		}

		return found
	}

	for name, each := range map[string]struct {
		// spoil changes what there is at first: an assignment, of which a sandbox has the volume.
		spoil func(directory string) error
		left  map[string]string
		// reported are the calls of which the failure is reported, nil for all.
		reported []string
	}{
		"put": {left: assigned("full")},
		"put the first": {
			spoil: func(directory string) error { return os.RemoveAll(filepath.Join(directory, "root")) }, left: assigned("full"),
			// Of the parents it suffices that they can be made.
			reported: []string{"openat", "mkdirat", "fstat ", "unlinkat", "write", "renameat"},
		},
		"put in place": {
			spoil: func(directory string) error {
				at := filepath.Join(directory, entry)

				return errors.Join(os.RemoveAll(at), os.WriteFile(at, nil, 0o600))
			},
			left: assigned("full"),
		},
		"put an open one": {
			spoil: func(directory string) error { return os.Chmod(filepath.Join(directory, entry), 0o777) },
			left:  assigned("plain", "sandbox"),
		},
		"restore": {left: assigned("plain", "sandbox")},
		"restore a lost": {
			spoil: func(directory string) error { return os.Remove(filepath.Join(directory, file)) }, left: assigned("full", "sandbox"),
		},
		"remove": {left: map[string]string{".": "drwx------"}},
		"get":    {left: assigned("plain", "sandbox")},
		"list":   {left: assigned("plain", "sandbox")},
	} {
		if each.reported == nil {
			each.reported = []string{""}
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()
			syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
				Operation: name, Lossy: []string{"*", "*/*", "*/*/*"}, Reported: each.reported,
				Prepare: func(t *testing.T, directory string) {
					t.Helper()

					require.NoError(t, kata.NewRoot(filepath.Join(directory, "root")).Put(plain()))
					put(t, filepath.Join(directory, entry, "sandbox"), "")

					if each.spoil != nil {
						require.NoError(t, each.spoil(directory))
					}
				},
				Verify: func(t *testing.T, directory string) {
					t.Helper()
					require.Equal(t, each.left, tree(t, filepath.Join(directory, "root")))
				},
			})
		})
	}
}
