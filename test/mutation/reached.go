package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// reached are the functions with mutants that a command's tests call, also in processes that they
// start.
type reached map[position]bool

// baselines are what tests did without a mutant.
type baselines struct {
	mutex  sync.Mutex
	limits map[command]time.Duration
	calls  map[command]reached
	// failing fail without a mutant.
	failing map[command]bool
	// changed are the functions of each mutant of the common build.
	changed map[string][]position
}

func (b *baselines) add(tests command, took time.Duration, calls reached) {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	if b.limits == nil {
		b.limits, b.calls = map[command]time.Duration{}, map[command]reached{}
	}

	b.limits[tests], b.calls[tests] = 3*took+slack, calls
}

// leaveOut has tests that fail without a mutant be run for none.
func (b *baselines) leaveOut(tests command) {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	if b.failing == nil {
		b.failing = map[command]bool{}
	}

	b.failing[tests] = true
}

// limit is how long tests may run.
func (b *baselines) limit(tests command) time.Duration {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	return cmp.Or(b.limits[tests], testTimeout)
}

// mayReach reports whether tests may call a function that the mutant changes: false if they did not
// without one, or fail without one.
func (b *baselines) mayReach(tests command, mutant string) bool {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	calls, known := b.calls[tests]

	return !b.failing[tests] && (!known || len(b.changed[mutant]) == 0 || slices.ContainsFunc(b.changed[mutant], func(p position) bool { return calls[p] }))
}

// reachedName is the file for the functions of a package.
func reachedName(dir string) string { return strings.ReplaceAll(dir, "/", "-") }

// recordReached calls test with a directory in which calls are recorded, and returns them.
func (s *switched) recordReached(test func(dir string) (verdict, error)) (reached, verdict, error) {
	dir, err := os.MkdirTemp("", "reached-")
	if err != nil {
		return nil, verdict{}, fmt.Errorf("make a directory: %w", err)
	}

	// Tests may run as another user.
	err = os.Chmod(dir, 0o755)

	for pkg, functions := range s.functions {
		name := filepath.Join(dir, reachedName(pkg))
		err = errors.Join(err, os.WriteFile(name, make([]byte, len(functions)), 0o600), os.Chmod(name, 0o666))
	}

	if err != nil {
		return nil, verdict{}, errors.Join(err, os.RemoveAll(dir))
	}

	v, err := test(dir)
	calls := reached{}

	for pkg := range s.functions {
		recorded, readErr := os.ReadFile(filepath.Join(dir, reachedName(pkg)))
		err = errors.Join(err, readErr)

		for i, called := range recorded {
			if called != 0 {
				calls[position{dir: pkg, index: i}] = true
			}
		}
	}

	return calls, v, errors.Join(err, os.RemoveAll(dir))
}
