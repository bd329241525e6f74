package btrfs

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestLongNamesAreRefused: the longest name has a byte behind it that ends it.
func TestLongNamesAreRefused(t *testing.T) {
	t.Parallel()

	for length, want := range map[int]error{0: nil, 3: nil, 4: unix.ENAMETOOLONG, 5: unix.ENAMETOOLONG} {
		into := make([]byte, 4)
		require.ErrorIs(t, setName(into, strings.Repeat("n", length)), want, "a name of %d bytes", length)
	}

	into := make([]byte, 4)
	require.NoError(t, setName(into, "abc"))
	require.Equal(t, []byte("abc\x00"), into)
	require.Len(t, volumeArgs{}.name, maxName+1, "want: the longest name of a subvolume fits")
}

// TestGroupIDsHaveALevelAndANumber, in the upper 16 and the lower 48 bits.
func TestGroupIDsHaveALevelAndANumber(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		level  uint16
		number uint64
		id     Group
		text   string
	}{
		{0, 0, 0, "0/0"},
		{0, 256, 256, "0/256"},
		{0, 1<<48 - 1, 1<<48 - 1, "0/281474976710655"},
		{1, 0, 1 << 48, "1/0"},
		{math.MaxUint16, 1<<48 - 1, math.MaxUint64, "65535/281474976710655"},
	} {
		group := GroupOf(test.level, test.number)
		require.Equal(t, test.id, group, test.text)
		require.Equal(t, test.text, group.String())
		require.Equal(t, test.level, group.Level(), test.text)
		require.Equal(t, test.number, group.Number(), test.text)
	}
}

// TestQuotaGroupUsageIsRead: the attributes of one group.
func TestQuotaGroupUsageIsRead(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		// attributes are referenced, exclusive, max_referenced and limit_flags.
		attributes [4]string
		want       Counted
		err        error
		text       string
	}{
		"a limit":            {attributes: [4]string{"7", "6", "5", "0x1"}, want: Counted{Referenced: 7, Exclusive: 6, Limit: 5}},
		"both limits":        {attributes: [4]string{"7", "6", "5", "0x3"}, want: Counted{Referenced: 7, Exclusive: 6, Limit: 5}},
		"none":               {attributes: [4]string{"7", "6", "5", "0x0"}, want: Counted{Referenced: 7, Exclusive: 6}},
		"another limit":      {attributes: [4]string{"7", "6", "5", "0x2"}, want: Counted{Referenced: 7, Exclusive: 6}},
		"the largest number": {attributes: [4]string{"9223372036854775807", "0", "0", "0"}, want: Counted{Referenced: math.MaxInt64}},
		"one more":           {attributes: [4]string{"9223372036854775808", "0", "0", "0"}, want: Counted{Referenced: math.MaxInt64}},
		"below zero":         {attributes: [4]string{"0", "18446744073709551615", "0", "0"}, want: Counted{Exclusive: math.MaxInt64}},
		"no number":          {attributes: [4]string{"7", "6", "none", "0x1"}, err: strconv.ErrSyntax, text: "quota group 1/7: max_referenced"},
		"no attribute":       {attributes: [4]string{"7", "", "5", "0x1"}, err: fs.ErrNotExist, text: "quota group 1/7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			quotas := &Quotas{directory: t.TempDir()}
			directory := filepath.Join(quotas.directory, "1_7")
			require.NoError(t, os.Mkdir(directory, 0o700))

			for i, each := range []string{"referenced", "exclusive", "max_referenced", "limit_flags"} {
				if test.attributes[i] != "" {
					require.NoError(t, os.WriteFile(filepath.Join(directory, each), []byte(test.attributes[i]+"\n"), 0o600))
				}
			}

			got, err := quotas.Read(GroupOf(1, 7))
			require.Equal(t, test.want, got)
			require.ErrorIs(t, err, test.err)

			if test.err != nil {
				errtext.Require(t, err, test.text)
			}
		})
	}
}

// TestModeOfTheQuotas: a mode that cannot be read is not that quotas are off.
func TestModeOfTheQuotas(t *testing.T) {
	t.Parallel()

	quotas := &Quotas{directory: t.TempDir()}

	mode, err := quotas.Mode()
	require.NoError(t, err)
	require.Equal(t, QuotaOff, mode)

	path := filepath.Join(quotas.directory, "mode")
	require.NoError(t, os.WriteFile(path, []byte("squota\n"), 0o600))

	mode, err = quotas.Mode()
	require.NoError(t, err)
	require.Equal(t, SimpleQuota, mode)

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))

	_, err = quotas.Mode()
	require.ErrorIs(t, err, unix.EISDIR)
}
