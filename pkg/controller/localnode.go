package controller

import (
	"context"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/pkg/controller/changes"
	"github.com/touchstone-csi/touchstone/pkg/controller/copies"
)

// LocalNode is the node service of the same process, as the controller uses it. In
// split mode it is NoLocalNode: the controller then knows of the use of volumes by
// their attachments alone.
type LocalNode interface {
	copies.Node
	changes.Node

	// DescribeHolders names, for a message, what keeps the volume's image attached.
	DescribeHolders(volumeID string) string
	// Condition returns the node's cached condition of a volume, nil where it has none. It
	// neither probes nor waits.
	Condition(volumeID string) *health.Record
	// Unhealthy returns the cached conditions of all unhealthy volumes behind after, ordered
	// by id.
	Unhealthy(after string) []*health.Record
	// Truncated informs the node that the image of the volume is shorter than its record.
	Truncated(volumeID string)
	// Deleted informs the node that the volume does not exist any more.
	Deleted(volumeID string)
}

// NoLocalNode is the LocalNode of a controller without a node in its process: no
// volume is in use, every attribute is supported.
type NoLocalNode struct{}

// Serves returns false.
func (NoLocalNode) Serves(string) bool { return false }

// InUse returns that the volume is not in use.
func (NoLocalNode) InUse(string) (path string, used bool, err error) { return "", false, nil }

// DescribeHolders names none: they may be on any node.
func (NoLocalNode) DescribeHolders(string) string {
	return "unmount it in all mount namespaces of its nodes"
}

// Condition returns nil: each node reports its own view.
func (NoLocalNode) Condition(string) *health.Record { return nil }

// Unhealthy returns nil.
func (NoLocalNode) Unhealthy(string) []*health.Record { return nil }

// Truncated does nothing: a node finds it when it uses the volume.
func (NoLocalNode) Truncated(string) {}

// Deleted does nothing: the nodes find it in the pool.
func (NoLocalNode) Deleted(string) {}

// CheckSupported returns nil: each node rejects what it does not support.
func (NoLocalNode) CheckSupported(volume.Mutable) error { return nil }

// ApplyMutable does nothing: the nodes poll the pool for changes.
func (NoLocalNode) ApplyMutable(context.Context, string) error { return nil }

// CanFreeze returns false.
func (NoLocalNode) CanFreeze(string) bool { return false }

// WithFrozen calls within without freezing a filesystem.
func (NoLocalNode) WithFrozen(ctx context.Context, _ []string, within func(context.Context) error) error {
	return within(ctx)
}
