package pool

import (
	"io/fs"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Stat tells of a volume's image or directory, for one system call: of what has
// its name now, be it a symlink, and not of what that leads to. Errors:
// ErrMissing.
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
