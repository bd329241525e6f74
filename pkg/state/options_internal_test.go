package state

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOptionsHaveDefaults, and those that are given stay.
func TestOptionsHaveDefaults(t *testing.T) {
	t.Parallel()

	defaults := New(t.TempDir(), Options{}).options
	require.NotNil(t, defaults.Log, "want: a log that discards")

	defaults.Log = nil
	require.Equal(t, Options{FS: osFS{}, CompactAbove: 16 << 20, LazyFlush: 100 * time.Millisecond, RetrySpace: time.Second}, defaults)

	negative := New(t.TempDir(), Options{LazyFlush: -1, RetrySpace: -1}).options
	require.Equal(t, 100*time.Millisecond, negative.LazyFlush, "want: a time that cannot be waited is the default")
	require.Equal(t, time.Second, negative.RetrySpace)

	given := Options{
		Owner: "owner", Log: slog.New(slog.DiscardHandler), FS: &struct{ osFS }{}, CompactAbove: -1, LazyFlush: 1, RetrySpace: 1,
	}
	require.Equal(t, given, New(t.TempDir(), given).options)
}
