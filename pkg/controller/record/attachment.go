package record

import (
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// Attachment is one controller publication (CSI v1.13,
// ControllerPublishVolume).
type Attachment struct {
	NodeID     string            `json:"nodeId"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	Capability volume.Capability `json:"capability"`
	// Slot is the lowest number that was free on the node.
	Slot int `json:"slot"`
	// UnsyncedIn is the boot of the machine in which a pristine image was not synced for the attachment:
	// NodeStageVolume replaces it durably by one with a filesystem. It is empty if the image was synced.
	UnsyncedIn string `json:"unsyncedIn,omitempty"`
}

// PublishContext returns the publish_context: all that the node needs.
func (a Attachment) PublishContext() map[string]string {
	return map[string]string{
		volume.KeySlot:     strconv.Itoa(a.Slot),
		volume.KeyReadOnly: strconv.FormatBool(a.ReadOnly),
	}
}

// IsFilledAtStaging reports whether NodeStageVolume replaces the image of a pristine volume, durably, before
// the first byte is written by its user.
func (v *Volume) IsFilledAtStaging(attached volume.Capability) bool {
	return v.Parameters.Backing.HasFilesystem() && !v.Parameters.DirectAssign && !attached.Block && attached.SingleNode()
}

// UnsyncedIn returns the boot of the machine in which the volume was attached without a sync of its image,
// empty if it was synced.
func (v *Volume) UnsyncedIn() string {
	if len(v.Attachments) == 0 {
		return ""
	}

	return v.Attachments[0].UnsyncedIn // no other node has it
}

// CheckSame returns ALREADY_EXISTS unless both attachments of the volume have the same arguments;
// a capability may name the default filesystem or leave it open.
func (v *Volume) CheckSame(a, wanted Attachment) error {
	differences := volume.Use{Capability: a.Capability, ReadOnly: a.ReadOnly}.Differences(
		volume.Use{Capability: wanted.Capability, ReadOnly: wanted.ReadOnly}, v.Parameters.FSType)
	if differences == "" {
		return nil
	}

	return errdefs.Errorf(errdefs.ErrAlreadyExists, "it is attached there with another capability or readonly flag: %s; unpublish it first",
		differences)
}

// CheckAttachable returns FAILED_PRECONDITION if an existing attachment or the wanted
// one has an access mode for a single node, or for a single writer and both would write.
func (v *Volume) CheckAttachable(wanted Attachment) error {
	if len(v.Attachments) == 0 {
		return nil
	}

	alone := wanted.Capability.SingleNode() ||
		slices.ContainsFunc(v.Attachments, func(a Attachment) bool { return a.Capability.SingleNode() })
	if alone {
		return errdefs.Errorf(errdefs.ErrFailedPrecondition, "it is attached to node %s with access mode %s; unpublish it there first",
			strings.Join(v.NodeIDs(), ", "), v.Attachments[0].Capability.Mode)
	}

	for _, other := range v.Attachments {
		if other.writes() && wanted.writes() && (other.singleWriter() || wanted.singleWriter()) {
			return errdefs.Errorf(errdefs.ErrFailedPrecondition,
				"it is attached for writing to node %s, and %s allows one writer; publish it read-only, or unpublish it there first",
				other.NodeID, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER)
		}
	}

	return nil
}

func (a Attachment) writes() bool { return !a.ReadOnly && !a.Capability.ReaderOnly() }

func (a Attachment) singleWriter() bool {
	return a.Capability.AccessMode() == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
}
