package pool

import (
	"fmt"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// Ephemeral returns a set with, inside each pool, a pool of the same name for the
// volumes that live and die with one publication. They are known to their node
// only: listings of a pool, which look for unknown objects, must not see them. Such a
// pool fails, is served again and is closed with the one that it is in.
func (s *Set) Ephemeral() *Set { return &Set{parent: s} }

// Ephemeral returns the pool inside this one, opened when it is first asked for.
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
