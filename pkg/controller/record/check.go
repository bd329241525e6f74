package record

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

var (
	errRecord        = errors.New("it is no record that the driver writes")
	errContradiction = errors.New("it contradicts other records")
)

// checkID refuses an id that is not the record's key, or that no pool object could have.
func checkID(key, id string) error {
	if id != key || !volume.IsID(id) {
		return fmt.Errorf("%w: id %q must be a UUIDv7 and the record's key", errRecord, id)
	}

	return nil
}

func refuse(member string, value any) error {
	return fmt.Errorf("%w: %s %#v", errRecord, member, value)
}

func checkVolume(key string, v *Volume) error {
	switch {
	case v.Properties == nil:
		return refuse("properties", nil)
	case v.Name == "":
		return refuse("name", v.Name)
	case v.Phase != PhaseReady && !v.Phase.IsUnfinished():
		return refuse("phase", v.Phase)
	case v.CapacityBytes < 0:
		return refuse("capacityBytes", v.CapacityBytes)
	case len(v.Capabilities) == 0:
		return refuse("capabilities", v.Capabilities)
	}

	for _, each := range v.Capabilities {
		if err := each.Check(); err != nil {
			return err
		}
	}

	return cmp.Or(checkID(key, v.ID), v.Parameters.Check(), v.SizeLimit.Check(), v.Source.check(),
		checkAttachments(v.Attachments))
}

func checkAttachments(attachments []Attachment) error {
	for i, each := range attachments {
		again := slices.ContainsFunc(attachments[:i], func(other Attachment) bool { return other.NodeID == each.NodeID })

		if each.NodeID == "" || each.Slot < 0 || again {
			return fmt.Errorf("%w: attachment to node %q in slot %d", errRecord, each.NodeID, each.Slot)
		}

		if err := each.Capability.Check(); err != nil {
			return err
		}
	}

	return nil
}

func checkSnapshot(key string, s *Snapshot) error {
	switch {
	case !s.Phase.IsUnfinished() && !s.IsVisible():
		return refuse("phase", s.Phase)
	case s.Name == "" && s.GroupID == "":
		return refuse("name", s.Name)
	case s.GroupID != "" && !volume.IsID(s.GroupID):
		return refuse("groupId", s.GroupID)
	case !volume.IsID(s.SourceVolumeID):
		return refuse("sourceVolumeId", s.SourceVolumeID)
	case s.SizeBytes < 0 || s.AllocatedBytes < 0:
		return refuse("sizeBytes, allocatedBytes", []int64{s.SizeBytes, s.AllocatedBytes})
	}

	return cmp.Or(checkID(key, s.ID), s.Parameters.Check(), s.Consistency.Check())
}

func checkGroup(key string, g *Group) error {
	switch {
	case g.Name == "":
		return refuse("name", g.Name)
	case g.Phase != PhaseReady && !g.Phase.IsUnfinished():
		return refuse("phase", g.Phase)
	case len(g.SnapshotIDs) == 0 || len(g.SnapshotIDs) != len(g.SourceVolumeIDs):
		return refuse("snapshotIds", g.SnapshotIDs)
	}

	for _, ids := range [][]string{g.SnapshotIDs, g.SourceVolumeIDs} {
		for i, id := range ids {
			if !volume.IsID(id) || slices.Contains(ids[:i], id) {
				return refuse("snapshotIds, sourceVolumeIds", ids)
			}
		}
	}

	return cmp.Or(checkID(key, g.ID), g.Consistency.Check())
}

func (s Source) check() error {
	for _, id := range []string{s.SnapshotID, s.VolumeID} {
		if id != "" && !volume.IsID(id) {
			return refuse("source", s)
		}
	}

	if s.SnapshotID != "" && s.VolumeID != "" {
		return refuse("source", s)
	}

	return nil
}
