package record

import (
	"slices"
	"strconv"

	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// The names of the collections that records of volumes and snapshots are in.
const (
	VolumesCollection   = "volumes"
	SnapshotsCollection = "snapshots"
)

// Volume is what the store knows about one volume. A record is never changed
// once it is in the store: a change puts a copy in its place.
type Volume struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// CapacityBytes is the size that was promised, a multiple of RoundBytes.
	CapacityBytes int64             `json:"capacityBytes"`
	Parameters    volume.Parameters `json:"parameters"`
	// DirectByClaim says that it was the claim which asked for direct assignment:
	// requests do not say it again.
	DirectByClaim bool `json:"directByClaim,omitempty"`
	// Capabilities are those that CreateVolume asked for.
	Capabilities []volume.Capability `json:"capabilities"`
	// Mutable is what CreateVolume and ControllerModifyVolume have set. The pool
	// holds a copy, for the nodes.
	Mutable volume.Mutable `json:"mutable,omitzero"`
	// Source is what the volume was made of; zero is nothing.
	Source Source `json:"source,omitzero"`
	// Segments is the topology from which the volume can be reached; empty
	// means from everywhere.
	Segments    Segments     `json:"segments,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
	Phase       Phase        `json:"phase"`
	// Pristine means that the volume was never attached, so its bytes are all
	// zero and it can be made again if a power failure took its name.
	Pristine bool `json:"pristine,omitempty"`
}

// Phase is where a volume is in its life. What takes more than one step is
// written down before the first, so that a crash leaves nothing behind.
type Phase string

// The phases.
const (
	// PhaseCreating: not acknowledged; what is in the pool goes at the next
	// start.
	PhaseCreating Phase = "creating"
	// PhaseReady: acknowledged.
	PhaseReady Phase = "ready"
	// PhaseDeleting: gone for every CO; the pool may still hold its bytes.
	PhaseDeleting Phase = "deleting"
)

// NameIndex is the index that makes CreateVolume idempotent by name.
const NameIndex = "name"

// VolumeName frees the name of a volume as soon as its deletion is certain.
func VolumeName(v *Volume) string {
	if v.Phase == PhaseDeleting {
		return ""
	}

	return v.Name
}

func (v *Volume) Clone() *Volume {
	changed := *v
	changed.Attachments = slices.Clone(v.Attachments)

	return &changed
}

func (v *Volume) AttachmentTo(nodeID string) (Attachment, bool) {
	at := slices.IndexFunc(v.Attachments, func(a Attachment) bool { return a.NodeID == nodeID })
	if at < 0 {
		return Attachment{}, false
	}

	return v.Attachments[at], true
}

func (v *Volume) NodeIDs() []string {
	if len(v.Attachments) == 0 {
		return nil
	}

	ids := make([]string, len(v.Attachments))
	for i, attachment := range v.Attachments {
		ids[i] = attachment.NodeID
	}

	return ids
}

// context is the volume_context.
func (v *Volume) Context() map[string]string {
	context := v.Parameters.Context()
	if v.IsRaw() {
		// It has the filesystem that somebody makes on it, if any.
		delete(context, volume.KeyFSType)
	}

	if !v.Source.IsZero() {
		context[volume.KeyCopy] = strconv.FormatBool(true)
	}

	return context
}

// HasContext says whether a volume_context is the volume's. The CO may have added
// to it.
func (v *Volume) HasContext(given map[string]string) bool {
	parameters, err := volume.ParseContext(given)
	if _, told := given[volume.KeyFSType]; !told && v.IsRaw() {
		parameters.FSType = v.Parameters.FSType
	}

	return err == nil && parameters == v.Parameters && given[volume.KeyCopy] == v.Context()[volume.KeyCopy]
}

// raw says that no filesystem was asked for.
func (v *Volume) IsRaw() bool {
	return !slices.ContainsFunc(v.Capabilities, func(c volume.Capability) bool { return !c.Block })
}

func (v *Volume) Object() pool.Object { return pool.Object{ID: v.ID, Backing: v.Parameters.Backing} }

func (v *Volume) IsThick() bool { return v.Parameters.Provisioning == volume.Thick }

// meant returns the parameters that a request with the given ones means for a
// volume whose claim has asked for direct assignment: no request says that.
func (v *Volume) ApplyClaim(given volume.Parameters) volume.Parameters {
	given.DirectAssign = given.DirectAssign || v.DirectByClaim

	return given
}
