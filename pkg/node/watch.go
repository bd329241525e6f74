package node

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// WatchMutable applies the modifications that a controller in another process makes to
// volumes in use here, until ctx ends.
func (s *Service) WatchMutable(ctx context.Context) {
	watcher := &tuning.Watcher{
		Pools: s.config.Pools, Modified: s.checker.Changed, Log: s.config.Log,
		InUse: func() []string {
			var ids []string

			for _, record := range s.volumes.Staged.All() {
				if record.Parameters.Backing.HasDevice() {
					ids = append(ids, record.VolumeID)
				}
			}

			return ids
		},
		IsInUse: func(volumeID string) bool {
			_, used := s.volumes.Staged.Get(volumeID)

			return used
		},
		Apply: s.applyMutable, Clock: clock.RealClock{},
	}
	watcher.Run(ctx)
}

// applyMutable is LocalNode.ApplyMutable as an operation of its own.
func (s *Service) applyMutable(ctx context.Context, volumeID string) error {
	return s.own.start(ctx, volumeID, "apply mutable parameters", func(ctx context.Context) error {
		return s.local.ApplyMutable(ctx, volumeID)
	})
}
