package node

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// WatchAttributes applies the modifications that a controller in another process makes to
// volumes in use here, until ctx ends.
func (s *Service) WatchAttributes(ctx context.Context) {
	watcher := &tuning.Watcher{
		Pools: s.config.Pools, Modified: s.checker.Changed, Log: s.config.Log,
		InUse: func() []string {
			var ids []string

			for _, record := range s.volumes.Staged.All() {
				if record.IsImage() {
					ids = append(ids, record.VolumeID)
				}
			}

			return ids
		},
		IsInUse: func(volumeID string) bool {
			_, used := s.volumes.Staged.Get(volumeID)

			return used
		},
		Refresh: s.refresh, Clock: clock.RealClock{},
	}
	watcher.Run(ctx)
}

// refresh is LocalNode.ApplyAttributes as an operation of its own.
func (s *Service) refresh(ctx context.Context, volumeID string) error {
	return s.own.start(ctx, volumeID, "refresh", func(ctx context.Context) error {
		return s.local.ApplyAttributes(ctx, volumeID)
	})
}
