// Package plugin has what the services of one process share.
package plugin

import (
	"log/slog"

	"github.com/touchstone-csi/touchstone/pkg/capability"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/operation"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/state"
)

// Common is the part of their configuration that the Controller and the Node service of a process
// share.
type Common struct {
	// NodeID is the id of the node on whose machine the process runs.
	NodeID string
	// Segments is the topology of that machine; empty means that volumes are accessible from
	// everywhere.
	Segments map[string]string
	// Shared: every node mounts the pools.
	Shared bool
	// MaxVolumesPerNode is how many volumes may be attached to a node; 0 is no limit.
	MaxVolumesPerNode int64
	// MaxVolumeBytes is the largest volume; 0 is no limit but the pool's.
	MaxVolumeBytes int64
	// Capabilities are those that the plugin advertises.
	Capabilities capability.Set

	// Store keeps the records. It is not open yet while the services are built.
	Store *state.Store
	Pools *pool.Set
	// Operations serializes what changes an object.
	Operations *operation.Group
	// Admission decides what may be provisioned from the pools.
	Admission *pool.Admission
	// Health are the settings of the monitors. Storage is the monitor of the pools and the state;
	// nil is none.
	Health  health.Settings
	Storage *health.Monitor
	// Point is called at the points of operations; nil is not.
	Point operation.Hook
	Log   *slog.Logger
}
