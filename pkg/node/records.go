package node

import (
	"github.com/touchstone-csi/touchstone/pkg/node/freeze"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// RegisterRecords registers the collections of a node in a store that is not open yet, to verify them.
func RegisterRecords(store *state.Store) {
	staged.NewVolumes(store)
	staged.NewInlineRecords(store)
	tuning.NewSchedulerRecords(store)
	tuning.NewLimitedRecords(store)
	freeze.NewRecords(store)
	fsck.NewRecords(store)
}
