package record

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Attachment is one controller publication (CSI v1.13,
// ControllerPublishVolume).
type Attachment struct {
	NodeID     string            `json:"nodeId"`
	ReadOnly   bool              `json:"readOnly,omitempty"`
	Capability volume.Capability `json:"capability"`
	// Slot is the lowest number that was free on the node.
	Slot int `json:"slot"`
}

// context is all that the node needs to know.
func (a Attachment) PublishContext() map[string]string {
	return map[string]string{
		volume.KeySlot:     strconv.Itoa(a.Slot),
		volume.KeyReadOnly: strconv.FormatBool(a.ReadOnly),
	}
}

// answers returns ALREADY_EXISTS unless the attachment is what is wanted.
func (a Attachment) CheckSame(wanted Attachment) error {
	if a.ReadOnly == wanted.ReadOnly && a.Capability.Equal(wanted.Capability) {
		return nil
	}

	return rpc.Errorf(codes.AlreadyExists, "it is attached there with another capability or readonly flag; unpublish it first")
}

// admits returns FAILED_PRECONDITION when those who have the volume attached,
// or the newcomer, need it for themselves.
func (v *Volume) CheckAttachable(wanted Attachment) error {
	if len(v.Attachments) == 0 {
		return nil
	}

	alone := wanted.Capability.SingleNode() ||
		slices.ContainsFunc(v.Attachments, func(a Attachment) bool { return a.Capability.SingleNode() })
	if !alone {
		return nil
	}

	return rpc.Errorf(codes.FailedPrecondition, "it is attached to node %s with access mode %s; unpublish it there first",
		strings.Join(v.NodeIDs(), ", "), v.Attachments[0].Capability.Mode)
}
