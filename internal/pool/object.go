package pool

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// Object is a volume or a snapshot in a pool.
type Object struct {
	ID       string
	Backing  volume.Backing
	Snapshot bool
}

// String names the object in messages.
func (o Object) String() string {
	if o.Snapshot {
		return "snapshot " + o.ID
	}

	return "volume " + o.ID
}

// fileName is the object's name in its directory.
func (o Object) fileName() string {
	if o.Backing == volume.BackingDirectory {
		return o.ID
	}

	return o.ID + layout.ImageSuffix
}

// parentOf returns the directory of the pool that contains the object.
func (p *Pool) parentOf(object Object) *os.Root {
	switch {
	case object.Snapshot:
		return p.snapshots
	case object.Backing == volume.BackingDirectory:
		return p.directories
	default:
		return p.images
	}
}

// open opens an object for reading: an image, or the root of a directory.
// Errors: ErrMissing.
func (p *Pool) open(object Object) (*os.File, error) {
	if err := checkID(object.ID); err != nil {
		return nil, err
	}

	flag := os.O_RDONLY
	if object.Backing == volume.BackingDirectory {
		flag |= unix.O_DIRECTORY
	}

	file, err := tree.OpenIn(p.parentOf(object), object.fileName(), flag, 0)
	if err != nil {
		return nil, p.notFoundError(object.String(), err)
	}

	return file, nil
}

// ObjectPath returns the absolute path of an object, for messages.
func (p *Pool) ObjectPath(object Object) string {
	return filepath.Join(p.parentOf(object).Name(), object.fileName())
}

// renameFromScratch renames the object from scratch into place, durably. A directory that it
// replaces is then in scratch.
func (p *Pool) renameFromScratch(object Object) (err error) {
	scratch, err := p.scratch.Open(".")
	if err != nil {
		return err
	}
	defer scratch.Close()

	room, err := p.parentOf(object).Open(".")
	if err != nil {
		return err
	}
	defer room.Close()
	defer errdefs.Wrapf(&err, "put %s in place", object)

	name := object.fileName()

	err = unix.Renameat(int(scratch.Fd()), name, int(room.Fd()), name)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		// A directory replaces only an empty one.
		err = unix.Renameat2(int(scratch.Fd()), name, int(room.Fd()), name, unix.RENAME_EXCHANGE)
	}

	if err != nil {
		return err
	}

	return room.Sync()
}

// Stat returns the file information of a volume's image or directory with one system call, without
// following a symlink. Errors: ErrMissing.
func (p *Pool) Stat(id string, backing volume.Backing) (fs.FileInfo, error) {
	return p.lstat(Object{ID: id, Backing: backing})
}

func (p *Pool) lstat(object Object) (fs.FileInfo, error) {
	if err := checkID(object.ID); err != nil {
		return nil, err
	}

	info, err := p.parentOf(object).Lstat(object.fileName())
	if err != nil {
		return nil, p.notFoundError(object.String(), err)
	}

	return info, nil
}
