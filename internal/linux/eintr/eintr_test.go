package eintr_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

func TestRetryRepeatsInterruptedCalls(t *testing.T) {
	t.Parallel()

	for name, final := range map[string]error{"success": nil, "failure": unix.EIO} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			results, calls := []error{unix.EINTR, unix.EINTR, final}, 0

			value, err := eintr.RetryValue(func() (int, error) {
				calls++

				return calls, results[calls-1]
			})
			require.Equal(t, final, err)
			require.Equal(t, 3, value, "want: the value is the one of the last try")

			calls = 0

			require.Equal(t, final, eintr.Retry(func() error {
				calls++

				return results[calls-1]
			}))
			require.Equal(t, 3, calls, "want: EINTR alone is retried")
		})
	}
}

// TestACloseKeepsTheNumberForARunningCall closes a file in its call: no other file gets the number meanwhile.
func TestACloseKeepsTheNumberForARunningCall(t *testing.T) {
	t.Parallel()

	file, err := os.Open(t.TempDir())
	require.NoError(t, err)

	tries := 0

	require.NoError(t, eintr.Control(file, func(descriptor int) error {
		var stat unix.Stat_t

		tries++

		if tries == 1 {
			require.NoError(t, file.Close(), "want: the close waits for no call")

			return unix.EINTR
		}

		require.NoError(t, unix.Fstat(descriptor, &stat), "want: the descriptor is open until the call ends")

		return nil
	}))
	require.Equal(t, 2, tries, "want: an interrupted call is repeated")
	require.ErrorIs(t, eintr.Control(file, func(int) error { panic("want: no call of a closed file") }), os.ErrClosed)
}
