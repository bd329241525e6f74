package quantity_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/quantity"
)

func TestParse(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "4096": 4096, "+5": 5, "5.": 5, "1.5Gi": 3 << 29, "64Mi": 64 << 20, "10G": 1e10, "1e9": 1e9, "1E9": 1e9,
		"100Ti": 100 << 40, "7Ei": 7 << 60, "1e18": 1e18, "9223372036854775806": 1<<63 - 2,
		".5": 1, "1m": 1, "1n": 1, "1e-20": 1, "-1": -1, "-1Gi": -1 << 30,
	} {
		got, err := quantity.Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}

	began := time.Now()

	for text, want := range map[string]error{
		"": quantity.ErrSyntax, " 1": quantity.ErrSyntax, "1 ": quantity.ErrSyntax, "garbage": quantity.ErrSyntax, "10Gb": quantity.ErrSyntax,
		"1ki": quantity.ErrSyntax, "1..5": quantity.ErrSyntax, ".": quantity.ErrSyntax, "-": quantity.ErrSyntax, "0x10": quantity.ErrSyntax,
		"NaN": quantity.ErrSyntax, "inf": quantity.ErrSyntax, "1,5": quantity.ErrSyntax, "1\x00": quantity.ErrSyntax, "1\n": quantity.ErrSyntax,
		// Minutes and gigabytes for resource.ParseQuantity.
		"1e-100000000": quantity.ErrSyntax, "1e100000000": quantity.ErrSyntax,
		// Other numbers for Quantity.Value.
		"9223372036854775808": quantity.ErrRange, "99999999999999999999": quantity.ErrRange, "1e19": quantity.ErrRange, "1e30": quantity.ErrRange,
		"8Ei": quantity.ErrRange, "16Ei": quantity.ErrRange, "99999999999999Ei": quantity.ErrRange, "-99999999999999999999": quantity.ErrRange,
	} {
		got, err := quantity.Parse(text)
		require.ErrorIs(t, err, want, "%q is %d", text, got)
	}

	require.Less(t, time.Since(began), time.Minute, "want: parsing takes no long time")
}
