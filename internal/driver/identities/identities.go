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

// Record is the identity of a pool. It is never changed.
type Record struct {
	ID string `json:"id"`
}

// Register registers the collection in a store that is not open yet.
func Register(store *state.Store) *state.Collection[*Record] {
	return state.Register(store, Collection, state.WithCheck(func(_ string, record *Record) error {
		if err := uuid.Validate(record.ID); err != nil {
			return fmt.Errorf("id %q: %w", record.ID, err)
		}

		return nil
	}))
}
