package pool

import (
	"fmt"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// Ephemeral returns a set with, inside each pool, a pool of the same name for ephemeral volumes.
// Only their node knows these volumes, so listings of the outer pool, which search for orphans, do
// not include them. Such a pool fails, is served again and is closed with the outer one.
func (s *Set) Ephemeral() *Set { return &Set{parent: s} }

// Ephemeral returns the pool inside this one and opens it at the first call.
func (p *Pool) Ephemeral() (*Pool, error) {
	p.ephemeralMu.Lock()
	defer p.ephemeralMu.Unlock()

	if p.ephemeral == nil {
		inherit := func(inner *Pool) { inner.hostImage, inner.removals = p.hostImage, p.removals }

		opened, err := Open(p.name, filepath.Join(p.path, layout.Ephemeral), inherit)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}

		p.ephemeral = opened
	}

	return p.ephemeral, nil
}
