package filesystem

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
)

// What is here changes filesystems that mkfs has just made, that were never mounted and that no
// other program knows, so the order of the writes does not matter. SetUUID is for all others.

// personalizer returns the parts of a newly made filesystem that have to be replaced to give it
// that UUID. They are all in which two filesystems have to differ that one mkfs has made with the
// same options. The error is errors.ErrUnsupported for a filesystem with more of them.
type personalizer func(r io.ReaderAt, id uuid.UUID) ([]fragment, error)

// Where things are in the superblock of an ext4, besides those in ext4.go and ext4_uuid.go.
const (
	ext4WriteTime     = 0x30
	ext4CheckTime     = 0x40
	ext4GroupNumber   = 0x5a
	ext4HashSeed      = 0xec
	ext4MakeTime      = 0x108
	ext4WriteTimeHigh = 0x274
	ext4MakeTimeHigh  = 0x276
	ext4CheckTimeHigh = 0x277
)

// personalizeExt4 changes the superblock and its copies in other groups: UUID, times, and the seed
// of the directories' hashes, of which a new filesystem has none. The checksums of other metadata
// keep the template's UUID as their seed (ext4Sign).
func personalizeExt4(r io.ReaderAt, id uuid.UUID) ([]fragment, error) {
	first, err := readExt4Superblock(r)
	if err != nil {
		return nil, err
	}

	size, blockSize, err := ext4Size(first)
	if err != nil {
		return nil, err
	}

	groupBytes := int64(binary.LittleEndian.Uint32(first[ext4BlocksPerGroup:])) * blockSize
	sums := binary.LittleEndian.Uint32(first[ext4ReadOnlyCompat:])

	switch {
	case groupBytes == 0 || blockSize == ext4MinBlockBytes:
		return nil, fmt.Errorf("%w: an ext4 with blocks of 1 KiB", errors.ErrUnsupported)
	case sums&(ext4FlagGroupSums|ext4FlagMetadataSums) == ext4FlagGroupSums:
		return nil, fmt.Errorf("%w: an ext4 with the older checksums, which know no seed", errors.ErrUnsupported)
	}

	var changed []fragment

	seed, now := uuid.New(), time.Now()

	for group := int64(0); group*groupBytes < size; group++ {
		offset := group * groupBytes
		if group == 0 {
			offset = ext4SuperOffset
		}

		super, err := readBlock(r, offset, ext4SuperLength)
		if err != nil {
			return nil, err
		}

		if !isExt4Copy(super, first, group) {
			continue // Most groups have none.
		}

		if err := personalizeExt4Super(super, id, seed, now); err != nil {
			return nil, err
		}

		changed = append(changed, fragment{offset: offset, data: super})
	}

	return changed, nil
}

// isExt4Copy reports whether a block is the copy of the first superblock that a group has.
func isExt4Copy(super, first []byte, group int64) bool {
	return string(super[ext4MagicOffset:][:len(ext4Magic)]) == ext4Magic &&
		uuid.UUID(super[ext4UUID:][:len(uuid.Nil)]) == uuid.UUID(first[ext4UUID:][:len(uuid.Nil)]) &&
		binary.LittleEndian.Uint16(super[ext4GroupNumber:]) == uint16(group)
}

func personalizeExt4Super(super []byte, id, seed uuid.UUID, now time.Time) error {
	summed := binary.LittleEndian.Uint32(super[ext4ReadOnlyCompat:])&ext4FlagMetadataSums != 0
	if summed {
		if err := ext4Sign(super, id); err != nil {
			return err
		}
	}

	copy(super[ext4UUID:], id[:])
	copy(super[ext4HashSeed:], seed[:])

	for _, at := range []struct{ low, high int }{
		{ext4WriteTime, ext4WriteTimeHigh}, {ext4CheckTime, ext4CheckTimeHigh}, {ext4MakeTime, ext4MakeTimeHigh},
	} {
		binary.LittleEndian.PutUint32(super[at.low:], uint32(now.Unix()))
		super[at.high] = byte(now.Unix() >> 32)
	}

	if summed {
		binary.LittleEndian.PutUint32(super[ext4Checksum:], ext4CRC(super[:ext4Checksum]))
	}

	return nil
}

// personalizeXFS changes the superblocks of all allocation groups, whose metadata keeps the
// template's UUID as metadata UUID, and the header of the only record in the log, which names the
// visible one.
func personalizeXFS(r io.ReaderAt, id uuid.UUID) ([]fragment, error) {
	layout, err := readXFSLayout(r)
	if err != nil {
		return nil, err
	}

	offset, length := layout.log()

	record, err := readBlock(r, offset, xfsRecordLength)
	if err != nil {
		return nil, err
	}

	if binary.BigEndian.Uint32(record) != xfsRecordMagic || binary.BigEndian.Uint32(record[xfsRecordChecksum:]) != 0 ||
		uuid.UUID(record[xfsRecordUUID:][:len(id)]) != layout.uuid() {
		return nil, fmt.Errorf("%w: an XFS whose log mkfs has not made", errors.ErrUnsupported)
	}

	copy(record[xfsRecordUUID:], id[:])
	changed := []fragment{{offset: offset, data: record, reserved: length}}

	for group := range layout.groups {
		super, err := layout.signedSuper(r, group, id)
		if err != nil {
			return nil, fmt.Errorf("allocation group %d: %w", group, err)
		}

		changed = append(changed, fragment{offset: layout.superOffset(group), data: super})
	}

	return changed, nil
}

// personalizeBtrfs changes the superblock and its copies: all other metadata keeps the template's
// UUID as metadata UUID.
func personalizeBtrfs(r io.ReaderAt, id uuid.UUID) ([]fragment, error) {
	var changed []fragment

	for _, offset := range []int64{btrfsSuperOffset, 64 << 20, 256 << 30} {
		super, err := readAt(r, offset, btrfsSuperBlock)
		if err != nil {
			return nil, err
		}

		if super == nil || string(super[btrfsMagicOffset:][:len(btrfsMagic)]) != btrfsMagic {
			break
		}

		if err := btrfsSign(super, id); err != nil {
			return nil, err
		}

		changed = append(changed, fragment{offset: offset, data: super})
	}

	return changed, nil
}
