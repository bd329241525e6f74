package pool

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/pkg/pool/filecopy"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/pool/tree"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Reflinks reports whether images are copied at one point in time: whether the filesystem can share
// blocks between files (FICLONE).
func (p *Pool) Reflinks() bool { return p.reflinks }

// probeReflinks clones a small file. A pool that cannot be written holds no copies.
func (p *Pool) probeReflinks() bool {
	source, err := p.createUnnamed()
	if err != nil {
		return false
	}
	defer source.Close()

	target, err := p.createUnnamed()
	if err != nil {
		return false
	}
	defer target.Close()

	// Some filesystems clone only empty files, so write a byte. If the filesystem is full, an empty
	// file decides.
	_, _ = source.WriteAt([]byte("reflink"), 0)

	return filecopy.Clone(target, source) == nil
}

// createUnnamed creates a file that is removed when it is closed.
func (p *Pool) createUnnamed() (*os.File, error) {
	file, err := p.scratch.OpenFile(".", unix.O_TMPFILE|os.O_RDWR, imageMode)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return file, err
	}

	id, err := volume.NewID()
	if err != nil {
		return nil, err
	}

	if file, err = tree.OpenIn(p.scratch, id+layout.ImageSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, imageMode); err != nil {
		return nil, err
	}

	return file, p.discardScratch(id)
}
