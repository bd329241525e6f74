package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
)

// healthView is whose the controller's conditions are.
const healthView = "controller"

// Health is what the controller knows of the health of all volumes.
func (s *Service) Health() *health.Monitor { return s.monitor }

// ControllerGetVolumeHealth returns the cached health of one volume's pool object
// (CSI v1.13, ControllerGetVolumeHealth). It waits for no probe.
func (s *Service) ControllerGetVolumeHealth(
	ctx context.Context, request *csi.ControllerGetVolumeHealthRequest,
) (*csi.ControllerGetVolumeHealthResponse, error) {
	found, err := s.catalog.FindVolume(request.GetVolumeId())
	if err != nil {
		return nil, err
	}

	if err := s.monitor.AwaitRelist(ctx); err != nil {
		return nil, err
	}

	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: s.reportedCondition(found.ID).VolumeHealth(found.ID)}, nil
}

// ControllerListVolumeHealth lists the unhealthy volumes, ordered by id (CSI v1.13,
// ControllerListVolumeHealth). The token is the last id that was returned; it remains
// valid when that volume recovers or is deleted.
func (s *Service) ControllerListVolumeHealth(
	ctx context.Context, request *csi.ControllerListVolumeHealthRequest,
) (*csi.ControllerListVolumeHealthResponse, error) {
	listed, err := newPage[*csi.VolumeHealth]("ControllerListVolumeHealth", request)
	if err != nil {
		return nil, err
	}

	if err := s.monitor.AwaitRelist(ctx); err != nil {
		return nil, err
	}

	for _, unhealthy := range s.reportedUnhealthy(request.GetStartingToken()) {
		if _, err := s.catalog.FindVolume(unhealthy.ID); err != nil {
			continue // it was deleted since
		}

		if !listed.add(unhealthy.ID, unhealthy.VolumeHealth(unhealthy.ID)) {
			break
		}
	}

	return &csi.ControllerListVolumeHealthResponse{Entries: listed.entries, NextToken: listed.nextToken}, nil
}

// conditionOf returns the controller's own view of a volume. It is nil for a volume that was
// not probed yet: it has just been created.
func (s *Service) conditionOf(id string) *health.Record {
	known, _ := s.monitor.Get(id)

	return known
}

// SuspectPool has all volumes of a pool probed, because it failed or is served again.
func (s *Service) SuspectPool(name string) {
	var ids []string

	s.catalog.EachReadyVolume(func(v *record.Volume) {
		if v.Parameters.Pool == name {
			ids = append(ids, v.ID)
		}
	})

	s.monitor.Suspect(ids...)
}

// Reports describe all volumes with their conditions as the controller sees them.
func (s *Service) Reports() []health.VolumeReport {
	reports := []health.VolumeReport{}

	s.catalog.EachReadyVolume(func(v *record.Volume) {
		report := health.VolumeReport{
			ID: v.ID, Name: v.Name, Pool: v.Parameters.Pool, Backing: string(v.Parameters.Backing),
			CapacityBytes: v.CapacityBytes, Conditions: s.conditionOf(v.ID).Reports(healthView),
		}
		if v.Parameters.Backing == volume.BackingImage && !v.IsRaw() {
			report.FSType = v.Parameters.FSType
		}

		reports = append(reports, report)
	})

	return reports
}

func (s *Service) newMonitor() *health.Monitor {
	return health.New(health.Config{
		Settings: s.config.Health, Name: healthView, List: s.monitored, Probe: s.probe,
		Concern: s.volumesAffectedBy, Sources: s.config.Sources, Log: s.config.Log,
	})
}

func (s *Service) monitored() []string {
	ids := make([]string, 0, s.catalog.Volumes.Len())
	s.catalog.EachReadyVolume(func(v *record.Volume) { ids = append(ids, v.ID) })

	return ids
}

// volumesAffectedBy derives the volume from the name of its image or directory in the pool.
func (s *Service) volumesAffectedBy(event health.Event) []string {
	if event.Kind != health.FileChanged && event.Kind != health.FileWritten {
		return nil
	}

	id := strings.TrimSuffix(filepath.Base(event.Path), layout.ImageSuffix)
	if _, ok := s.catalog.ReadyVolume(id); !ok {
		return nil
	}

	return []string{id}
}

// probe observes the volume's object in the pool.
func (s *Service) probe(ctx context.Context, id string) (health.Observation, error) {
	for {
		v, ok := s.catalog.ReadyVolume(id)
		if !ok {
			return health.Observation{}, health.ErrGone
		}

		if s.unreachable(v.Parameters.Pool) {
			return s.unreachableObservation(v), nil
		}

		seen, err := s.observe(ctx, v)
		if err != nil && !errors.Is(err, pool.ErrMissing) {
			return health.Observation{}, err
		}

		entries := storageFindings(v, seen, err == nil)

		// Bytes are there before a record says so, and for as long as it does: only
		// what a record said then and says now has to be there.
		if now, _ := s.catalog.Volumes.Get(id); now == v || len(entries) == 0 {
			if len(entries) > 0 && entries[0].Reason == health.BackingFileTruncated {
				s.config.LocalNode.Truncated(id)
			}

			return health.Observation{Entries: entries, Again: seen.evadedFor}, nil
		}
	}
}

// unreachableObservation returns the last observation of a volume whose pool does not
// answer, and adds that: a probe would only time out.
func (s *Service) unreachableObservation(v *record.Volume) health.Observation {
	entries := []health.Entry{health.NewEntry(health.ProbeTimedOut, fmt.Sprintf("its pool %q can't be reached", v.Parameters.Pool))}

	if known := s.conditionOf(v.ID); known != nil {
		entries = append(entries, slices.DeleteFunc(slices.Clone(known.Entries),
			func(entry health.Entry) bool { return entry.Reason == health.ProbeTimedOut })...)
	}

	return health.Observation{Entries: entries}
}

// stored is what was observed of a volume's pool object.
type stored struct {
	sizeBytes int64
	// evadedFor is for how long it is reported that files of a directory have evaded its size limit.
	evadedFor time.Duration
}

// observe observes the volume's pool object, and has the size limit of a directory count all files in
// it. A semaphore for each pool limits the goroutines that block where a pool does not answer.
func (s *Service) observe(ctx context.Context, v *record.Volume) (stored, error) {
	p, err := s.catalog.PoolOf(v)
	if err != nil {
		return stored{}, err
	}

	release, err := s.probes.Acquire(ctx, p.Name())
	if err != nil {
		return stored{}, fmt.Errorf("volume %s: %w", v.ID, err)
	}
	defer release()

	size, err := p.Size(v.Object())
	if err == nil && v.Parameters.Backing == volume.BackingDirectory {
		err = keepLimit(v, p)
	}

	return stored{sizeBytes: size, evadedFor: p.LimitEvadedFor(v.ID)}, err
}

// keepLimit has the size limit of the volume's directory count all files in it, and sets the limit again
// that an interruption has left unset.
func keepLimit(v *record.Volume, p *pool.Pool) error {
	_, limited, err := p.DirectoryQuota(v.ID)
	if err != nil || limited || v.SizeLimit != volume.SizeByQuota {
		return err
	}

	return p.LimitDirectory(v.ID, v.CapacityBytes)
}

func (s *Service) unreachable(poolName string) bool {
	if s.config.Storage == nil {
		return false
	}

	known, _ := s.config.Storage.Get(health.PoolSubject(poolName))

	return known.Has(health.PoolUnreachable)
}

// storageFindings compares what was observed of the volume's pool object with its record.
func storageFindings(v *record.Volume, seen stored, there bool) []health.Entry {
	switch {
	case !there && v.Parameters.Backing == volume.BackingDirectory:
		return []health.Entry{health.NewEntry(health.VolumeNotFound,
			fmt.Sprintf("its directory is not in pool %q; put it back, or restore a backup", v.Parameters.Pool))}
	case !there:
		return []health.Entry{health.NewEntry(health.BackingFileMissing,
			fmt.Sprintf("its image is not in pool %q; put it back, or restore a backup", v.Parameters.Pool))}
	case v.Parameters.Backing == volume.BackingImage && seen.sizeBytes < v.CapacityBytes:
		return []health.Entry{health.NewEntry(health.BackingFileTruncated,
			fmt.Sprintf("its image in pool %q is shorter than the volume's %d bytes", v.Parameters.Pool, v.CapacityBytes))}
	case seen.evadedFor > 0:
		return []health.Entry{health.NewEntry(health.SizeLimitEvaded, pool.LimitEvaded)}
	default:
		return nil
	}
}
