package mountinfo

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnescape: the kernel escapes space, tab, newline and backslash.
func TestUnescape(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"": "", "/plain": "/plain", `/a\040b`: "/a b", `\011\012\134`: "\t\n\\", `/\134040`: `/\040`, `/ü\040`: "/ü ",
		`\`: `\`, `\04`: `\04`, `\09x`: `\09x`, `\400`: `\400`, `\040`: " ",
	} {
		require.Equal(t, want, unescape(text), "text %q", text)
	}
}

// TestTablesOfProcesses: each process has a table, and the root is in it.
func TestTablesOfProcesses(t *testing.T) {
	t.Parallel()

	own, err := Own()
	require.NoError(t, err)

	of, err := Of(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, own, of, "want: the threads have one mount namespace")

	for name, find := range map[string]func(string) ([]Mount, error){"at": At, "below": Below} {
		found, err := find("/")
		require.NoError(t, err, name)
		require.NotEmpty(t, found, "%s: want: the root is mounted", name)

		none, err := find("/dev/null/nothing")
		require.NoError(t, err, name)
		require.Empty(t, none, "%s: want: nothing is mounted there", name)
	}

	proc, err := Below("/proc")
	require.NoError(t, err)

	for _, each := range proc {
		require.Regexp(t, "^/proc(/|$)", each.MountPoint, "want: a path that only begins like it is not beneath it")
	}

	_, err = Of(-1)
	require.ErrorContains(t, err, "/proc/-1/mountinfo")
}
