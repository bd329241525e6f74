package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

var (
	// ErrUnavailable is returned for a pool that cannot be used at present; it wraps the cause.
	ErrUnavailable = errdefs.New(errdefs.ErrUnavailable, "the pool is unavailable")
	// ErrUnknown is returned if no pool of that name is configured.
	ErrUnknown = errors.New("no such pool")

	errOpening = errors.New("it is still being opened")
)

// Set holds the pools of one driver by name. Each is independent of the others: it is served, or it
// has failed and Get returns why. It is safe for concurrent use.
type Set struct {
	members map[string]*member
	// parent is the set whose pools contain those of this one; nil unless it is of ephemeral
	// volumes.
	parent *Set

	mu      sync.Mutex
	changed chan struct{}
}

// member is one pool of a set. Set.mu guards it.
type member struct {
	// path is the configured directory, or the one that was opened last.
	path string
	// served is nil while the pool has failed, for the reason in failure.
	served  *Pool
	failure error
}

// NewSet returns a set of pools, by name, that are all yet to be opened.
func NewSet(directories map[string]string) *Set {
	s := &Set{members: make(map[string]*member, len(directories)), changed: make(chan struct{})}
	for name, directory := range directories {
		s.members[name] = &member{path: directory, failure: errOpening}
	}

	return s
}

// OpenSet opens the pools at the given directories, keyed by name. The
// directories are created where they are missing.
func OpenSet(directories map[string]string, options ...Option) (*Set, error) {
	set := NewSet(directories)

	for name, directory := range directories {
		opened, err := Open(name, directory, options...)
		if err != nil {
			return nil, errors.Join(err, set.Close())
		}

		set.Serve(opened)
	}

	return set, nil
}

// SetOf returns a set of one pool that belongs to its caller.
func SetOf(opened *Pool) *Set {
	set := NewSet(map[string]string{opened.name: opened.path})
	set.Serve(opened)

	return set
}

// Get returns the pool of that name. Errors: ErrUnavailable, ErrUnknown.
func (s *Set) Get(name string) (*Pool, error) {
	if s.parent != nil {
		outer, err := s.parent.Get(name)
		if err != nil {
			return nil, err
		}

		return outer.Ephemeral()
	}

	found, ok := s.members[name]
	if !ok {
		return nil, fmt.Errorf("pool %q: %w", name, ErrUnknown)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if found.served == nil {
		return nil, fmt.Errorf("pool %q at %s: %w: %w; it is opened again by itself as soon as that is repaired",
			name, found.path, ErrUnavailable, found.failure)
	}

	return found.served, nil
}

// Has reports whether a pool of that name is configured, available or not.
func (s *Set) Has(name string) bool {
	if s.parent != nil {
		return s.parent.Has(name)
	}

	_, ok := s.members[name]

	return ok
}

// Path returns the directory of a pool, also of one that has failed.
func (s *Set) Path(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()

	if found, ok := s.members[name]; ok {
		return found.path
	}

	return ""
}

// Failure returns why a pool cannot be used, nil for one that is served.
func (s *Set) Failure(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if found, ok := s.members[name]; ok && found.served == nil {
		return found.failure
	}

	return nil
}

// Served returns the pools that have not failed, in the order of their names.
func (s *Set) Served() []*Pool {
	var served []*Pool

	for _, name := range s.Names() {
		if found, err := s.Get(name); err == nil {
			served = append(served, found)
		}
	}

	return served
}

// Names returns the names of the pools in order.
func (s *Set) Names() []string {
	if s.parent != nil {
		return s.parent.Names()
	}

	return slices.Sorted(maps.Keys(s.members))
}

// Default returns the name of the pool of a volume that names none: the one
// called default or, without such, the first.
func (s *Set) Default() string {
	if names := s.Names(); !s.Has(volume.DefaultPool) && len(names) > 0 {
		return names[0]
	}

	return volume.DefaultPool
}

// Serve makes the pool available. It must have the name of a member.
func (s *Set) Serve(opened *Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	found := s.members[opened.name]
	found.served, found.path, found.failure = opened, opened.path, nil
	s.notify()
}

// Fail makes the pool unavailable for a reason, until Serve. It closes the pool, so that its
// filesystem can be unmounted; operations under way fail.
func (s *Set) Fail(name string, reason error) error {
	s.mu.Lock()
	found := s.members[name]
	opened := found.served
	found.served, found.failure = nil, reason
	s.notify()
	s.mu.Unlock()

	if opened == nil {
		return nil
	}

	return opened.Close()
}

// Changed returns a channel that is closed when a pool is served, or fails.
func (s *Set) Changed() <-chan struct{} {
	if s.parent != nil {
		return s.parent.Changed()
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	return s.changed
}

// notify closes the channel of Changed. The caller holds mu.
func (s *Set) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

var errClosed = errors.New("the driver is ending")

// Close closes the pools' file descriptors.
func (s *Set) Close() error {
	failures := make([]error, 0, len(s.members))
	for name := range s.members {
		failures = append(failures, s.Fail(name, errClosed))
	}

	return errors.Join(failures...)
}
