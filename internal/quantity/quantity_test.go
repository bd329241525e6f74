package quantity_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/quantity"
)

func TestQuantitiesOfKubernetesAreParsed(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "4096": 4096, "+5": 5, "5.": 5, "1.5Gi": 3 << 29, "64Mi": 64 << 20, "10G": 1e10, "1e9": 1e9, "1E9": 1e9,
		"10GiB": 10 << 30, "1.5KiB": 1536, "10GB": 1e10, "1kB": 1000, "1EB": 1e18, "-1GiB": -1 << 30,
		"100Ti": 100 << 40, "7Ei": 7 << 60, "1e18": 1e18, "9223372036854775806": 1<<63 - 2,
		"-9223372036854775806": -1<<63 + 2, "-1000000000000000000": -1e18, "-1Ei": -1 << 60, "-7Ei": -7 << 60, "-1.5": -2, "-1n": -1,
		".5": 1, "1m": 1, "1n": 1, "1e-20": 1, "-1": -1, "-1Gi": -1 << 30,
	} {
		got, err := quantity.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}

	began := time.Now()

	for text, want := range map[string]error{
		"": quantity.ErrSyntax, " 1": quantity.ErrSyntax, "1 ": quantity.ErrSyntax, "garbage": quantity.ErrSyntax, "10Gb": quantity.ErrSyntax,
		"1B": quantity.ErrSyntax, "1KB": quantity.ErrSyntax, "1mB": quantity.ErrSyntax, "1e9B": quantity.ErrSyntax, "1GiBB": quantity.ErrSyntax,
		"GiB": quantity.ErrSyntax, "1 GiB": quantity.ErrSyntax, "8EiB": quantity.ErrRange,
		"1ki": quantity.ErrSyntax, "1..5": quantity.ErrSyntax, ".": quantity.ErrSyntax, "-": quantity.ErrSyntax, "0x10": quantity.ErrSyntax,
		"NaN": quantity.ErrSyntax, "inf": quantity.ErrSyntax, "1,5": quantity.ErrSyntax, "1\x00": quantity.ErrSyntax, "1\n": quantity.ErrSyntax,
		// Minutes and gigabytes for resource.ParseQuantity.
		"1e-100000000": quantity.ErrSyntax, "1e100000000": quantity.ErrSyntax,
		// Other numbers for Quantity.Value.
		"9223372036854775807": quantity.ErrRange, "-9223372036854775807": quantity.ErrRange, "-8Ei": quantity.ErrRange,
		"9223372036854775808": quantity.ErrRange, "99999999999999999999": quantity.ErrRange, "1e19": quantity.ErrRange, "1e30": quantity.ErrRange,
		"8Ei": quantity.ErrRange, "16Ei": quantity.ErrRange, "99999999999999Ei": quantity.ErrRange, "-99999999999999999999": quantity.ErrRange,
	} {
		got, err := quantity.Parse(text)
		require.ErrorIs(t, err, want, "%q is %d", text, got)
	}

	require.Less(t, time.Since(began), time.Minute, "want: parsing takes no long time")
}

func TestNegativeSizesAreRefused(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		text string
		want int64
		err  error
	}{
		{"1Ki", 1024, nil},
		{"-1", 0, quantity.ErrSyntax},
		{"x", 0, quantity.ErrSyntax},
		{"8Ei", 0, quantity.ErrRange},
		{"-8Ei", 0, quantity.ErrRange},
		{"-0", 0, nil},
		{"1", 1, nil},
	} {
		got, err := quantity.ParseSize(test.text)
		require.ErrorIs(t, err, test.err, test.text)
		require.Equal(t, test.want, got, "the size of %s", test.text)
	}
}
