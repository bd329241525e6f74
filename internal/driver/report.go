package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/health"
)

var errStarting = errors.New("the driver is starting")

// view has the health of volumes in one view.
type view struct {
	name    string
	monitor *health.Monitor
	volumes func() []health.VolumeReport
}

// report builds the health report from the caches. It waits only for the first relist
// after a start.
func (d *Driver) report(ctx context.Context) (health.Report, error) {
	for _, each := range d.components.views {
		if err := each.monitor.AwaitRelist(ctx); err != nil {
			return health.Report{}, fmt.Errorf("wait for the first probes: %w", err)
		}
	}

	report := health.Report{
		Driver: d.config.DriverName, Version: d.config.Version, Node: d.config.NodeID, Mode: string(d.config.Mode), At: time.Now(),
		Registered: d.components.registered(),
		Sources:    map[string][]health.SourceStatus{}, Storage: d.components.storageReports(d.config.StateDir),
		Changes: d.components.config.Health.History.Changes(),
	}

	if d.lab.reports != nil {
		report.Faults = d.lab.reports()
	}

	lists := make([][]health.VolumeReport, 0, len(d.components.views))

	for _, each := range d.components.views {
		report.Sources[each.name] = append([]health.SourceStatus{}, each.monitor.Sources()...)
		lists = append(lists, each.volumes())
	}

	report.Volumes = mergeVolumes(lists...)

	for i, each := range report.Changes {
		byID := func(v health.VolumeReport, id string) int { return strings.Compare(v.ID, id) }
		if at, found := slices.BinarySearchFunc(report.Volumes, each.Subject, byID); found {
			report.Changes[i].Name = report.Volumes[at].Name
		}
	}

	return report, nil
}

// reportWhenReady is report for HTTP requests, which do not pass the gate.
func (d *Driver) reportWhenReady(ctx context.Context) (health.Report, error) {
	if !d.gate.opened() {
		return health.Report{}, errStarting
	}

	return d.report(ctx)
}

func (r *components) storageReports(stateDir string) []health.StorageReport {
	reports := make([]health.StorageReport, 0, len(r.pools.Names())+1)

	for _, name := range r.pools.Names() {
		known, _ := r.storage.Get(health.PoolSubject(name))
		report := health.StorageReport{Name: name, Kind: "pool", Path: r.pools.Path(name), Conditions: known.Reports("storage")}

		if known != nil && known.Usage != nil {
			report.Bytes = &known.Usage.Bytes
		}

		reports = append(reports, report)
	}

	known, _ := r.storage.Get(health.StateSubject)

	return append(reports, health.StorageReport{
		Name: health.StateSubject, Kind: health.StateSubject, Path: stateDir, Conditions: known.Reports("storage"),
	})
}

// mergeVolumes merges the views' reports of each volume, ordered by id. Empty fields of
// one view are filled from the next.
func mergeVolumes(lists ...[]health.VolumeReport) []health.VolumeReport {
	merged := make(map[string]health.VolumeReport)

	for _, list := range lists {
		for _, each := range list {
			if known, ok := merged[each.ID]; ok {
				each = mergeVolume(known, each)
			}

			merged[each.ID] = each
		}
	}

	volumes := make([]health.VolumeReport, 0, len(merged))
	for _, id := range slices.Sorted(maps.Keys(merged)) {
		volumes = append(volumes, merged[id])
	}

	return volumes
}

func mergeVolume(first, second health.VolumeReport) health.VolumeReport {
	first.Name, first.Pool = cmp.Or(first.Name, second.Name), cmp.Or(first.Pool, second.Pool)
	first.FSType, first.Backing = cmp.Or(first.FSType, second.FSType), cmp.Or(first.Backing, second.Backing)
	// The controller's is the volume's capacity, the node's the attached size.
	first.CapacityBytes = cmp.Or(second.CapacityBytes, first.CapacityBytes)
	first.Usage, first.Check = cmp.Or(first.Usage, second.Usage), cmp.Or(first.Check, second.Check)
	first.Staged, first.AccessMode = cmp.Or(first.Staged, second.Staged), cmp.Or(first.AccessMode, second.AccessMode)

	if len(first.Published) == 0 {
		first.Published = second.Published
	}

	// Not slices.Concat, which makes nil of two lists without conditions, and that null in JSON.
	first.Conditions = append(slices.Clip(first.Conditions), second.Conditions...)
	slices.SortStableFunc(first.Conditions, func(a, b health.ConditionReport) int {
		return cmp.Or(cmp.Compare(b.Status, a.Status), strings.Compare(string(a.Reason), string(b.Reason)))
	})

	return first
}
