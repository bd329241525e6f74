package filecopy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestZerosAreWrittenAsHoles writes each arrangement of four blocks, zeros or not, behind an
// offset and with a partial block at the end, as a copy through a buffer does.
func TestZerosAreWrittenAsHoles(t *testing.T) {
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

// TestAShorterSourceEndsTheCopy: it was truncated since its size was read.
func TestAShorterSourceEndsTheCopy(t *testing.T) {
	t.Parallel()

	content := bytes.Repeat([]byte("content"), bufferBytes/5) // more than one buffer, and no whole one
	directory := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(directory, "source"), content, 0o600))

	source, err := os.Open(filepath.Join(directory, "source"))
	require.NoError(t, err)

	target, err := os.Create(filepath.Join(directory, "target"))
	require.NoError(t, err)

	copier := Copier{buffer: make([]byte, bufferBytes)}
	length := int64(len(content))

	for at, want := range map[int64]int64{0: length, 1000: length - 1000, length: 0, length + 1: 0} {
		copied, err := copier.copyBuffered(target, source, at, 4*bufferBytes)
		require.NoError(t, err)
		require.Equal(t, want, copied, "want: what the source has from %d on is copied", at)
	}

	written, err := os.ReadFile(target.Name())
	require.NoError(t, err)
	require.True(t, bytes.Equal(content, written), "want: the target has what the source had")

	require.NoError(t, source.Close())
	require.NoError(t, target.Close())
}
