package ownership_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/node/ownership"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

func TestMain(m *testing.M) {
	syscallfault.ServeIfAsked(map[string]syscallfault.Operation{"change": changeOnce})
	os.Exit(namespace.Main(m))
}

// changeOnce changes the group of a directory's "root".
func changeOnce(directory string) (run, end func() error, err error) {
	return func() (err error) {
		root, err := os.Open(filepath.Join(directory, "root"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, root.Close()) }()

		return ownership.ChangeGroup(context.Background(), root, group, func() error { return nil })
	}, func() error { return nil }, nil
}

// TestEachCallFailsOnce has each system call of a change fail once: the change fails, and is completed
// when it is repeated.
func TestEachCallFailsOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	files := map[string]seen{"root": {group, 0o2770}, "root/sub": {group, 0o2770}, "root/sub/file": {group, 0o660}, "root/setuid": {group, 0o4770}}

	syscallfault.EachCallFailsOnce(t, &syscallfault.Case{
		Causes: true, Operation: "change", Reported: []string{""}, Lossy: []string{"*", "*/*", "*/*/*"},
		// The kernel drops the setuid bit with the change of the group, so that a retry does not know it.
		Except: regexp.MustCompile("^fchmodat root/setuid"),
		Prepare: func(t *testing.T, directory string) {
			t.Helper()
			made(t, filepath.Join(directory, "root"), 0o700, true)
			made(t, filepath.Join(directory, "root", "sub"), 0o700, true)
			made(t, filepath.Join(directory, "root", "sub", "file"), 0o600, false)
			made(t, filepath.Join(directory, "root", "setuid"), 0o4700, false)
		},
		Verify: func(t *testing.T, directory string) {
			t.Helper()

			for name, want := range files {
				require.Equal(t, want, look(t, filepath.Join(directory, name)), name)
			}
		},
	})
}
