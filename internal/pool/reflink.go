package pool

import (
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// Reflinks reports whether images are copied at one point in time: whether the filesystem can share
// blocks between files (FICLONE).
func (p *Pool) Reflinks() bool { return p.reflinks }

// probeReflinks clones a small file. A pool that cannot be written holds no copies.
func (p *Pool) probeReflinks() bool {
	supported, err := filecopy.Reflinks(filepath.Join(p.path, layout.Scratch))

	return err == nil && supported
}
