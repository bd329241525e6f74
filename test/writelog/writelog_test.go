package writelog_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/writelog"
)

const block = 4096

// record makes a log of: a write of block 0, a flush, a write of blocks 1 to 4, a write of block 0,
// zeros in block 1.
func record(t *testing.T) *writelog.Log {
	t.Helper()

	path := filepath.Join(t.TempDir(), "log")
	writer, err := writelog.Create(path)
	require.NoError(t, err)

	done := 0
	for _, each := range []struct {
		entry writelog.Entry
		data  [][]byte
	}{
		{writelog.Entry{Kind: writelog.Write, Length: block}, [][]byte{blocks(1, 1)}},
		{writelog.Entry{Kind: writelog.Flush}, nil},
		{writelog.Entry{Kind: writelog.Write, Offset: block, Length: 4 * block}, [][]byte{blocks(2, 1), blocks(2, 3)}},
		{writelog.Entry{Kind: writelog.Write, Length: block}, [][]byte{blocks(3, 1)}},
		{writelog.Entry{Kind: writelog.Zero, Offset: block, Length: block}, nil},
	} {
		require.NoError(t, writer.Append(each.entry, each.data, func() { done++ }))
		require.Equal(t, done, writer.Entries(), "want: each entry is acknowledged")
	}

	require.NoError(t, writer.Close())

	log, err := writelog.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	require.Equal(t, done, log.Len(), "want: the log has each entry")

	return log
}

func blocks(content byte, number int) []byte { return bytes.Repeat([]byte{content}, number*block) }

func newDisk(t *testing.T) *os.File {
	t.Helper()

	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, disk.Close()) })
	require.NoError(t, disk.Truncate(5*block))

	return disk
}

func content(t *testing.T, disk *os.File) []byte {
	t.Helper()

	all, err := os.ReadFile(disk.Name())
	require.NoError(t, err)

	return all
}

func TestReplayOfAllEntriesIsTheDisk(t *testing.T) {
	log, disk := record(t), newDisk(t)
	require.NoError(t, log.Apply(disk, 0, log.Len()))
	require.Equal(t, append(append(blocks(3, 1), blocks(0, 1)...), blocks(2, 3)...), content(t, disk))
}

func TestDurableIsWhatTheLastFlushCovers(t *testing.T) {
	log := record(t)
	for point, durable := range []int{0, 0, 2, 2, 2, 2} {
		require.Equal(t, durable, log.Durable(point), "at point %d", point)
	}
}

// TestApplySomeAppliesAnySubset of the entries: each is kept and lost, and one of several blocks is
// applied in part.
func TestApplySomeAppliesAnySubset(t *testing.T) {
	log, random := record(t), rand.New(rand.NewPCG(1, 2))

	var first, whole, part, lost, last [2]bool

	for range 100 {
		disk := newDisk(t)
		require.NoError(t, log.Apply(disk, 0, 2))
		require.NoError(t, log.ApplySome(disk, 2, log.Len(), random, 0.5))

		found := content(t, disk)
		require.Contains(t, []byte{1, 3}, found[0])
		first[found[0]/3] = true

		written := bytes.Count(found[2*block:], []byte{2}) / block
		whole[0], part[0], lost[0] = whole[0] || written == 3, part[0] || written == 1 || written == 2, lost[0] || written == 0
		last[0] = last[0] || written == 3 && found[block] == 0
	}

	require.Equal(t, [2]bool{true, true}, first, "a write after the flush was both kept and lost")
	require.True(t, whole[0] && part[0] && lost[0], "a write of several blocks: whole %t, part %t, lost %t", whole[0], part[0], lost[0])
	require.True(t, last[0], "the zeros were written")
}
