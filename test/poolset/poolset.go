// Package poolset opens the pools of tests: all of them or none. internal/driver serves each by itself.
package poolset

import (
	"errors"

	"github.com/touchstone-csi/touchstone/internal/pool"
)

// Open opens the pools at the given directories, keyed by name. The directories are created where they
// are missing.
func Open(directories map[string]string) (*pool.Set, error) {
	set := pool.NewSet(directories)

	for name, directory := range directories {
		opened, err := pool.Open(name, directory, pool.Options{})
		if err != nil {
			return nil, errors.Join(err, set.Close())
		}

		set.Serve(opened)
	}

	return set, nil
}
