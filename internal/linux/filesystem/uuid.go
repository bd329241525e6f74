package filesystem

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// Giving a copy a UUID of its own is done here and not by tune2fs, xfs_admin and
// btrfstune, since each of them, killed between two of its writes, leaves what
// neither mounts nor can be finished by running it again. All of the filesystems
// can keep the old UUID for what their metadata is signed with, and then the new
// one is one block: the superblock.

// ErrNotClean is returned by SetUUID of a filesystem with a log to be replayed,
// or damage. Check it first.
var ErrNotClean = errors.New("filesystem is not sound")

// superblockHasUUID is HasUUID of a filesystem that changes it in one step.
func superblockHasUUID(r io.ReaderAt, id string) (bool, error) {
	found, err := UUID(r)

	return found == id, err
}

// UUID returns the UUID of any supported filesystem as blkid prints it. Error: ErrNoSuperblock.
func UUID(r io.ReaderAt) (string, error) {
	name, err := Detect(r)
	if err != nil {
		return "", err
	}

	row, known := typeByName(name)
	if !known {
		return "", fmt.Errorf("UUID: %w", ErrNoSuperblock)
	}

	found, err := readBlock(r, row.uuidOffset, len(uuid.Nil))
	if err != nil {
		return "", fmt.Errorf("UUID: %w", err)
	}

	return uuid.UUID(found).String(), nil
}

// superblocks is an unmounted filesystem whose superblocks are about to change. Its lock is inherited by
// tools.
type superblocks struct {
	*os.File

	path string
}

// withSuperblocks is what SetUUID is for all of them. It keeps others from the filesystem. Error: ErrInUse.
func withSuperblocks(ctx context.Context, path, id, name string, set func(s *superblocks, wanted uuid.UUID) error) (err error) {
	wanted, err := uuid.Parse(id)
	if err != nil {
		return fmt.Errorf("UUID of %s: %w", path, err)
	}

	t, err := inspect(path, name)

	switch {
	case err != nil:
		return err
	case !t.isExpectedType:
		return fmt.Errorf("%s of %s: %w", name, path, ErrNoSuperblock)
	}

	file, err := lockPath(ctx, path, os.O_RDWR)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	if err := set(&superblocks{file, path}, wanted); err != nil {
		return fmt.Errorf("UUID of %s: %w", path, err)
	}

	return nil
}

// readBlock reads what has to be there.
func readBlock(r io.ReaderAt, offset int64, length int) ([]byte, error) {
	block, err := readAt(r, offset, length)
	if err != nil || block != nil {
		return block, err
	}

	return nil, fmt.Errorf("%w at %d", ErrNoSuperblock, offset)
}

// write writes a superblock in one piece: it lies within one page of the device's cache and one
// block of the device. Only Sync makes it last.
func (s *superblocks) write(offset int64, block []byte) error {
	if _, err := s.WriteAt(block, offset); err != nil {
		return fmt.Errorf("write the superblock at %d: %w", offset, err)
	}

	return nil
}

// writeDurably writes a superblock and waits for the disk.
func (s *superblocks) writeDurably(offset int64, block []byte) error {
	return errors.Join(s.write(offset, block), s.flush())
}

// flush waits for the disk. What a tool wrote through another descriptor it
// waits for, too, and returns its errors.
func (s *superblocks) flush() error {
	if err := s.Sync(); err != nil {
		return fmt.Errorf("flush the superblock: %w", err)
	}

	return nil
}

// zeroRange fills a range with zeros.
func (s *superblocks) zeroRange(offset, length int64) error {
	err := unix.Fallocate(int(s.Fd()), unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}

	_, err = io.CopyN(io.NewOffsetWriter(s.File, offset), zeros{}, length)

	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)

	return len(p), nil
}

// crc32c is the sum of an XFS and a btrfs superblock.
func crc32c(parts ...[]byte) uint32 {
	table, sum := crc32.MakeTable(crc32.Castagnoli), uint32(0)
	for _, part := range parts {
		sum = crc32.Update(sum, table, part)
	}

	return sum
}

// setUUIDWithTool has a filesystem's own tool set a UUID that is signed into more than
// the superblock. Nothing ends the tool, since nothing could finish its work.
func (s *superblocks) setUUIDWithTool(ctx context.Context, run Runner, command Command, wanted uuid.UUID) error {
	command.Args = append(command.Args, "--", s.path)
	command.InheritedFile, command.Uninterruptible = s.File, true

	result, err := run.Run(ctx, command)
	if err != nil {
		return err
	}

	if result.ExitCode != 0 {
		return toolError(command, result)
	}

	if err := s.flush(); err != nil {
		return err
	}

	// Some of the tools say nothing when they do nothing.
	found, err := UUID(s)
	if err != nil || found == wanted.String() {
		return err
	}

	return toolError(command, result)
}
