// Package quota makes, limits, measures, copies and removes the directories of volumes and
// snapshots by what the filesystem of their pool supports.
//
// There is one implementation of Directories for each Kind; Open chooses it when a pool is
// opened. What a directory is, is decided by probing the directory: one that an earlier release
// made, or that was made while the filesystem supported less, stays valid and is not limited.
//
// The package contains what the kernel does with one directory. It does not know which volumes
// there are; package pool names, locks and lists the directories.
package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// Kind is what a pool makes for the directory of a volume.
type Kind string

// Kinds.
const (
	// Plain is a directory like any other, without a limit.
	Plain Kind = "plain directories"
	// Subvolume is a subvolume of btrfs, limited by a quota group.
	Subvolume Kind = "subvolumes"
	// Project is a directory of XFS or ext4 that is a project, limited by its quota.
	Project Kind = "projects"
)

// Support is what a filesystem supports for the directories of a pool.
type Support struct {
	// Kind is what new directories are.
	Kind Kind
	// Limited reports whether the sizes of new directories are limited.
	Limited bool
	// Reason is why sizes are not limited, with the remedy if there is one.
	Reason string
	// Snapshots reports whether new directories are copied at one point in time.
	Snapshots bool
}

// Usage is what a directory takes, as the kernel counts it, and its limit.
type Usage struct {
	// LimitBytes and LimitInodes are 0 if there is no limit.
	LimitBytes, LimitInodes int64
	// Bytes and Inodes are what is in use. Inodes is 0 if they are not counted.
	Bytes, Inodes int64
}

// Directories makes and removes the directories of one pool. It is safe for concurrent use, except
// that one directory has one caller at a time.
//
// Methods with a directory that this implementation cannot limit do nothing, so that they can be
// called with every directory of the pool.
type Directories interface {
	// Support returns what new directories get.
	Support() Support
	// Make makes an empty directory without a limit. Errors: fs.ErrExist.
	Make(parent *os.Root, name string, mode os.FileMode) error
	// Limit limits the directory to so many bytes. It never lowers a limit. It is durable after Sync.
	Limit(directory *os.File, bytes int64) error
	// Confine makes the limit count all files in the directory and no others, where a user has moved
	// some out of it or out of another one. It returns true if it has found some in this one. It may be
	// called concurrently.
	Confine(directory *os.File) (evaded bool, err error)
	// Grown returns the names of directories, also of others than those of the pool, in which something
	// was made since the last call that may evade their limits.
	Grown() ([]string, error)
	// Sweep is Confine where that takes time in proportion to the number of files. The directory may have
	// another caller meanwhile.
	Sweep(ctx context.Context, directory *os.File) (evaded bool, err error)
	// Usage returns the usage that the kernel has counted, without a walk. It returns false if it
	// counts none for the directory, or if the directory has no limit.
	Usage(directory *os.File) (Usage, bool, error)
	// Allocated returns the space that the kernel has counted for the directory, a limited one or not,
	// and for no other directory, so that a sum counts nothing twice. It returns false if there is no
	// such number.
	Allocated(directory *os.File) (bytes int64, known bool, err error)
	// CanSnapshot reports whether Snapshot can copy the directory to another one of this pool.
	CanSnapshot(source *os.File) bool
	// Snapshot makes a copy of source at one point in time, durably; source may be written meanwhile.
	// The copy has no limit.
	Snapshot(source *os.File, parent *os.Root, name string) error
	// Seal makes the copy unwritable, durably. It is the last step of a snapshot: a sealed directory
	// cannot be renamed.
	Seal(directory *os.File) error
	// Sync makes the limit of the directory durable, and its name with it.
	Sync(directory *os.File) error
	// Remove removes the directory with its content, if that takes no walk, and returns true.
	// Otherwise it releases what the kernel keeps for its limit and returns false; the caller removes
	// the tree. A name that is missing is no error.
	Remove(ctx context.Context, parent *os.File, name string) (removed bool, err error)
	// RemoveStale releases what the kernel keeps for directories that do not exist any more.
	RemoveStale(ctx context.Context) error
	Close() error
}

// Open returns the implementation for the filesystem of a directory. With inspect it does not turn on
// quotas.
func Open(directory *os.Root, inspect bool) (Directories, error) {
	pool, err := directory.Open(".")
	if err != nil {
		return nil, err
	}

	made, err := choose(pool, inspect)

	switch made.(type) {
	case *subvolumes, *projects: // which keep it open
	default:
		err = errors.Join(err, pool.Close())
	}

	if err != nil {
		return nil, fmt.Errorf("quotas of %s: %w", directory.Name(), err)
	}

	return made, nil
}

func choose(pool *os.File, inspect bool) (Directories, error) {
	if made, found, err := openSubvolumes(pool, inspect); found || err != nil {
		return made, err
	}

	if made, found, err := openProjects(pool); found || err != nil {
		return made, err
	}

	return plain{reason: "the filesystem has neither subvolumes nor project quotas; use btrfs, or XFS or ext4 mounted with prjquota"}, nil
}

// openToRemove opens the directory that Remove is for. It returns nil if there is none of that name.
func openToRemove(parent *os.File, name string) (*os.File, error) {
	directory, err := tree.OpenAt(parent, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // a symlink, too
		return nil, nil //nolint:nilnil // documented: no directory
	}

	return directory, err
}
