package state

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadingEndsWithWhatTakesTheChunks: an error about any of them ends it, the last one included.
func TestReadingEndsWithWhatTakesTheChunks(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "journal")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("a line of the journal\n"), 2*chunkBytes/20), 0o600))

	file, err := osFS{}.OpenFile(path, os.O_RDONLY, 0)
	require.NoError(t, err)

	defer file.Close()

	all := 0
	require.NoError(t, readChunks(file, func(*chunk) error { all++; return nil }))
	require.Greater(t, all, 1, "want: the journal has several chunks")

	refused := errors.New("refused")

	for last := range all {
		taken := 0
		require.ErrorIs(t, readChunks(file, func(*chunk) error {
			if taken == last {
				return refused
			}

			taken++

			return nil
		}), refused, "want: the error about chunk %d ends the reading", last)
	}
}
