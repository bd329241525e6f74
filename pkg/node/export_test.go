package node

import (
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
)

// CheckedVolumes is the node as its checks see it.
func (s *Service) CheckedVolumes() fsck.Volumes { return checkedVolumes{s} }

// ProbedVolumes is the node as its probes see it.
func (s *Service) ProbedVolumes() probe.Volumes { return probedVolumes{s} }
