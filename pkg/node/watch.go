package node

import (
	"context"

	"github.com/touchstone-csi/touchstone/pkg/node/tuning"
)

// WatchAttributes applies the modifications that a controller in another process makes to
// volumes in use here, until ctx ends.
func (s *Service) WatchAttributes(ctx context.Context) {
	watcher := &tuning.Watcher{
		Pools: s.pools, InUse: s.imagesInUse, Modified: s.checker.Changed, Refresh: s.refresh, Log: s.config.Log,
		IsInUse: func(volumeID string) bool {
			_, used := s.stagedVolumes.Get(volumeID)

			return used
		},
	}
	watcher.Run(ctx)
}

func (s *Service) imagesInUse() []string {
	var ids []string

	for _, record := range s.stagedVolumes.All() {
		if record.IsImage() {
			ids = append(ids, record.VolumeID)
		}
	}

	return ids
}
