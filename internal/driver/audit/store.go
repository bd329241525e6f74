package audit

import (
	"github.com/touchstone-csi/touchstone/internal/driver/identities"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// NewStore returns a store of the directory that is not open, for a subcommand of `touchstone state`.
// It has the collections of the driver in every mode: what it refuses, the driver refuses at its start.
func NewStore(directory, command string) *state.Store {
	store, _ := newStore(directory, command)

	return store
}

func newStore(directory, command string) (*state.Store, *state.Collection[*identities.Identity]) {
	store := state.New(directory, state.Options{Owner: "touchstone state " + command})
	record.Register(store, record.Options{})
	node.RegisterRecords(store)

	return store, identities.Register(store)
}
