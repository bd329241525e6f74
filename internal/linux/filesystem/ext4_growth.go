package filesystem

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Where things are in the superblock, besides those in ext4.go and ext4_uuid.go.
const (
	ext4LogClusterSize  = 0x1c
	ext4BlocksPerGroup  = 0x20
	ext4InodesPerGroup  = 0x28
	ext4Compatible      = 0x5c
	ext4ReservedTable   = 0xce
	ext4DescriptorBytes = 0xfe

	ext4FlagBigalloc = 0x200 // of ReadOnlyCompat
	ext4FlagMetaBG   = 0x10  // of Incompatible

	ext4MinDescriptorBytes = 32
	ext4Max32Bit           = math.MaxUint32
)

// ext4Limit returns how large the ext4 of r can become.
func ext4Limit(r io.ReaderAt) (growthLimit, error) {
	super, err := readExt4Superblock(r)
	if err != nil {
		return growthLimit{}, err
	}

	return ext4LimitOf(super)
}

// ext4LimitOf is a function of the superblock only. resize2fs itself checks none of these limits, but
// the one of bigalloc, before it writes: it aborts in the middle, or moves the inode tables and files
// that are behind the group descriptors, which fails for a full filesystem, or one with a resize
// inode or files without extents (1.47).
func ext4LimitOf(super []byte) (growthLimit, error) {
	size, blockSize, err := ext4Size(super)
	if err != nil {
		return growthLimit{}, err
	}

	limit := growthLimit{nowBytes: size, unitBytes: blockSize, maxBytes: size}

	if binary.LittleEndian.Uint32(super[ext4ReadOnlyCompat:])&ext4FlagBigalloc != 0 {
		exponent := binary.LittleEndian.Uint32(super[ext4LogClusterSize:])
		if exponent > ext4MaxLogCluster {
			return growthLimit{}, fmt.Errorf("%s: %w: cluster size 1024 << %d", Ext4, ErrNoSuperblock, exponent)
		}

		limit.unitBytes, limit.reason = ext4MinBlockBytes<<exponent, "resize2fs grows none with bigalloc"

		return limit, nil
	}

	groupBlocks := uint64(binary.LittleEndian.Uint32(super[ext4BlocksPerGroup:]))
	groupInodes := uint64(binary.LittleEndian.Uint32(super[ext4InodesPerGroup:]))
	descriptorBytes := ext4DescriptorSize(super)

	if groupBlocks == 0 || groupInodes == 0 || descriptorBytes < ext4MinDescriptorBytes || descriptorBytes > uint64(blockSize) {
		return growthLimit{}, fmt.Errorf("%s: %w: groups of %d blocks and %d inodes, descriptors of %d bytes",
			Ext4, ErrNoSuperblock, groupBlocks, groupInodes, descriptorBytes)
	}

	blocks := uint64(size / blockSize)
	maxBlocks := (ext4Max32Bit - 1) / groupInodes * groupBlocks
	limit.reason = "it numbers its inodes with 32 bits"

	if binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4Flag64Bit == 0 && maxBlocks > ext4Max32Bit {
		maxBlocks, limit.reason = ext4Max32Bit, "it lacks the feature 64bit"
	}

	if binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4FlagMetaBG == 0 {
		perBlock := uint64(blockSize) / descriptorBytes
		table := divideUp(divideUp(blocks, groupBlocks), perBlock) + uint64(binary.LittleEndian.Uint16(super[ext4ReservedTable:]))

		if tableBlocks := table * perBlock * groupBlocks; tableBlocks < maxBlocks {
			maxBlocks, limit.reason = tableBlocks, "it has no space for more group descriptors, which only mkfs reserves (-E resize)"
		}
	}

	limit.maxBytes = max(size, int64(min(maxBlocks, math.MaxInt64/uint64(blockSize))*uint64(blockSize)))

	return limit, nil
}

// ext4DescriptorSize returns the size of a group descriptor in bytes.
func ext4DescriptorSize(super []byte) uint64 {
	if binary.LittleEndian.Uint32(super[ext4Incompatible:])&ext4Flag64Bit == 0 {
		return ext4MinDescriptorBytes
	}

	return uint64(binary.LittleEndian.Uint16(super[ext4DescriptorBytes:]))
}

func divideUp(a, b uint64) uint64 { return (a + b - 1) / b }
