package record

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"unique"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// Volume is the record of a volume. It is immutable once it is in the store: a change stores a modified copy.
type Volume struct {
	// Properties is never nil. Records with equal ones share them: a change replaces the pointer.
	*Properties

	ID   string `json:"id"`
	Name string `json:"name"`
	// CapacityBytes is the volume's capacity, a multiple of RoundBytes.
	CapacityBytes int64 `json:"capacityBytes"`
	// Source is the content source; zero is none.
	Source      Source       `json:"source,omitzero"`
	Attachments []Attachment `json:"attachments,omitempty"`
	Phase       Phase        `json:"phase"`
	// Pristine means that the volume was never used, so its bytes are all
	// zero and it can be made again if a power failure took its name.
	Pristine bool `json:"pristine,omitempty"`
	// DirectByClaim: the claim requested direct assignment; the request's parameters do
	// not.
	DirectByClaim bool `json:"directByClaim,omitempty"`
	// SizeLimit is whether the directory of the volume was made with a size limit; empty for an image,
	// and for a volume of an earlier release.
	SizeLimit volume.SizeLimit `json:"sizeLimit,omitempty"`
}

// Properties are what all volumes of one StorageClass have in common.
type Properties struct {
	Parameters volume.Parameters `json:"parameters"`
	// Capabilities are those of the CreateVolumeRequest.
	Capabilities []volume.Capability `json:"capabilities"`
	// Mutable are the mutable parameters. The pool has a copy for the nodes.
	Mutable volume.Mutable `json:"mutable,omitzero"`
	// Segments is the topology from which the volume can be reached; empty
	// means from everywhere.
	Segments Segments `json:"segments,omitempty"`
}

// Phase is the state of a volume, snapshot or group. An operation of several steps is
// recorded before the first, so that a crash leaves no orphan.
type Phase string

// The phases.
const (
	// PhaseCreating: not acknowledged; the next start removes its object from
	// the pool.
	PhaseCreating Phase = "creating"
	// PhaseReady: acknowledged.
	PhaseReady Phase = "ready"
	// PhaseDeleting: deleted for the CO; the pool may still have the object.
	PhaseDeleting Phase = "deleting"
)

// IsUnfinished reports whether the object does not exist for the CO, so that a start removes it.
func (p Phase) IsUnfinished() bool { return p == PhaseCreating || p == PhaseDeleting }

// NameIndex is the index that makes CreateVolume idempotent by name.
const NameIndex = "name"

// indexed returns the name of an object as the index has it: it is free once the deletion is certain.
func (p Phase) indexed(name string) string {
	if p == PhaseDeleting {
		return ""
	}

	return name
}

// Clone returns a copy that may be changed, but for its Properties.
func (v *Volume) Clone() *Volume {
	changed := *v
	changed.Attachments = slices.Clone(v.Attachments)

	return &changed
}

// SetMutable replaces the mutable parameters of a clone.
func (v *Volume) SetMutable(wanted volume.Mutable) {
	changed := *v.Properties
	changed.Mutable, v.Properties = wanted, &changed
}

// AttachmentTo returns the attachment to a node, false without one.
func (v *Volume) AttachmentTo(nodeID string) (Attachment, bool) {
	at := slices.IndexFunc(v.Attachments, func(a Attachment) bool { return a.NodeID == nodeID })
	if at < 0 {
		return Attachment{}, false
	}

	return v.Attachments[at], true
}

// NodeIDs returns the nodes to which the volume is attached.
func (v *Volume) NodeIDs() []string {
	var ids []string
	for _, attachment := range v.Attachments {
		ids = append(ids, attachment.NodeID)
	}

	return ids
}

// Context returns the volume_context.
func (v *Volume) Context() map[string]string {
	context := v.Parameters.Context()
	if v.IsRaw() {
		// Its user makes its filesystem, if any.
		delete(context, volume.KeyFSType)
	}

	if !v.Source.IsZero() {
		context[volume.KeyCopy] = strconv.FormatBool(true)
	}

	if v.SizeLimit != "" {
		context[volume.KeySizeLimit] = string(v.SizeLimit)
	}

	return context
}

// HasContext reports whether a volume_context is the volume's. The CO may have added
// keys.
func (v *Volume) HasContext(given map[string]string) bool {
	parameters, err := volume.ParseContext(given)
	if _, named := given[volume.KeyFSType]; !named && v.IsRaw() {
		parameters.FSType = v.Parameters.FSType
	}

	own := v.Context()

	return err == nil && parameters == v.Parameters && given[volume.KeyCopy] == own[volume.KeyCopy] &&
		given[volume.KeySizeLimit] == own[volume.KeySizeLimit]
}

// CapabilityDifferences names in what a capability differs from the volume's; it is empty if the
// volume was created with that one. Both may leave the filesystem open or name it.
func (v *Volume) CapabilityDifferences(wanted volume.Capability) string {
	first := ""

	for _, has := range v.Capabilities {
		differences := volume.Use{Capability: has}.Differences(volume.Use{Capability: wanted}, v.Parameters.FSType)
		if differences == "" {
			return ""
		}

		first = cmp.Or(first, differences)
	}

	return first
}

// IsRaw reports whether the volume was created for block access only.
func (v *Volume) IsRaw() bool {
	return !slices.ContainsFunc(v.Capabilities, func(c volume.Capability) bool { return !c.Block })
}

// Object returns the volume's pool object.
func (v *Volume) Object() pool.Object { return pool.Object{ID: v.ID, Backing: v.Parameters.Backing} }

// IsThick reports whether the volume's space is allocated at creation.
func (v *Volume) IsThick() bool { return v.Parameters.Provisioning == volume.Thick }

// ApplyClaim returns the given parameters with the direct assignment that the volume's
// claim requested, which requests do not contain.
func (v *Volume) ApplyClaim(given volume.Parameters) volume.Parameters {
	given.DirectAssign = given.DirectAssign || v.DirectByClaim

	return given
}

// Interner lets records share equal values in memory, which saves more than half of the memory
// of 100,000 volumes. It is safe for concurrent use.
type Interner struct {
	// properties has those of plain volumes by what distinguishes them. There are few, since a
	// request cannot choose the key freely.
	properties sync.Map // plainProperties → *Properties
}

// plainProperties are those of a volume with one capability, without mount flags and group, without
// mkfs options and without mutable parameters.
type plainProperties struct {
	parameters   volume.Parameters
	block        bool
	fsType, mode string
	segments     Segments
}

// Intern replaces parts of a record, which is not shared yet, by equal ones. The key is that of the
// record in its collection.
func (s *Interner) Intern(key string, v *Volume) {
	if v.ID == key {
		v.ID = key
	}

	v.Phase = unique.Make(v.Phase).Value()

	if plain, ok := v.plain(); ok {
		shared, loaded := s.properties.Load(plain)
		if !loaded {
			shared, _ = s.properties.LoadOrStore(plain, v.Properties)
		}

		v.Properties, _ = shared.(*Properties)
	}
}

func (p *Properties) plain() (plainProperties, bool) {
	if len(p.Capabilities) != 1 || p.Parameters.MkfsOptions != "" || !p.Mutable.IsZero() {
		return plainProperties{}, false
	}

	only := p.Capabilities[0]
	if len(only.MountFlags) > 0 || only.MountGroup != "" || only.FSType != "" && !slices.Contains(volume.FSTypes(), only.FSType) {
		return plainProperties{}, false
	}

	return plainProperties{p.Parameters, only.Block, only.FSType, only.Mode, p.Segments}, true
}

// Source is the content source of a volume; at most one of the two is set.
type Source struct {
	SnapshotID string `json:"snapshotId,omitempty"`
	VolumeID   string `json:"volumeId,omitempty"`
}

// ContentSource returns the source as a CSI message; nil is none.
func (s Source) ContentSource() *csi.VolumeContentSource {
	switch {
	case s.SnapshotID != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.SnapshotID},
		}}
	case s.VolumeID != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: s.VolumeID},
		}}
	default:
		return nil
	}
}

// IsZero reports whether there is no source.
func (s Source) IsZero() bool { return s == Source{} }

// String is for messages.
func (s Source) String() string {
	if s.IsZero() {
		return "nothing"
	}

	return cmp.Or(s.SnapshotID, s.VolumeID)
}
