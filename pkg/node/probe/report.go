package probe

import (
	"slices"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
)

// Reports returns the conditions, usage and checks of the volumes that are in use here or
// were checked here, sorted by their ids.
func (p *Prober) Reports() []health.VolumeReport {
	ids := p.ids()
	for _, check := range p.config.Checker.All() {
		ids = append(ids, check.VolumeID)
	}

	slices.Sort(ids)

	ids = slices.Compact(ids)
	reports := make([]health.VolumeReport, 0, len(ids))

	for _, id := range ids {
		reports = append(reports, p.report(id))
	}

	return reports
}

func (p *Prober) report(id string) health.VolumeReport {
	view, _ := p.view(id)
	last := p.observations.last(id)
	report := health.VolumeReport{ID: id, Usage: last.usage, Check: p.config.Checker.Report(view.check)}

	if view.check != nil {
		report.Pool, report.FSType, report.Backing = view.check.Pool, view.check.FSType, volume.BackingImage
	}

	if record := view.volume; record != nil {
		report.Pool, report.Backing, report.Staged = record.Parameters.Pool, record.Parameters.Backing, record.StagingPath
		report.AccessMode, report.MountFlags = record.Capability.Mode, len(record.Capability.MountFlags)

		if record.Parameters.Backing.HasFilesystem() && !record.Capability.Block {
			report.FSType = record.FSType()
		}

		for _, each := range record.Persistent {
			report.Persistent = append(report.Persistent, each.TargetPath)
		}

		for _, each := range slices.Concat(record.Publications, record.Persistent) {
			if slices.Contains(report.Published, each.TargetPath) {
				continue
			}

			report.Published = append(report.Published, each.TargetPath)

			if each.ReadOnly {
				report.ReadOnly = append(report.ReadOnly, each.TargetPath)
			}
		}
	}

	if last.attached != nil {
		report.CapacityBytes = last.attached.deviceBytes
	}

	condition, _ := p.monitor.Get(id)
	report.Conditions = condition.Reports(monitorName)

	if condition != nil && condition.Usage != nil && (report.Usage == nil || !condition.Usage.At.Before(report.Usage.At)) {
		report.Usage = condition.Usage
	}

	return report
}
