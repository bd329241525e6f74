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
	*members

	// inner means that the pools are those for ephemeral volumes, inside of the members.
	inner bool
}

// members are the pools of a set.
type members struct {
	byName map[string]*member

	mu      sync.Mutex
	changed chan struct{}
}

// member is one pool of a set. members.mu guards it.
type member struct {
	// path is the configured directory, or the one that was opened last.
	path string
	// served is nil while the pool has failed, for the reason in failure.
	served  *Pool
	failure error
}

// NewSet returns a set of pools, by name, that are all yet to be opened.
func NewSet(directories map[string]string) *Set {
	all := &members{byName: make(map[string]*member, len(directories)), changed: make(chan struct{})}
	for name, directory := range directories {
		all.byName[name] = &member{path: directory, failure: errOpening}
	}

	return &Set{members: all}
}

// Get returns the pool of that name. Errors: ErrUnavailable, ErrUnknown.
func (s *Set) Get(name string) (*Pool, error) {
	found, err := s.get(name)
	if err != nil || !s.inner {
		return found, err
	}

	return found.Ephemeral()
}

func (m *members) get(name string) (*Pool, error) {
	found, ok := m.byName[name]
	if !ok {
		return nil, fmt.Errorf("pool %q: %w", name, ErrUnknown)
	}

	m.mu.Lock()
	defer m.mu.Unlock()

	if found.served == nil {
		return nil, fmt.Errorf("pool %q at %s: %w: %w; it is opened again by itself as soon as that is repaired",
			name, found.path, ErrUnavailable, found.failure)
	}

	return found.served, nil
}

// Has reports whether a pool of that name is configured, available or not.
func (m *members) Has(name string) bool {
	_, ok := m.byName[name]

	return ok
}

// Path returns the directory of a pool, also of one that has failed.
func (m *members) Path(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()

	if found, ok := m.byName[name]; ok {
		return found.path
	}

	return ""
}

// Failure returns why a pool cannot be used, nil for one that is served.
func (m *members) Failure(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()

	if found, ok := m.byName[name]; ok && found.served == nil {
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
func (m *members) Names() []string { return slices.Sorted(maps.Keys(m.byName)) }

// Default returns the name of the pool of a volume that names none: the one
// called default or, without such, the first.
func (m *members) Default() string {
	if names := m.Names(); !m.Has(volume.DefaultPool) && len(names) > 0 {
		return names[0]
	}

	return volume.DefaultPool
}

// Serve makes the pool available. It must have the name of a member.
func (m *members) Serve(opened *Pool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	found := m.byName[opened.name]
	found.served, found.path, found.failure = opened, opened.path, nil
	m.notify()
}

// Fail makes the pool unavailable for a reason, until Serve. It closes the pool, so that its
// filesystem can be unmounted; operations under way fail.
func (m *members) Fail(name string, reason error) error {
	m.mu.Lock()
	found := m.byName[name]
	opened := found.served
	found.served, found.failure = nil, reason
	m.notify()
	m.mu.Unlock()

	if opened == nil {
		return nil
	}

	return opened.Close()
}

// Changed returns a channel that is closed when a pool is served, or fails.
func (m *members) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.changed
}

// notify closes the channel of Changed. The caller holds mu.
func (m *members) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
}

var errClosed = errors.New("the driver is ending")

// Close closes the pools' file descriptors. Inner pools are closed with the outer ones.
func (s *Set) Close() error {
	if s.inner {
		return nil
	}

	failures := make([]error, 0, len(s.byName))
	for name := range s.byName {
		failures = append(failures, s.Fail(name, errClosed))
	}

	return errors.Join(failures...)
}
