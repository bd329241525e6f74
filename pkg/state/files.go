package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// The files of a state directory.
const (
	snapshotName  = "state.json"
	journalName   = "journal.jsonl"
	previousName  = "journal.previous.jsonl"
	lockName      = "lock"
	snapshotDraft = "state.json.new"
	journalDraft  = "journal.jsonl.new"
	markName      = "durable.json"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
)

// FS is the part of a filesystem that the store uses; tests make each step of it fail.
type FS interface {
	// OpenFile is os.OpenFile.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename replaces what is at newName.
	Rename(oldName, newName string) error
	Remove(name string) error
	// SyncDir makes the names durable that were created, renamed or removed in a directory.
	SyncDir(name string) error
}

// File is one open file of an FS.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is in bytes.
	Size() (int64, error)
	Truncate(size int64) error
	// Sync makes contents and size durable (fdatasync).
	Sync() error
	// Forget drops clean pages from the page cache, so that the next read comes from the disk.
	Forget() error
}

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	file, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err //nolint:wrapcheck // already names operation and path
	}

	return osFile{file}, nil
}

func (osFS) Rename(oldName, newName string) error {
	return os.Rename(oldName, newName) //nolint:wrapcheck // already names operation and paths
}

func (osFS) Remove(name string) error {
	return os.Remove(name) //nolint:wrapcheck // already names operation and path
}

func (osFS) SyncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err //nolint:wrapcheck // already names operation and path
	}

	return errors.Join(dir.Sync(), dir.Close())
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("size: %w", err)
	}

	return info.Size(), nil
}

func (f osFile) Sync() error {
	err := eintr.Retry(func() error { return unix.Fdatasync(int(f.Fd())) })

	return os.NewSyscallError("fdatasync", err) //nolint:wrapcheck // names the call
}

func (f osFile) Forget() error {
	err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)

	return os.NewSyscallError("fadvise", err) //nolint:wrapcheck // names the call
}

// exists reports whether a file exists; an error to open it is not taken for its absence.
func exists(files FS, name string) (bool, error) {
	file, err := files.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("look for state: %w", err)
	}

	return true, file.Close() //nolint:wrapcheck // nothing was written
}

// removeIfThere removes a file that may be missing.
func removeIfThere(files FS, name string) error {
	err := files.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leftover: %w", err)
	}

	return nil
}
