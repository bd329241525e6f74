package driver_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/child"
	"github.com/touchstone-csi/touchstone/test/harness"
)

// populate makes enough directories for their metadata not to be in the blocks of
// the first ones, which are written all the time.
func populate(t *testing.T, directory string) {
	t.Helper()

	for i := range 300 {
		require.NoError(t, os.Mkdir(filepath.Join(directory, fmt.Sprint("directory-", i)), 0o700))
	}

	require.NoError(t, atRoot(directory, func(root *os.File) error { return unix.Syncfs(int(root.Fd())) }))
}

// damageInodes destroys a block of inodes that nothing writes any more, or of
// btrfs all trees.
func damageInodes(t *testing.T, fsType, image string) {
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
		overwrite(t, image, int64(binary.LittleEndian.Uint32(descriptor))*4096+8*4096, random(t, 4096))
	case "xfs":
		damageXFSInodes(t, file)
	case "btrfs":
		damageBtrfsTrees(t, image)
	}
}

// damageXFSInodes destroys the last block with inodes in use in the first
// allocation group.
func damageXFSInodes(t *testing.T, file *os.File) {
	t.Helper()

	const modeAt, directory = 2, 0o040000

	block, found := make([]byte, 4096), int64(0)

	for at := int64(0); at < 32*mib; at += int64(len(block)) {
		_, err := file.ReadAt(block, at)
		require.NoError(t, err)

		if bytes.HasPrefix(block, []byte("IN")) && binary.BigEndian.Uint16(block[modeAt:])&directory != 0 {
			found = at
		}
	}

	require.Positive(t, found)

	_, err := file.WriteAt(random(t, len(block)), found)
	require.NoError(t, err)
	require.NoError(t, file.Sync())
}

func TestCheckOfTheDamaged(t *testing.T) {
	eachPool(t, func(t *testing.T, d *harness.Driver, claim *csiclient.Publication, fsType string) {
		t.Helper()
		bringUp(t, d, claim)
		populate(t, claim.TargetPath)
		takeDown(t, d, claim)
		bringUp(t, d, claim)

		image, sound := imageOf(d, claim.VolumeID), filepath.Join(d.Root, "sound")
		output, err := child.Command(t, "cp", "--sparse=always", image, sound).CombinedOutput()
		require.NoError(t, err, "%s", output)

		damageInodes(t, fsType, image)

		found := requireCheck(t, d, claim, fsck.VerdictDamaged, fsck.HowOnline)
		t.Log(found.Detail)
		requireThawed(t, claim.StagingPath)
		awaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

		takeDown(t, d, claim)
		awaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)
		requireCheck(t, d, claim, fsck.VerdictDamaged, fsck.HowOffline)

		// What says that it is clean is not believed any more.
		require.NoError(t, d.Attach(t.Context(), claim))
		fails(t, d.Stage(t.Context(), claim), codes.Internal, fsType, "damaged", "by hand")
		requireUnstaged(t, d, claim)
		require.Equal(t, fsck.HowStage, reportOf(t, d, claim.VolumeID).Check.How)
		awaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)

		// Repaired by hand.
		output, err = child.Command(t, "cp", "--sparse=always", sound, image).CombinedOutput()
		require.NoError(t, err, "%s", output)
		requireCheck(t, d, claim, fsck.VerdictClean, fsck.HowOffline)
		awaitReason(t, d, claim.VolumeID, "")
		require.NoError(t, d.Stage(t.Context(), claim))
		awaitReason(t, d, claim.VolumeID, "")
	})
}
