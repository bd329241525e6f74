package eintr_test

import (
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
