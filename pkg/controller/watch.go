package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// healthView is whose the controller's conditions are.
const healthView = "controller"

// Watch is the controller's view of the health of the volumes.
type Watch struct {
	catalog *catalog.Catalog
	node    LocalNode
	// storage is the monitor of the pools; nil is none.
	storage *health.Monitor
	Monitor *health.Monitor
	// probes limits the concurrent probes of each pool.
	probes *pool.Limiter
}

func newWatch(config *Config, records *catalog.Catalog) *Watch {
	w := &Watch{catalog: records, node: config.LocalNode, storage: config.Storage, probes: pool.NewLimiter()}
	w.Monitor = health.New(health.Config{
		Settings: config.Health, Name: healthView, List: w.monitored, Probe: w.probe,
		Concern: w.affectedBy, Sources: config.Sources, Log: config.Log,
	})

	return w
}

// conditionOf returns the controller's own view of a volume. It is nil for a volume that was
// not probed yet: it has just been created.
func (w *Watch) conditionOf(id string) *health.Record {
	known, _ := w.Monitor.Get(id)

	return known
}

// SuspectPool has all volumes of a pool probed, because it failed or is served again.
func (w *Watch) SuspectPool(name string) {
	var ids []string

	for v := range w.catalog.ReadyVolumes("") {
		if v.Parameters.Pool == name {
			ids = append(ids, v.ID)
		}
	}

	w.Monitor.Suspect(ids...)
}

// Reports describe all volumes with their conditions as the controller sees them.
func (w *Watch) Reports() []health.VolumeReport {
	reports := []health.VolumeReport{}

	for v := range w.catalog.ReadyVolumes("") {
		report := health.VolumeReport{
			ID: v.ID, Name: v.Name, Pool: v.Parameters.Pool, Backing: v.Parameters.Backing,
			CapacityBytes: v.CapacityBytes, Conditions: w.conditionOf(v.ID).Reports(healthView),
		}
		if v.Parameters.Backing.HasFilesystem() && !v.IsRaw() {
			report.FSType = v.Parameters.FSType
		}

		reports = append(reports, report)
	}

	return reports
}

func (w *Watch) monitored() []string {
	ids := make([]string, 0, w.catalog.Volumes.Len())
	for v := range w.catalog.ReadyVolumes("") {
		ids = append(ids, v.ID)
	}

	return ids
}

// affectedBy derives the volume from the name of its image or directory in the pool.
func (w *Watch) affectedBy(event health.Event) []string {
	if event.Kind != health.FileChanged && event.Kind != health.FileWritten {
		return nil
	}

	id := strings.TrimSuffix(filepath.Base(event.Path), layout.ImageSuffix)
	if _, ok := w.catalog.ReadyVolume(id); !ok {
		return nil
	}

	return []string{id}
}

// probe observes the volume's object in the pool.
func (w *Watch) probe(ctx context.Context, id string) (health.Observation, error) {
	for {
		v, ok := w.catalog.ReadyVolume(id)
		if !ok {
			return health.Observation{}, health.ErrGone
		}

		if w.unreachable(v.Parameters.Pool) {
			return w.unreachableObservation(v), nil
		}

		evadedFor, err := w.observe(ctx, v)
		if err != nil && !errors.Is(err, pool.ErrMissing) && !errors.Is(err, pool.ErrTruncated) {
			return health.Observation{}, err
		}

		entries := storageFindings(v, evadedFor, err)

		// Bytes are there before a record says so, and for as long as it does: only
		// what a record said then and says now has to be there.
		if now, _ := w.catalog.Volumes.Get(id); now == v || len(entries) == 0 {
			if len(entries) > 0 && entries[0].Reason == health.BackingFileTruncated {
				w.node.Truncated(id)
			}

			return health.Observation{Entries: entries, Again: evadedFor}, nil
		}
	}
}

// unreachableObservation returns the last observation of a volume whose pool does not
// answer, and adds that: a probe would only time out.
func (w *Watch) unreachableObservation(v *record.Volume) health.Observation {
	entries := []health.Entry{health.NewEntry(health.ProbeTimedOut, fmt.Sprintf("its pool %q can't be reached", v.Parameters.Pool))}

	if known := w.conditionOf(v.ID); known != nil {
		entries = append(entries, slices.DeleteFunc(slices.Clone(known.Entries),
			func(entry health.Entry) bool { return entry.Reason == health.ProbeTimedOut })...)
	}

	return health.Observation{Entries: entries}
}

// observe observes the volume's pool object, and returns for how long it is reported that files of a
// directory have evaded its size limit. A semaphore for each pool limits the goroutines that block where a
// pool does not answer. Errors: pool.ErrMissing, pool.ErrTruncated.
func (w *Watch) observe(ctx context.Context, v *record.Volume) (evadedFor time.Duration, err error) {
	p, err := w.catalog.PoolOf(v)
	if err != nil {
		return 0, err
	}

	release, err := w.probes.Acquire(ctx, p.Name())
	if err != nil {
		return 0, fmt.Errorf("volume %s: %w", v.ID, err)
	}
	defer release()

	err = p.Backing(v.Parameters.Backing).EnsureSize(v.ID, v.CapacityBytes, v.SizeLimit == volume.SizeByQuota)

	return p.Directories.LimitEvadedFor(v.ID), err
}

func (w *Watch) unreachable(poolName string) bool {
	if w.storage == nil {
		return false
	}

	known, _ := w.storage.Get(health.PoolSubject(poolName))

	return known.Has(health.PoolUnreachable)
}

// storageFindings returns what observe has found of the volume's pool object, by its results.
func storageFindings(v *record.Volume, evadedFor time.Duration, failure error) []health.Entry {
	switch {
	case errors.Is(failure, pool.ErrMissing):
		return []health.Entry{health.LostBacking(v.Parameters.Backing,
			fmt.Sprintf("is not in pool %q; put it back, or restore a backup", v.Parameters.Pool))}
	case errors.Is(failure, pool.ErrTruncated):
		return []health.Entry{health.NewEntry(health.BackingFileTruncated,
			fmt.Sprintf("its image in pool %q is shorter than the volume's %d bytes", v.Parameters.Pool, v.CapacityBytes))}
	case evadedFor > 0:
		return []health.Entry{health.NewEntry(health.SizeLimitEvaded, pool.LimitEvaded)}
	default:
		return nil
	}
}
