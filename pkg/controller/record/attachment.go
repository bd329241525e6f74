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

// PublishContext returns the publish_context: all that the node needs.
func (a Attachment) PublishContext() map[string]string {
	return map[string]string{
		volume.KeySlot:     strconv.Itoa(a.Slot),
		volume.KeyReadOnly: strconv.FormatBool(a.ReadOnly),
	}
}

// CheckSame returns ALREADY_EXISTS unless both attachments have the same arguments.
func (a Attachment) CheckSame(wanted Attachment) error {
	if a.ReadOnly == wanted.ReadOnly && a.Capability.Equal(wanted.Capability) {
		return nil
	}

	return rpc.Errorf(codes.AlreadyExists, "it is attached there with another capability or readonly flag; unpublish it first")
}

// CheckAttachable returns FAILED_PRECONDITION if an existing attachment or the wanted
// one has an access mode for a single node.
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
