package controller

import (
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// Names lists the objects of a kind that a CO can see, ordered by id.
func (s *Service) Names(kind names.Kind) []names.Object {
	var listed []names.Object

	add := func(visible bool, id, name string) bool {
		if visible {
			listed = append(listed, names.Object{ID: id, Name: name})
		}

		return true
	}

	switch kind {
	case names.Volume:
		s.volumes.Ascend("", func(id string, v *record.Volume) bool { return add(v.Phase == record.PhaseReady, id, v.Name) })
	case names.Snapshot:
		s.snapshots.Ascend("", func(id string, found *record.Snapshot) bool { return add(found.IsVisible(), id, found.Name) })
	case names.Group:
		s.groups.Ascend("", func(id string, g *record.Group) bool { return add(g.Phase == record.PhaseReady, id, g.Name) })
	}

	return listed
}
