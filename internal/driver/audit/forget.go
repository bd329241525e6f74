package audit

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// ErrUnknownPool is returned for a name that the state has no identity for.
var ErrUnknownPool = errors.New("no such pool in the state")

// ForgetPool removes the identity of a pool from the state: the next start of the driver then takes
// the pool that it finds under that name. Errors: those of state.Store.Open, and
// ErrUnknownPool.
func ForgetPool(ctx context.Context, stateDir, name string) (err error) {
	// Otherwise a mistyped directory would become a new, empty state.
	if _, err := os.Stat(stateDir); err != nil {
		return fmt.Errorf("state-dir: %w", err)
	}

	store, identities := newStore(stateDir, "forget-pool")

	defer func() { err = errors.Join(err, store.Close()) }()

	if err := store.Open(ctx); err != nil {
		return err
	}

	return store.Update(ctx, func(tx *state.Tx) error {
		if _, known := identities.In(tx).Get(name); !known {
			return fmt.Errorf("%w: %q in %s", ErrUnknownPool, name, stateDir)
		}

		return identities.In(tx).Delete(name)
	})
}
