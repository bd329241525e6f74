package node

import (
	"slices"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Reports describe the volumes that the node knows, in the order of their ids,
// with their conditions as the node sees them, usage and checks: those in use,
// and those that were checked here.
func (s *Service) Reports() []health.VolumeReport {
	ids := s.subjects()
	for _, check := range s.checker.All() {
		ids = append(ids, check.VolumeID)
	}

	slices.Sort(ids)

	ids = slices.Compact(ids)
	reports := make([]health.VolumeReport, 0, len(ids))

	for _, id := range ids {
		reports = append(reports, s.report(id))
	}

	return reports
}

func (s *Service) report(id string) health.VolumeReport {
	found, _ := s.subject(id)
	known := s.evidence.of(id)
	report := health.VolumeReport{ID: id, Usage: known.usage, Check: s.checker.Report(found.check)}

	if found.check != nil {
		report.Pool, report.FSType, report.Backing = found.check.Pool, found.check.FSType, string(volume.BackingImage)
	}

	if use := found.use; use != nil {
		report.Pool, report.Backing, report.Staged = use.Parameters.Pool, string(use.Parameters.Backing), use.StagingPath
		if use.IsImage() && !use.Capability.Block {
			report.FSType = use.FSType()
		}

		for _, publication := range use.Publications {
			report.Published = append(report.Published, publication.TargetPath)
		}
	}

	if known.attached != nil {
		report.CapacityBytes = known.attached.deviceBytes
	}

	record, _ := s.monitor.Get(id)
	report.Conditions = record.Reports(viewName)

	if record != nil && record.Usage != nil {
		report.Usage = record.Usage
	}

	return report
}
