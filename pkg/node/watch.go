package node

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sync/errgroup"

	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
)

// attributePollPeriod is how long a node may not know of a modification that another
// machine has made: the kernel tells of changes to a shared filesystem only on
// the machine that makes them.
const attributePollPeriod = 30 * time.Second

// maxRefreshes is how many volumes may hang before others wait for them.
const maxRefreshes = 16

// Watch puts modifications in force that a controller in another process makes
// to volumes in use here, until ctx ends.
func (s *Service) Watch(ctx context.Context) {
	watcher, err := s.watchPools()
	if err != nil {
		s.config.Log.Error("modifications take effect only after a while", "period", attributePollPeriod, "error", err)
	}

	changed := s.pools.Changed()

	// Nothing is ever received from a nil channel.
	var (
		events   <-chan fsnotify.Event
		failures <-chan error
	)

	if watcher != nil {
		defer watcher.Close()

		events, failures = watcher.Events, watcher.Errors
	}

	again := time.NewTicker(attributePollPeriod)
	defer again.Stop()

	refreshes := &errgroup.Group{}
	refreshes.SetLimit(maxRefreshes)

	defer func() { _ = refreshes.Wait() }() // they tell the log

	// What was modified before the watch began.
	ids := s.imagesInUse()

	for occasion := 0; ; occasion++ {
		for _, id := range ids {
			refreshes.Go(func() error {
				s.refreshLogged(ctx, id, occasion)

				return nil
			})
		}

		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = s.pools.Changed()
			if watcher != nil {
				err = s.watchServed(watcher)
			}

			if err != nil {
				s.config.Log.Error("modifications take effect only after a while", "period", attributePollPeriod, "error", err)
			}

			ids = s.imagesInUse()
		case <-again.C:
			ids = s.imagesInUse()
		case reason := <-failures:
			s.config.Log.Warn("looking at the attributes of all volumes", "reason", reason)

			ids = s.imagesInUse()
		case event := <-events:
			ids = s.modified(event)
		}
	}
}

// watchPools returns a watcher, also with an error one of what can be watched;
// nil is none at all.
func (s *Service) watchPools() (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the attributes of volumes: %w", err)
	}

	return watcher, s.watchServed(watcher)
}

// watchServed watches the pools that have not failed. What is watched already stays
// so: a pool that has failed and is back may be another directory.
func (s *Service) watchServed(watcher *fsnotify.Watcher) error {
	for _, place := range s.pools.Served() {
		if err := watcher.Add(place.AttributesPath()); err != nil {
			return fmt.Errorf("watch the attributes of volumes in pool %q: %w", place.Name(), err)
		}
	}

	return nil
}

func (s *Service) imagesInUse() []string {
	var ids []string

	for _, use := range s.stagedVolumes.All() {
		if use.IsImage() {
			ids = append(ids, use.VolumeID)
		}
	}

	return ids
}

// modified is the volume in use whose attributes an event is about.
func (s *Service) modified(event fsnotify.Event) []string {
	id, whole := strings.CutSuffix(filepath.Base(event.Name), layout.AttributesSuffix)
	if !whole || !event.Has(fsnotify.Create) {
		return nil
	}

	s.checker.Changed(id)

	if _, used := s.stagedVolumes.Get(id); !used {
		return nil
	}

	return []string{id}
}

func (s *Service) refreshLogged(ctx context.Context, volumeID string, occasion int) {
	if err := s.refresh(ctx, volumeID, occasion); err != nil && ctx.Err() == nil {
		s.config.Log.Error("the mutable parameters of a volume are not in force", "volume", volumeID, "error", err)
	}
}
