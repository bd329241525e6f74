package filesystem

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Where things are in the superblock, besides those in ext4.go.
const (
	ext4UUID           = 0x68
	ext4ReadOnlyCompat = 0x64
	ext4ChecksumSeed   = 0x270
	ext4Checksum       = 0x3fc

	ext4FlagGroupSums    = 0x10   // of ReadOnlyCompat: GDT_CSUM
	ext4FlagMetadataSums = 0x400  // of ReadOnlyCompat: METADATA_CSUM
	ext4FlagSeed         = 0x2000 // of Incompatible: CSUM_SEED
)

// DuplicateUUIDFlags returns none: the kernel mounts several ext4 of one UUID.
func (*ext4) DuplicateUUIDFlags() []string { return nil }

func (*ext4) HasUUID(r io.ReaderAt, id string) (bool, error) { return superblockHasUUID(r, id) }

// SetUUID leaves the checksums of all other metadata as they are: their seed,
// which is the UUID unless it is written down, is written down. Kernels before
// 4.4 do not know that. The copies of the superblock follow with the next
// e2fsck or resize2fs; until then they have the former UUID.
func (e *ext4) SetUUID(ctx context.Context, path, id string) error {
	return withSuperblocks(ctx, path, id, Ext4, func(s *superblocks, wanted uuid.UUID) error {
		super, err := readBlock(s, ext4SuperOffset, ext4SuperLength)
		if err != nil || uuid.UUID(super[ext4UUID:][:len(wanted)]) == wanted {
			return err
		}

		sums := binary.LittleEndian.Uint32(super[ext4ReadOnlyCompat:])

		switch {
		case binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4FlagRecover != 0:
			// The journal may hold the superblock.
			return fmt.Errorf("%w: its journal holds changes", ErrNotClean)
		case sums&ext4FlagMetadataSums != 0:
			if err := ext4Sign(super, wanted); err != nil {
				return err
			}
		case sums&ext4FlagGroupSums != 0:
			// The older sums of the group descriptors know no seed; e2fsck -p puts
			// them right if it comes to that.
			return s.setUUIDWithTool(ctx, e.run, Command{Tool: "tune2fs", Package: ext4Package, Args: []string{"-U", wanted.String()}}, wanted)
		default:
			copy(super[ext4UUID:], wanted[:])
		}

		return s.writeDurably(ext4SuperOffset, super)
	})
}

// ext4Sign puts the UUID into a superblock with a checksum.
func ext4Sign(super []byte, id uuid.UUID) error {
	sum := func() uint32 { return ext4CRC(super[:ext4Checksum]) }
	if binary.LittleEndian.Uint32(super[ext4Checksum:]) != sum() {
		return fmt.Errorf("%w: the superblock's checksum is wrong", ErrNotClean)
	}

	incompatible := binary.LittleEndian.Uint32(super[ext4Incompatible:])
	if incompatible&ext4FlagSeed == 0 {
		binary.LittleEndian.PutUint32(super[ext4ChecksumSeed:], ext4CRC(super[ext4UUID:][:len(id)]))
		binary.LittleEndian.PutUint32(super[ext4Incompatible:], incompatible|ext4FlagSeed)
	}

	copy(super[ext4UUID:], id[:])
	binary.LittleEndian.PutUint32(super[ext4Checksum:], sum())

	return nil
}

// ext4CRC is a CRC-32C without the final inversion.
func ext4CRC(data []byte) uint32 { return ^crc32c(data) }
