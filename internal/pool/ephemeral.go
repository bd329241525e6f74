package pool

import (
	"fmt"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// ephemeral is the pool inside another one, once it is used.
type ephemeral struct {
	mu     sync.Mutex
	opened *Pool
}

// Ephemeral returns a set with, inside each pool, a pool of the same name for ephemeral volumes.
// Only their node knows these volumes, so listings of the outer pool, which search for orphans, do
// not include them. Such a pool fails, is served again and is closed with the outer one.
func (s *Set) Ephemeral() *Set { return &Set{members: s.members, inner: true} }

// Ephemeral returns the pool inside this one and opens it at the first call.
func (p *Pool) Ephemeral() (*Pool, error) {
	p.ephemeral.mu.Lock()
	defer p.ephemeral.mu.Unlock()

	if p.ephemeral.opened == nil {
		opened, err := p.openEphemeral()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}

		p.ephemeral.opened = opened
	}

	return p.ephemeral.opened, nil
}

func (p *Pool) openEphemeral() (*Pool, error) {
	directory, err := p.makeSubdirectory(layout.Ephemeral)
	if err != nil {
		return nil, err
	}

	return open(identification{label: label{p.name, directory.Name(), directory}},
		Options{HostImage: p.options.HostImage, Removals: p.options.Removals})
}

// withEphemeral returns the pool, and the one inside of it if that is in use.
func (p *Pool) withEphemeral() []*Pool {
	p.ephemeral.mu.Lock()
	defer p.ephemeral.mu.Unlock()

	if p.ephemeral.opened == nil {
		return []*Pool{p}
	}

	return []*Pool{p, p.ephemeral.opened}
}

func (e *ephemeral) close() error {
	e.mu.Lock()
	defer e.mu.Unlock()

	if e.opened == nil {
		return nil
	}

	opened := e.opened
	e.opened = nil

	return opened.Close()
}
