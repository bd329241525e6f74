package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Set holds the pools of one driver by name.
type Set struct {
	pools map[string]*Pool
}

// OpenSet opens the pools at the given directories, keyed by name. The
// directories are created where they are missing.
func OpenSet(directories map[string]string, options ...Option) (*Set, error) {
	set := &Set{pools: make(map[string]*Pool, len(directories))}

	for name, directory := range directories {
		opened, err := Open(name, directory, options...)
		if err != nil {
			return nil, errors.Join(err, set.Close())
		}

		set.pools[name] = opened
	}

	return set, nil
}

// Get returns the pool of that name.
func (s *Set) Get(name string) (*Pool, bool) {
	found, ok := s.pools[name]

	return found, ok
}

// Names returns the names of the pools in order.
func (s *Set) Names() []string { return slices.Sorted(maps.Keys(s.pools)) }

// Default returns the name of the pool of a volume that names none: the one
// called default or, without such, the first.
func (s *Set) Default() string {
	if _, ok := s.pools[volume.DefaultPool]; ok || len(s.pools) == 0 {
		return volume.DefaultPool
	}

	return s.Names()[0]
}

// Take makes this process be the controller of all the pools. Errors: ErrTaken.
func (s *Set) Take(owner string) error {
	for _, name := range s.Names() {
		if err := s.pools[name].Take(owner); err != nil {
			return err
		}
	}

	return nil
}

// Hold keeps controllers off all the pools until Close. Errors: ErrTaken.
func (s *Set) Hold() error {
	for _, name := range s.Names() {
		if err := s.pools[name].Hold(); err != nil {
			return err
		}
	}

	return nil
}

// Writable returns nil when every pool takes new files, else the reasons.
func (s *Set) Writable(ctx context.Context) error {
	var reasons []error

	for _, name := range s.Names() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("look at pool %q: %w", name, err)
		}

		reasons = append(reasons, s.pools[name].writable())
	}

	return errors.Join(reasons...)
}

// Close gives the pools' file descriptors back.
func (s *Set) Close() error {
	failures := make([]error, 0, len(s.pools))
	for _, each := range s.pools {
		failures = append(failures, each.Close())
	}

	return errors.Join(failures...)
}
