package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
)

// The files of a state directory.
const (
	journalName = "state.jsonl"
	draftName   = "state.jsonl.new"
	markName    = "durable.json"
	lockName    = "lock"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
)

// FS is the part of a filesystem that the store uses; tests make each step of it fail.
type FS interface {
	// OpenFile is os.OpenFile.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Rename replaces the file newName.
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
		return nil, err
	}
	return osFile{file}, nil
}

func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) SyncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

type osFile struct{ *os.File }

func (f osFile) Sync() error {
	err := eintr.Retry(func() error { return unix.Fdatasync(int(f.Fd())) })
	return os.NewSyscallError("fdatasync", err)
}

func (f osFile) Forget() error {
	return os.NewSyscallError("fadvise", unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// exists reports whether a file exists. An error is not taken for its absence.
func exists(files FS, name string) (bool, error) {
	file, err := files.OpenFile(name, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open state: %w", err)
	}
	return true, file.Close()
}

// removeIfExists removes a file that may be missing.
func removeIfExists(files FS, name string) error {
	if err := files.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove leftover: %w", err)
	}
	return nil
}

// refuseOldFormat fails if the directory has the files of a format from before the first release.
func refuseOldFormat(files FS, dir string) error {
	for _, name := range []string{"state.json", "journal.jsonl"} {
		old, err := exists(files, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if old {
			return fmt.Errorf("%w: %s is of a version from before the first release, whose format this program does not read; "+
				"choose another state directory, or move the files of this one away to begin with an empty state",
				ErrOldFormat, filepath.Join(dir, name))
		}
	}
	return nil
}
