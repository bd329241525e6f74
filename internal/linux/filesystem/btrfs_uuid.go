package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Where things are in the superblock, besides those in btrfs.go.
const (
	btrfsFSID         = 0x20
	btrfsFlags        = 0x38
	btrfsDevices      = 0x88
	btrfsIncompatible = 0xbc
	btrfsSumType      = 0xc4
	btrfsMetadataUUID = 0x23b
	btrfsSuperBlock   = 4096

	btrfsFlagMetadataUUID = 1 << 10 // of Incompatible
	// btrfsFlagsChanging are BTRFS_SUPER_FLAG_SEEDING and the two that btrfstune
	// sets while it changes the fsid.
	btrfsFlagsChanging = 1<<32 | 1<<35 | 1<<36
)

// DuplicateUUIDFlags: the kernel gives a second one of a device a UUID for the time of
// its mount, since 6.7.
func (*btrfs) DuplicateUUIDFlags() []string { return nil }

func (*btrfs) HasUUID(r io.ReaderAt, id string) (bool, error) { return superblockHasUUID(r, id) }

// SetUUID sets the fsid, and leaves the former one where all other metadata is
// compared with it: the metadata UUID, which kernels before 5.0 do not know. The
// kernel writes the copies of the superblock with its next commit.
func (b *btrfs) SetUUID(ctx context.Context, path, id string) error {
	return withSuperblocks(ctx, path, id, Btrfs, func(s *superblocks, wanted uuid.UUID) error {
		super, err := readBlock(s, btrfsSuperOffset, btrfsSuperBlock)
		if err != nil || uuid.UUID(super[btrfsFSID:][:len(wanted)]) == wanted {
			return err
		}

		if binary.LittleEndian.Uint64(super[btrfsFlags:])&btrfsFlagsChanging != 0 ||
			binary.LittleEndian.Uint64(super[btrfsDevices:]) != 1 {
			return fmt.Errorf("%w: it has several devices, seeds others, or btrfstune was interrupted", ErrNotClean)
		}

		if binary.LittleEndian.Uint16(super[btrfsSumType:]) != 0 {
			// The other kinds of checksums, which have to be asked for, are
			// btrfstune's to know.
			command := Command{Tool: "btrfstune", Package: btrfsPackage, Args: []string{"-f", "-M", wanted.String()}}

			return s.setUUIDWithTool(ctx, b.run, command, wanted)
		}

		if err := btrfsSign(super, wanted); err != nil {
			return err
		}

		return s.writeDurably(btrfsSuperOffset, super)
	})
}

// btrfsSign puts the UUID into a superblock with a CRC-32C.
func btrfsSign(super []byte, id uuid.UUID) error {
	if binary.LittleEndian.Uint16(super[btrfsSumType:]) != 0 {
		return fmt.Errorf("%w: a btrfs with other checksums than CRC-32C", errors.ErrUnsupported)
	}

	if binary.LittleEndian.Uint32(super) != crc32c(super[btrfsFSID:]) {
		return fmt.Errorf("%w: the superblock's checksum is wrong", ErrNotClean)
	}

	incompatible := binary.LittleEndian.Uint64(super[btrfsIncompatible:])
	if incompatible&btrfsFlagMetadataUUID == 0 {
		copy(super[btrfsMetadataUUID:], super[btrfsFSID:][:len(id)])
		binary.LittleEndian.PutUint64(super[btrfsIncompatible:], incompatible|btrfsFlagMetadataUUID)
	}

	copy(super[btrfsFSID:], id[:])
	binary.LittleEndian.PutUint32(super, crc32c(super[btrfsFSID:]))

	return nil
}
