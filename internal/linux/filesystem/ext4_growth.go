package filesystem

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Where things are in the superblock, besides those in ext4.go and ext4_uuid.go.
const (
	ext4LogClusterSize  = 0x1c
	ext4BlocksPerGroup  = 0x20
	ext4InodesPerGroup  = 0x28
	ext4InodeSize       = 0x58
	ext4Compatible      = 0x5c
	ext4ReservedTable   = 0xce
	ext4DescriptorBytes = 0xfe

	ext4FlagSparseSuper2 = 0x200 // of Compatible
	ext4FlagSparseSuper  = 0x1   // of ReadOnlyCompat
	ext4FlagBigalloc     = 0x200 // of ReadOnlyCompat
	ext4FlagMetaBG       = 0x10  // of Incompatible

	ext4MinDescriptorBytes = 32
	ext4Max32Bit           = math.MaxUint32
)

// ext4Limit returns how large the ext4 of r can become, by its superblock only. resize2fs itself checks none
// of these limits, but the one of bigalloc, before it writes: it aborts in the middle, or moves the inode
// tables and files that are behind the group descriptors, which fails for a full filesystem, or one with a
// resize inode or files without extents (1.47).
func ext4Limit(r io.ReaderAt) (growthLimit, error) {
	super, err := readExt4Superblock(r)
	if err != nil {
		return growthLimit{}, err
	}

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

// ext4LeavesRest reports whether all that a mounted ext4 does not use of its device is too short for
// another group. The kernel leaves that unused, too, but asks for CAP_SYS_RESOURCE before it notices.
// It is false if the superblock cannot be read.
func ext4LeavesRest(directory *os.File, deviceBytes int64) bool {
	var stat unix.Stat_t
	if unix.Fstat(int(directory.Fd()), &stat) != nil {
		return false
	}

	name, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	if err != nil {
		return false
	}

	super, err := readFrom("/dev/"+filepath.Base(name), readExt4Superblock)

	return err == nil && ext4RestIsUnused(super, deviceBytes)
}

// ext4RestIsUnused is false unless the filesystem ends with the last whole group of the device, and
// resize2fs (adjust_fs_info) leaves what follows unused.
func ext4RestIsUnused(super []byte, deviceBytes int64) bool {
	// least are the blocks for data without which resize2fs makes no group, and bitmaps one for blocks
	// and one for inodes.
	const least, bitmaps = 50, 2

	size, blockSize, err := ext4Size(super)
	groupBlocks := int64(binary.LittleEndian.Uint32(super[ext4BlocksPerGroup:]))

	if err != nil || groupBlocks == 0 {
		return false
	}

	group, rest := deviceBytes/blockSize/groupBlocks, deviceBytes/blockSize%groupBlocks
	inodeBytes := uint64(binary.LittleEndian.Uint32(super[ext4InodesPerGroup:])) * uint64(binary.LittleEndian.Uint16(super[ext4InodeSize:]))
	needed := bitmaps + least + int64(divideUp(inodeBytes, uint64(blockSize)))

	if ext4HasSuperblock(super, group) {
		perBlock := blockSize / int64(max(ext4DescriptorSize(super), ext4MinDescriptorBytes))
		needed += 1 + group/perBlock + 1 + int64(binary.LittleEndian.Uint16(super[ext4ReservedTable:]))
	}

	return size == group*groupBlocks*blockSize && rest < needed
}

// ext4HasSuperblock reports whether a group has a copy of the superblock and the group descriptors. It
// says no for sparse_super2, with which up to two groups have one.
func ext4HasSuperblock(super []byte, group int64) bool {
	if binary.LittleEndian.Uint32(super[ext4Compatible:])&ext4FlagSparseSuper2 != 0 {
		return false
	}

	if group <= 1 || binary.LittleEndian.Uint32(super[ext4ReadOnlyCompat:])&ext4FlagSparseSuper == 0 {
		return true
	}

	return slices.ContainsFunc([]int64{3, 5, 7}, func(base int64) bool {
		power := base
		for power < group {
			power *= base
		}

		return power == group
	})
}
