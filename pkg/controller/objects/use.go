package objects

import (
	"strings"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Node is the node service of the same process, as far as it says what uses volumes.
type Node interface {
	// Serves reports whether the node of this ID is the local one.
	Serves(nodeID string) bool
	// InUse returns where the volume is published, or else staged. An error means
	// that this is unknown.
	InUse(volumeID string) (path string, used bool, err error)
}

// Use says what uses a volume, by its record and the local node.
type Use struct {
	Node Node
	// NodeID is the id of the node on whose machine the process runs.
	NodeID string
	// Shared: every node mounts the pools.
	Shared bool
	// Attaches: the plugin advertises PUBLISH_UNPUBLISH_VOLUME.
	Attaches bool
}

// CheckNone returns FAILED_PRECONDITION while the volume is attached or in use.
func (u *Use) CheckNone(v *record.Volume) error {
	// Without the capability an earlier attachment could not be removed.
	if len(v.Attachments) > 0 && u.Attaches {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "volume %s is attached to %s; unpublish it there first",
			v.ID, strings.Join(v.NodeIDs(), ", "))
	}

	return u.CheckNoneHere(v)
}

// CheckNoneHere returns FAILED_PRECONDITION for a volume that is in use on this node, and
// InUse's error where that is unknown.
func (u *Use) CheckNoneHere(v *record.Volume) error {
	user, used, err := u.Node.InUse(v.ID)
	if err != nil || !used {
		return err
	}

	return errdefs.Errorf(errdefs.ErrFailedPrecondition, "volume %s is in use at %s; unpublish and unstage it first", v.ID, user)
}

// WrittenElsewhere returns in which way the volume may be written outside of this
// process, or "".
func (u *Use) WrittenElsewhere(v *record.Volume) string {
	if !u.Attaches {
		if u.Node.Serves(u.NodeID) && !u.Shared {
			return ""
		}

		return "maybe in use, as the driver gets no ControllerPublishVolume calls"
	}

	for _, attachment := range v.Attachments {
		reads := attachment.ReadOnly || attachment.Capability.ReaderOnly()
		own := u.Node.Serves(attachment.NodeID)

		if !reads && !own {
			return "attached to node " + attachment.NodeID
		}
	}

	return ""
}

// CheckGrowth is CheckGrowth of a volume's image. It passes over one that a guest may have: the
// host does not read that, and the next staging refuses what the guest has not grown.
func (u *Use) CheckGrowth(p *pool.Pool, v *record.Volume, bytes int64) error {
	if v.Parameters.DirectAssign && u.CheckNone(v) != nil {
		return nil //nolint:nilerr // a guest may have it
	}

	return CheckGrowth(p, v.Object(), bytes)
}
