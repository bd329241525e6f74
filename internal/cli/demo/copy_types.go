package demo

import (
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

// contentSource is a snapshot or volume from which a volume is created.
type contentSource interface {
	content() *csi.VolumeContentSource
	short() string
	// contentChecksum returns the checksum of the new volume's data.
	contentChecksum() string
}

func (v *volume) content() *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.publication.VolumeID},
	}}
}

func (v *volume) contentChecksum() string { return v.checksum }

// snapshot is a snapshot of the demo, alone or in a group.
type snapshot struct {
	undoStack

	name     string
	source   *volume
	id       string
	checksum string
}

func (s *snapshot) content() *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.id},
	}}
}

func (s *snapshot) contentChecksum() string { return s.checksum }

func (s *snapshot) short() string { return "snapshot=…" + endOfID(s.id) }

func (s *snapshot) request() *csi.CreateSnapshotRequest {
	return &csi.CreateSnapshotRequest{Name: s.name, SourceVolumeId: s.source.publication.VolumeID}
}

// groupSnapshot is a group snapshot of the demo.
type groupSnapshot struct {
	undoStack

	name    string
	id      string
	members []*snapshot
}

func (g *groupSnapshot) request() *csi.CreateVolumeGroupSnapshotRequest {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: g.name}
	for _, member := range g.members {
		request.SourceVolumeIds = append(request.SourceVolumeIds, member.source.publication.VolumeID)
	}

	return request
}

func (g *groupSnapshot) memberIDs() []string {
	ids := make([]string, len(g.members))
	for i, member := range g.members {
		ids[i] = member.id
	}

	return ids
}

// copySet contains all snapshots, and the volumes created from snapshots or volumes.
type copySet struct {
	// source stays mounted.
	source        *volume
	before, after *snapshot
	group         *groupSnapshot
	// restored is larger than its snapshot, cloned as large as its source; member is
	// restored from the group's other snapshot.
	restored, cloned, member *volume
}

// newCopySet returns the copies of two volumes.
func newCopySet(paths workPaths, mounted, other *volume) *copySet {
	a := &copySet{
		source: mounted,
		before: &snapshot{name: "demo-before", source: mounted},
		after:  &snapshot{name: "demo-after", source: mounted},
		group:  &groupSnapshot{name: "demo-group", members: []*snapshot{{source: mounted}, {source: other}}},
	}

	a.restored = newCopy(mounted, "restored", a.before, restoredBytes)
	a.cloned = newCopy(mounted, "cloned", mounted, mounted.grown)
	a.member = newCopy(other, "regrouped", a.group.members[1], other.grown)

	for _, v := range a.volumes() {
		v.setPaths(paths)
	}

	return a
}

func newCopy(like *volume, kind string, of contentSource, size int64) *volume {
	return &volume{
		kind: kind, size: size, source: of,
		publication: csiclient.Publication{Capability: like.publication.Capability},
	}
}

func (a *copySet) volumes() []*volume { return []*volume{a.restored, a.cloned, a.member} }

func (s *snapshot) check(answer *csi.Snapshot) error {
	switch {
	case answer.GetSourceVolumeId() != s.source.publication.VolumeID:
		return errNotItsSource
	case !answer.GetReadyToUse():
		return errNotReady
	case answer.GetSizeBytes() < s.source.capacity:
		return fmt.Errorf("%w: %s", errTooSmall, formatBytes(answer.GetSizeBytes()))
	default:
		return nil
	}
}

// matchMembers assigns the answer's snapshots to the members, and returns the time between
// the first and the last.
func (g *groupSnapshot) matchMembers(answer []*csi.Snapshot) (skew time.Duration, err error) {
	var first, last time.Time

	for _, member := range g.members {
		at := slices.IndexFunc(answer, func(s *csi.Snapshot) bool {
			return s.GetSourceVolumeId() == member.source.publication.VolumeID && s.GetGroupSnapshotId() == g.id
		})
		if at < 0 {
			return 0, fmt.Errorf("%w: of volume %s", errMemberMissing, member.source.publication.VolumeID)
		}

		member.id, member.checksum = answer[at].GetSnapshotId(), member.source.checksum

		if err := member.check(answer[at]); err != nil {
			return 0, err
		}

		taken := answer[at].GetCreationTime().AsTime()
		if first.IsZero() || taken.Before(first) {
			first = taken
		}

		if taken.After(last) {
			last = taken
		}
	}

	return last.Sub(first), nil
}
