// Package identities has the collection of the state with the identity of each pool, by the pool's
// name.
package identities

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Collection is the collection's name.
const Collection = "pools"

// Identity is the identity of a pool. It is never changed.
type Identity struct {
	ID string `json:"id"`
}

// Register registers the collection in a store that is not open yet.
func Register(store *state.Store) *state.Collection[*Identity] {
	return state.Register(store, Collection, state.WithCheck(func(_ string, identity *Identity) error {
		if err := uuid.Validate(identity.ID); err != nil {
			return fmt.Errorf("id %q: %w", identity.ID, err)
		}

		return nil
	}))
}
