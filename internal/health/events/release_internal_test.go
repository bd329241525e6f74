package events

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKernelsThatReportLoopWrites: those before Linux 6.15, and those whose release is unknown.
func TestKernelsThatReportLoopWrites(t *testing.T) {
	t.Parallel()

	for release, want := range map[string]bool{
		"5.15.0-91-generic": true, "5.20.1": true, "6.1.0": true, "6.14.11": true, "6.15.0": false, "6.15-rc1": false, "6.18.2": false,
		"7.0.0": false, "7.14.1": false, "": true, "6": true, "unknown": true,
	} {
		require.Equal(t, want, loopWritesReported(release), "want: Linux %q reports loop writes or not", release)
	}
}
