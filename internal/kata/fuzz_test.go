package kata_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// FuzzParseStats has a guest say anything: it is refused, or it is possible.
func FuzzParseStats(f *testing.F) {
	for _, said := range []string{
		`{"usage":[{"available":700,"total":1000,"used":300,"unit":1},{"available":7,"total":10,"used":3,"unit":2}]}`,
		`{"usage":[{"total":1,"unit":1}],"volume_condition":{"message":"OK"}}`, `{"usage":[{"total":20,"used":21,"unit":1}]}`,
		`{"usage":[{"total":18446744073709551615,"unit":1}]}`, `{"usage":[null]}`, `null`, `404 page not found`, ``,
	} {
		f.Add([]byte(said))
	}

	possible := func(amount mount.Amount) bool {
		return amount.Used >= 0 && amount.Available >= 0 && amount.Used <= amount.Total && amount.Available <= amount.Total
	}

	f.Fuzz(func(t *testing.T, said []byte) {
		usage, err := kata.ParseStats(said)
		if err != nil {
			require.ErrorIs(t, err, kata.ErrNoAnswer)
			require.Zero(t, usage, "want: a refused answer has no usage")

			return
		}

		require.Positive(t, usage.Bytes.Total, "want: an accepted answer has the size of the filesystem")
		require.True(t, possible(usage.Bytes) && possible(usage.Inodes), "%+v", usage)
	})
}

// FuzzParseMountInfo reads an arbitrary file. What it makes of it either is no
// assignment, or is one that reads the same when it is written.
func FuzzParseMountInfo(f *testing.F) {
	for _, content := range []string{
		`{"volume-type":"directvol","device":"/dev/loop7","fstype":"ext4","metadata":{"fsGroup":"1"},"options":["ro","noatime"]}`,
		`{"Device":"/dev/sdf","fstype":7,"options":"ro"}`, `{"device":"/a","fstype":"b","options":["a,bind",null,"ro"]}`, `[]`, `null`, `{`,
	} {
		f.Add([]byte(content))
	}

	f.Fuzz(func(t *testing.T, content []byte) {
		read, ok := kata.ParseMountInfo(content)
		if !ok {
			require.Zero(t, read, "want: what is not parsed is empty")

			return
		}

		read.TargetPath = "/target"

		written, err := read.MountInfo()
		if err != nil {
			require.ErrorIs(t, err, kata.ErrInvalidAssignment)

			return
		}

		again, ok := kata.ParseMountInfo(written)
		require.True(t, ok, "want: what was written is parsed")
		require.Equal(t, []any{read.Device, read.FSType, read.Group}, []any{again.Device, again.FSType, again.Group})

		for _, option := range again.Options {
			require.NotContains(t, []string{"bind", "rbind", "context"}, option)
		}

		again.TargetPath = "/target"

		twice, err := again.MountInfo()
		require.NoError(t, err)
		require.Equal(t, string(written), string(twice))
	})
}

// FuzzEntryName goes from a target path to its entry's name and back.
func FuzzEntryName(f *testing.F) {
	for _, path := range []string{target, "/", "//a/../b/", "relative", "", "/a\x00", "/\xff", entryOfTarget, "L3gv\nYWFh", "L3g"} {
		f.Add(path)
	}

	f.Fuzz(func(t *testing.T, text string) {
		name, err := kata.EntryName(text)
		if err != nil {
			require.ErrorIs(t, err, kata.ErrInvalidAssignment)
		} else {
			require.Equal(t, name, filepath.Base(name))

			path, ok := kata.TargetOf(name)
			require.True(t, ok, "want: the name of an assignment has its target")
			require.Equal(t, filepath.Clean(text), path)
		}

		if path, ok := kata.TargetOf(text); ok && filepath.IsAbs(path) && filepath.Clean(path) == path {
			if name, err := kata.EntryName(path); err == nil {
				require.Equal(t, text, name, "one path, two entries")
			}
		}
	})
}
