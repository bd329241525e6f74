package tree

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestXattrNamesAreThoseOfTheKernel lists what the kernel returns, in two calls: the first one only for the length.
func TestXattrNamesAreThoseOfTheKernel(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		list          string
		first, second error
		want          []string
		fails         error
	}{
		"none":                         {},
		"not supported":                {first: unix.EOPNOTSUPP},
		"some":                         {list: "user.a\x00system.posix_acl_access\x00", want: []string{"user.a", "system.posix_acl_access"}},
		"that in which XFS has an ACL": {list: "trusted.SGI_ACL_FILE\x00user.a\x00trusted.SGI_ACL_DEFAULT\x00", want: []string{"user.a"}},
		"the length fails":             {list: "user.a\x00", first: unix.EIO, fails: unix.EIO},
		"the list fails":               {list: "user.a\x00", second: unix.ERANGE, fails: unix.ERANGE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := xattrNames(func(path string, target []byte) (int, error) {
				require.Equal(t, "path", path)

				if target == nil {
					return len(test.list), test.first
				}

				return copy(target, test.list), test.second
			}, "path")
			require.ErrorIs(t, err, test.fails)
			require.Equal(t, test.want, got)
		})
	}
}

func TestXattrsThatMustBeCopied(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]bool{
		"security.capability": true, "user.a": true, "trusted.overlay.opaque": true, "system.posix_acl_default": true, "system.posix_acl_access": true,
		"security.selinux": false, "btrfs.compression": false, "system.nfs4_acl": false, "security.capability.more": false,
	} {
		require.Equal(t, want, mustBeCopied(name), "want: whether %s must be copied", name)
	}
}

// TestCopyXattrs replaces what a file has by what another one has.
func TestCopyXattrs(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	source, target := filepath.Join(directory, "source"), filepath.Join(directory, "target")

	for path, attributes := range map[string]map[string]string{
		source: {"user.only": "1", "user.same": "2", "user.other": "3"},
		target: {"user.same": "2", "user.other": "4", "user.more": "5"},
	} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))

		for name, value := range attributes {
			require.NoError(t, unix.Setxattr(path, name, []byte(value), 0))
		}
	}

	require.NoError(t, copyXattrs(source, target))

	names, err := xattrNames(unix.Listxattr, target)
	require.NoError(t, err)

	found := map[string]string{}

	for _, name := range names {
		if strings.HasPrefix(name, "user.") {
			value, err := xattr(unix.Getxattr, target, name)
			require.NoError(t, err)

			found[name] = string(value)
		}
	}

	require.Equal(t, map[string]string{"user.only": "1", "user.same": "2", "user.other": "3"}, found)

	missing := filepath.Join(directory, "missing")
	require.ErrorIs(t, copyXattrs(missing, target), unix.ENOENT)
	require.ErrorIs(t, copyXattrs(source, missing), unix.ENOENT)
	require.NoError(t, copyXattr(source, target, "user.removed"), "want: an attribute that was removed since is left out")
	require.ErrorIs(t, copyXattr(source, missing, "user.only"), unix.ENOENT)
	require.ErrorIs(t, copyXattr(missing, target, "user.only"), unix.ENOENT)

	// A symlink can have no attribute of a user.
	require.NoError(t, os.Symlink("target", filepath.Join(directory, "link")))
	require.ErrorIs(t, copyXattrs(source, filepath.Join(directory, "link")), unix.EPERM)
}
