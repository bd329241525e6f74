package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// ErrUnknownPool is returned for a name that the state has no identity for.
var ErrUnknownPool = errors.New("no such pool in the state")

// ForgetPool removes the identity of a pool from the state: the next start of the driver then takes
// the pool that it finds under that name. Errors: those of state.Verify and state.Store.Open, and
// ErrUnknownPool.
func ForgetPool(ctx context.Context, stateDir, name string) error {
	// Otherwise a mistyped directory would become a new, empty state.
	if _, err := os.Stat(stateDir); err != nil {
		return fmt.Errorf("state-dir: %w", err)
	}

	store := state.New(stateDir, state.Options{Owner: "touchstone state forget-pool"})
	identities := state.Register[*pool.IdentityRecord](store, pool.IdentitiesCollection)

	found, err := state.Verify(stateDir, nil) //nolint:contextcheck // it is short
	if err != nil {
		return err
	}

	// The other collections stay as they are.
	for name := range found.Records {
		if name != pool.IdentitiesCollection {
			state.Register[json.RawMessage](store, name)
		}
	}

	err = store.Open(ctx)
	if err == nil {
		err = store.Update(ctx, func(tx *state.Tx) error {
			if _, known := identities.In(tx).Get(name); !known {
				return fmt.Errorf("%w: %q in %s", ErrUnknownPool, name, stateDir)
			}

			return identities.In(tx).Delete(name)
		})
	}

	return errors.Join(err, store.Close())
}
