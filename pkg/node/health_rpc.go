package node

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/pool"
	"github.com/touchstone-csi/touchstone/pkg/rpc"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// patience is how long a call waits for what may hang.
const patience = time.Second

// NodeGetVolumeHealth answers with what is known of a volume that is in use here,
// is being staged, or is in a pool of this node (CSI v1.13, NodeGetVolumeHealth).
// The paths say nothing that is not known.
func (s *Service) NodeGetVolumeHealth(
	ctx context.Context, request *csi.NodeGetVolumeHealthRequest,
) (*csi.NodeGetVolumeHealthResponse, error) {
	id := request.GetVolumeId()
	if err := rpc.CheckVolumeID(id); err != nil {
		return nil, rpc.Status(err)
	}

	for field, path := range map[string]string{
		"staging_target_path": request.GetStagingTargetPath(), "volume_publish_path": request.GetVolumePublishPath(),
	} {
		if path != "" && !filepath.IsAbs(path) {
			return nil, rpc.Invalid("%s: %q is not absolute", field, path)
		}
	}

	record, err := s.health(ctx, id)
	if err != nil {
		return nil, rpc.Status(err)
	}

	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: record.VolumeHealth(id)}, nil
}

// health returns what is known of a volume, nil for one that nothing is the
// matter with.
func (s *Service) health(ctx context.Context, id string) (*health.Record, error) {
	if record, ok := s.monitor.Get(id); ok {
		return record, nil
	}

	if _, ok := s.subject(id); !ok {
		return s.unused(ctx, id)
	}

	// What is just being staged or published is not abnormal.
	if s.ops.Busy(operationsOn(id)) {
		return nil, nil //nolint:nilnil // documented: nothing is the matter
	}

	record, err := s.afresh(ctx, id)
	if errors.Is(err, health.ErrGone) {
		return s.unused(ctx, id)
	}

	return record, err
}

// afresh returns what a look finds that begins now. One that takes too long has
// found that.
func (s *Service) afresh(ctx context.Context, id string) (*health.Record, error) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, patience)

	defer cancel()

	s.monitor.Suspect(id)

	record, err := s.monitor.Await(bounded, id, began)
	if err == nil || errors.Is(err, health.ErrGone) || ctx.Err() != nil {
		return record, err
	}

	if record, ok := s.monitor.Get(id); ok {
		return record, nil
	}

	return recordOf(id, unseen()), nil
}

func unseen() health.Entry {
	return health.NewEntry(health.ProbeTimedOut, "it could not be looked at in time; see the health of the node's storage")
}

func recordOf(id string, entries ...health.Entry) *health.Record {
	return &health.Record{ID: id, Entries: entries}
}

// unused returns what is known of a volume that is not in use here. NOT_FOUND
// unless a pool has it.
func (s *Service) unused(ctx context.Context, id string) (*health.Record, error) {
	known, _ := s.subject(id)
	l := &look{service: s, subject: known}
	found, err := l.inPool(ctx)

	l.told()

	switch {
	case found:
		return recordOf(id, l.entries...), nil
	case err == nil:
		return nil, rpc.Errorf(codes.NotFound, "volume %s is not in a pool of this node", id)
	case known.check != nil:
		return recordOf(id, append(l.entries, unseen())...), nil
	default:
		return nil, rpc.Errorf(codes.Unavailable, "volume %s is not in use here and may be in a pool that does not answer: %w", id, err)
	}
}

// inPool says whether a pool has the volume, and finds how often it is checked; an
// error says that it could not be seen whether one has it.
func (l *look) inPool(ctx context.Context) (bool, error) {
	if !volume.IsID(l.subject.id) {
		return false, nil
	}

	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	var failures []error

	for _, name := range l.service.pools.Names() {
		found, err := l.service.inPool(ctx, name, l.subject)
		if found.there {
			l.period = found.period

			return true, nil
		}

		failures = append(failures, err)
	}

	return false, errors.Join(failures...)
}

// kept is what a pool has of a volume.
type kept struct {
	there  bool
	period time.Duration
}

func (s *Service) inPool(ctx context.Context, name string, of subject) (kept, error) {
	if err := s.reachable(name); err != nil {
		return kept{}, err
	}

	place, err := s.pools.Get(name)
	if err != nil {
		return kept{}, err
	}

	leave, err := s.gates.enter(ctx, name)
	if err != nil {
		return kept{}, err
	}

	return bounded(ctx, func() (kept, error) {
		defer leave()

		_, err := place.Stat(of.id, volume.BackingImage)
		if errors.Is(err, pool.ErrMissing) {
			_, err = place.Stat(of.id, volume.BackingDirectory)
		}

		switch {
		case errors.Is(err, pool.ErrMissing):
			return kept{}, nil
		case err == nil && of.check != nil:
			return kept{there: true, period: s.checker.PeriodOf(of.check)}, nil
		default:
			return kept{there: err == nil}, err
		}
	})
}

// bounded returns when ask does or ctx ends, whichever comes first.
func bounded[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}

	answered := make(chan answer, 1)

	go func() {
		value, err := ask()
		answered <- answer{value, err}
	}()

	select {
	case got := <-answered:
		return got.value, got.err
	case <-ctx.Done():
		var none T

		return none, context.Cause(ctx) //nolint:wrapcheck // the callers name the object
	}
}

// NodeGetStorageHealth answers with what is known of the pools and of the state
// store (CSI v1.13, NodeGetStorageHealth).
func (s *Service) NodeGetStorageHealth(
	context.Context, *csi.NodeGetStorageHealthRequest,
) (*csi.NodeGetStorageHealthResponse, error) {
	if s.config.Storage == nil {
		return &csi.NodeGetStorageHealthResponse{}, nil
	}

	return &csi.NodeGetStorageHealthResponse{BackendHealth: health.StorageHealth(s.config.Storage.All())}, nil
}
