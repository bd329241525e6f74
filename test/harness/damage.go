package harness

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Populate makes enough directories for their metadata not to be in the blocks of
// the first ones, which are written all the time.
func Populate(t *testing.T, directory string) {
	t.Helper()

	for i := range 300 {
		require.NoError(t, os.Mkdir(filepath.Join(directory, fmt.Sprint("directory-", i)), 0o700))
	}

	require.NoError(t, Syncfs(directory))
}

// DamageInodes destroys a block of inodes that nothing writes any more, or of
// btrfs all trees.
func DamageInodes(t *testing.T, fsType, image string) {
	t.Helper()

	file, err := os.OpenFile(image, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	switch fsType {
	case "ext4":
		descriptor := make([]byte, 4)
		_, err = file.ReadAt(descriptor, 4096+8)
		require.NoError(t, err)
		// Sixteen inodes a block: those of the directories from 100 on.
		Overwrite(t, image, int64(binary.LittleEndian.Uint32(descriptor))*4096+8*4096, Random(t, 4096))
	case "xfs":
		damageXFSInodes(t, file)
	case "btrfs":
		DamageBtrfsTrees(t, image)
	}
}

// damageXFSInodes destroys the last block with inodes in use in the first
// allocation group.
func damageXFSInodes(t *testing.T, file *os.File) {
	t.Helper()

	const modeAt, directory = 2, 0o040000

	block, found := make([]byte, 4096), int64(0)

	for at := int64(0); at < 32*MiB; at += int64(len(block)) {
		_, err := file.ReadAt(block, at)
		require.NoError(t, err)

		if bytes.HasPrefix(block, []byte("IN")) && binary.BigEndian.Uint16(block[modeAt:])&directory != 0 {
			found = at
		}
	}

	require.Positive(t, found, "want: the image has inodes")

	_, err := file.WriteAt(Random(t, len(block)), found)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
}

// DamageExt4Root points the root directory's inode elsewhere: that e2fsck asks
// about.
func DamageExt4Root(t *testing.T, image string) {
	t.Helper()

	file, err := os.Open(image)
	require.NoError(t, err)

	defer file.Close()

	// The group descriptors are in the block after the superblock; the inode
	// table's number is 8 bytes into the first.
	descriptor := make([]byte, 4)
	_, err = file.ReadAt(descriptor, 4096+8)
	require.NoError(t, err)

	table := int64(descriptor[0]) | int64(descriptor[1])<<8 | int64(descriptor[2])<<16
	Overwrite(t, image, table*4096+256, Random(t, 128)) // inode 2
}

// DamageBtrfsTrees destroys all copies of the chunk tree's and root tree's
// blocks: those are at the beginning of each metadata chunk.
func DamageBtrfsTrees(t *testing.T, image string) {
	t.Helper()

	file, err := os.OpenFile(image, os.O_RDWR, 0)
	require.NoError(t, err)

	defer file.Close()

	const super, node = 64 << 10, 16 << 10

	id := make([]byte, 16)
	_, err = file.ReadAt(id, super+32)
	require.NoError(t, err)

	info, err := file.Stat()
	require.NoError(t, err)

	// A tree's block has the filesystem's id 32 bytes in, as the superblock.
	block := make([]byte, 48)

	for at := int64(1 << 20); at < info.Size(); at += node {
		_, err := file.ReadAt(block, at)
		require.NoError(t, err)

		if bytes.Equal(block[32:], id) {
			_, err := file.WriteAt(Random(t, node), at)
			require.NoError(t, err)
		}
	}
}

// ShutDownFilesystem is XFS's ioctl, which ext4 took over: _IOR of X, 125, a __u32.
func ShutDownFilesystem(root *os.File) error {
	const (
		goingDown = 0x8004587d
		noLog     = 2
	)

	return unix.IoctlSetPointerInt(int(root.Fd()), goingDown, noLog)
}
