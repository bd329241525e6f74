package filecopy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWriteSparse writes each arrangement of four blocks, zeros or not, behind an
// offset and with a partial block at the end, as a copy through a buffer does.
func TestWriteSparse(t *testing.T) {
	t.Parallel()

	const (
		blocks = 4
		offset = 3 * blockBytes
	)

	for arrangement := range 1 << blocks {
		for _, tail := range []string{"", "tail", "\x00\x00"} {
			var content []byte

			for block := range blocks {
				filling := byte(0)
				if arrangement>>block&1 == 1 {
					filling = 'a' + byte(block)
				}

				content = append(content, bytes.Repeat([]byte{filling}, blockBytes)...)
			}

			content = append(content, tail...)

			file, err := os.Create(filepath.Join(t.TempDir(), "image"))
			require.NoError(t, err)
			require.NoError(t, file.Truncate(offset+int64(len(content))))
			require.NoError(t, writeSparse(file, content, offset))
			require.NoError(t, file.Close())

			written, err := os.ReadFile(file.Name())
			require.NoError(t, err)
			require.True(t, bytes.Equal(append(make([]byte, offset), content...), written),
				"blocks %04b with the tail %q are written at other offsets, or with other bytes", arrangement, tail)
		}
	}
}
