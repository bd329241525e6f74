package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/google/uuid"
)

// Where things are in the superblock, besides those in xfs.go.
const (
	xfsUUID           = 32
	xfsLogStart       = 48
	xfsGroupBlocks    = 84
	xfsGroups         = 88
	xfsLogBlocks      = 96
	xfsVersion        = 100
	xfsSectorSize     = 102
	xfsGroupShift     = 124
	xfsIncompatible   = 216
	xfsChecksum       = 224
	xfsSequence       = 240
	xfsMetadataUUID   = 248
	xfsSuperAll       = 264
	xfsVersionMask    = 0xf
	xfsVersionSummed  = 5
	xfsFlagMetaUUID   = 1 << 2 // of Incompatible
	xfsRecordMagic    = 0xfeedbabe
	xfsRecordCycle    = 4
	xfsRecordUUID     = 304
	xfsRecordChecksum = 32
	xfsRecordLength   = 512
	xfsLargestSector  = 32 << 10
	xfsLargestShift   = 31
	xfsCyclesBeyond   = 2
)

// DuplicateUUIDFlags keep the mount from being registered by UUID.
func (*xfs) DuplicateUUIDFlags() []string { return []string{"nouuid"} }

// HasUUID asks the last superblock, too: SetUUID writes the first one first.
func (*xfs) HasUUID(r io.ReaderAt, id string) (bool, error) {
	layout, err := readXFSLayout(r)
	if err != nil {
		return false, fmt.Errorf("UUID: %w", err)
	}

	last, err := layout.lastUUID(r)

	return layout.uuid().String() == id && last == layout.uuid(), err
}

// SetUUID keeps the former UUID as the metadata UUID. Only the log also has the
// new UUID: it must be empty, and is formatted again. So there are three steps, each on the disk before the
// next one: the first superblock, the log, the other superblocks. After a crash
// in between, the first superblock has the new UUID and the last one has not:
// that the log was empty is known then, whatever it looks like, and the second
// step can be taken again.
func (x *xfs) SetUUID(ctx context.Context, path, id string) error {
	return withSuperblocks(ctx, path, id, XFS, func(s *superblocks, wanted uuid.UUID) error {
		layout, err := readXFSLayout(s)
		if err != nil {
			return err
		}

		if layout.uuid() != wanted {
			if err := x.beginUUID(ctx, s, layout, wanted); err != nil {
				return err
			}
		}

		if err := x.finishUUID(ctx, s, layout); err != nil {
			return fmt.Errorf("staging it again finishes what was begun: %w", err)
		}

		return nil
	})
}

// beginUUID takes the step after which there is no way back.
func (x *xfs) beginUUID(ctx context.Context, s *superblocks, layout *xfsLayout, wanted uuid.UUID) error {
	verdict, err := x.Check(ctx, s.path)
	if err != nil {
		return err
	}

	if verdict.State != Clean {
		return fmt.Errorf("%w: %s: %s", ErrNotClean, verdict.State, verdict.Detail)
	}

	if err := layout.sign(layout.super, wanted, layout.metadataUUID()); err != nil {
		return err
	}

	return s.writeDurably(0, layout.super)
}

func (x *xfs) finishUUID(ctx context.Context, s *superblocks, layout *xfsLayout) error {
	last, err := layout.lastUUID(s)
	if err != nil || last == layout.uuid() {
		return err
	}

	if err := x.formatLog(ctx, s, layout); err != nil {
		return err
	}

	for group := uint32(1); group < layout.groups; group++ {
		if err := layout.writeSuper(s, group); err != nil {
			return fmt.Errorf("allocation group %d: %w", group, err)
		}
	}

	return s.flush()
}

// formatLog empties the log, so that xfs_db does not care what it was, and gives
// it a sequence number beyond those in the metadata, without which the kernel
// would refuse them.
func (x *xfs) formatLog(ctx context.Context, s *superblocks, layout *xfsLayout) error {
	offset, length := layout.log()

	if err := s.zeroRange(offset, length); err != nil {
		return fmt.Errorf("empty the log: %w", err)
	}

	cycle := layout.cycle() + xfsCyclesBeyond
	command := Command{
		Tool: "xfs_db", Package: xfsPackage, InheritedFile: s.File,
		Args: []string{"-x", "-c", "logformat -c " + strconv.FormatUint(uint64(cycle), 10), "--", s.path},
	}

	result, err := x.run.Run(ctx, command)
	if err == nil {
		err = s.flush()
	}

	if err != nil {
		return fmt.Errorf("format the log: %w", err)
	}

	// xfs_db ends with 0 whatever happens.
	first, err := readBlock(s, offset, xfsRecordLength)
	if err != nil {
		return err
	}

	final, err := readBlock(s, offset+length-xfsRecordLength, xfsRecordLength)
	if err != nil {
		return err
	}

	if binary.BigEndian.Uint32(first) != xfsRecordMagic || binary.BigEndian.Uint32(first[xfsRecordCycle:]) != cycle ||
		uuid.UUID(first[xfsRecordUUID:][:len(uuid.Nil)]) != layout.uuid() || binary.BigEndian.Uint32(final) == 0 {
		return fmt.Errorf("format the log: %w", toolError(command, result))
	}

	return nil
}

// xfsLayout is a first superblock that makes sense.
type xfsLayout struct {
	super               []byte
	sector              int
	blockSize           int64
	groups, groupBlocks uint32
}

func readXFSLayout(r io.ReaderAt) (*xfsLayout, error) {
	super, err := readBlock(r, 0, xfsSuperAll)
	if err != nil {
		return nil, err
	}

	layout := &xfsLayout{
		sector:      int(binary.BigEndian.Uint16(super[xfsSectorSize:])),
		blockSize:   int64(binary.BigEndian.Uint32(super[xfsBlockSize:])),
		groups:      binary.BigEndian.Uint32(super[xfsGroups:]),
		groupBlocks: binary.BigEndian.Uint32(super[xfsGroupBlocks:]),
	}

	switch {
	case binary.BigEndian.Uint16(super[xfsVersion:])&xfsVersionMask != xfsVersionSummed:
		return nil, fmt.Errorf("%w: only version 5 of XFS can have a metadata UUID", errors.ErrUnsupported)
	case !plausibleBlockSize(uint64(layout.sector)) || layout.sector > xfsLargestSector ||
		!plausibleBlockSize(uint64(layout.blockSize)) || layout.groups < 2 || layout.groupBlocks == 0 ||
		super[xfsGroupShift] > xfsLargestShift || binary.BigEndian.Uint64(super[xfsLogStart:]) == 0:
		return nil, fmt.Errorf("%w: its layout makes no sense, or the log is elsewhere", ErrNoSuperblock)
	}

	layout.super, err = readBlock(r, 0, layout.sector)

	return layout, err
}

// writeSuper writes a copy of the superblock with the UUID. That of the last group is written when the
// others are durable.
func (l *xfsLayout) writeSuper(s *superblocks, group uint32) error {
	super, err := l.signedSuper(s, group, l.uuid())
	if err != nil {
		return err
	}

	if group == l.groups-1 {
		if err := s.flush(); err != nil {
			return err
		}
	}

	return s.write(l.superOffset(group), super)
}

func (l *xfsLayout) uuid() uuid.UUID { return uuid.UUID(l.super[xfsUUID:][:len(uuid.Nil)]) }

// lastUUID is the one in the last copy of the superblock.
func (l *xfsLayout) lastUUID(r io.ReaderAt) (uuid.UUID, error) {
	last, err := readBlock(r, l.superOffset(l.groups-1), l.sector)
	if err != nil {
		return uuid.Nil, err
	}

	return uuid.UUID(last[xfsUUID:][:len(uuid.Nil)]), nil
}

// metadataUUID is that of the filesystem's origin.
func (l *xfsLayout) metadataUUID() uuid.UUID {
	if binary.BigEndian.Uint32(l.super[xfsIncompatible:])&xfsFlagMetaUUID == 0 {
		return l.uuid()
	}

	return uuid.UUID(l.super[xfsMetadataUUID:][:len(uuid.Nil)])
}

// cycle is the number of times that the log had been gone through when the
// superblock was last written, which an unmount does last of all.
func (l *xfsLayout) cycle() uint32 { return binary.BigEndian.Uint32(l.super[xfsSequence:]) }

// log returns where it lies in bytes. Its start has the group in the upper bits.
func (l *xfsLayout) log() (offset, length int64) {
	start, shift := binary.BigEndian.Uint64(l.super[xfsLogStart:]), l.super[xfsGroupShift]
	block := int64(start>>shift)*int64(l.groupBlocks) + int64(start&(1<<shift-1))

	return block * l.blockSize, int64(binary.BigEndian.Uint32(l.super[xfsLogBlocks:])) * l.blockSize
}

// superOffset is where a group has its copy of the superblock.
func (l *xfsLayout) superOffset(group uint32) int64 {
	return int64(group) * int64(l.groupBlocks) * l.blockSize
}

// signedSuper returns a group's superblock with the UUID.
func (l *xfsLayout) signedSuper(r io.ReaderAt, group uint32, id uuid.UUID) ([]byte, error) {
	super, err := readBlock(r, l.superOffset(group), l.sector)
	if err != nil {
		return nil, err
	}

	return super, l.sign(super, id, l.metadataUUID())
}

// sign puts the UUIDs into a superblock.
func (l *xfsLayout) sign(super []byte, id, metadata uuid.UUID) error {
	sum := func() uint32 {
		return crc32c(super[:xfsChecksum], make([]byte, crcBytes), super[xfsChecksum+crcBytes:])
	}

	if string(super[:len(xfsMagic)]) != xfsMagic || binary.LittleEndian.Uint32(super[xfsChecksum:]) != sum() {
		return fmt.Errorf("%w: a superblock's checksum is wrong", ErrNotClean)
	}

	copy(super[xfsUUID:], id[:])
	copy(super[xfsMetadataUUID:], metadata[:])
	binary.BigEndian.PutUint32(super[xfsIncompatible:], binary.BigEndian.Uint32(super[xfsIncompatible:])|xfsFlagMetaUUID)
	binary.LittleEndian.PutUint32(super[xfsChecksum:], sum())

	return nil
}

const crcBytes = 4
