package cgroup

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// lockPod returns the pod's entry, a new one if need be, with its lock held.
func (l *Limiter) lockPod(podUID string) *pod {
	for {
		l.mu.Lock()

		found := l.pods[podUID]
		if found == nil {
			found = &pod{rules: map[Device]Limits{}}
			l.pods[podUID] = found
		}
		l.mu.Unlock()

		found.mu.Lock()

		if l.isCurrent(podUID, found) {
			return found
		}

		// The entry was dropped while this call waited for its lock.
		found.mu.Unlock()
	}
}

func (l *Limiter) isCurrent(podUID string, followed *pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.pods[podUID] == followed
}

// forgetUnlimited forgets a pod that has no rule. The pod's lock is held.
func (l *Limiter) forgetUnlimited(podUID string, followed *pod) {
	if len(followed.rules) > 0 {
		return
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	for cgroup, of := range l.watched {
		if of == followed {
			l.unwatch(cgroup)
		}
	}

	delete(l.pods, podUID)
}

// unwatch is called with the limiter's lock held.
func (l *Limiter) unwatch(cgroup string) {
	delete(l.watched, cgroup)

	if l.watcher != nil {
		_ = l.watcher.Remove(cgroup) // one that is gone is not watched
	}
}

// watch watches the pod's cgroups for new children and returns all that exist.
func (l *Limiter) watch(followed *pod, top string) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.watcher == nil {
		if err := l.startWatcher(); err != nil {
			return nil, err
		}
	}

	cgroups := []string{top}

	for i := 0; i < len(cgroups); i++ {
		// The watch first, then the listing, so that no new cgroup is missed in between.
		err := l.watcher.Add(cgroups[i])
		if err != nil && (i == 0 || !isRemoved(err)) {
			return nil, fmt.Errorf("follow the cgroups of a pod: %w", err)
		}

		l.watched[cgroups[i]] = followed

		entries, err := os.ReadDir(cgroups[i])
		if isRemoved(err) {
			continue
		}

		if err != nil {
			return nil, fmt.Errorf("follow the cgroups of a pod: %w", err)
		}

		for _, entry := range entries {
			if entry.IsDir() {
				cgroups = append(cgroups, filepath.Join(cgroups[i], entry.Name()))
			}
		}
	}

	return cgroups, nil
}

// startWatcher is called with the limiter's lock held.
func (l *Limiter) startWatcher() error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("follow the cgroups of pods: %w", err)
	}

	ended := make(chan struct{})
	l.watcher, l.ended = watcher, ended

	go func() {
		defer close(ended)

		l.processEvents(watcher)
	}()

	return nil
}

func (l *Limiter) processEvents(watcher *fsnotify.Watcher) {
	for {
		select {
		case event, ok := <-watcher.Events:
			if !ok {
				return
			}

			l.handleEvent(event)
		case err, ok := <-watcher.Errors:
			if !ok {
				return
			}

			// Events were lost, so every watched cgroup is scanned again.
			l.log.Warn("looking through all cgroups of limited pods", "reason", err)
			l.rescan()
		}
	}
}

func (l *Limiter) handleEvent(event fsnotify.Event) {
	l.mu.Lock()
	of := l.watched[filepath.Dir(event.Name)]

	if event.Has(fsnotify.Remove) {
		l.unwatch(event.Name)
	}
	l.mu.Unlock()

	if of == nil || !event.Has(fsnotify.Create) {
		return
	}

	if info, err := os.Stat(event.Name); err != nil || !info.IsDir() {
		return
	}

	l.limitNewCgroup(of, event.Name)
}

// limitNewCgroup gives the pod's rules to a cgroup that was not there when they were made, and to
// what is in it.
func (l *Limiter) limitNewCgroup(followed *pod, cgroup string) {
	followed.mu.Lock()
	defer followed.mu.Unlock()

	if len(followed.rules) == 0 {
		return
	}

	cgroups, err := l.watch(followed, cgroup)
	for device, limits := range followed.rules {
		if err == nil {
			err = replaceRules(v1{}, cgroups, device, limits)
		}
	}

	if err != nil && !isRemoved(err) {
		l.log.Error("a container of a limited pod is not limited", "cgroup", cgroup, "error", err)
	}
}

func (l *Limiter) rescan() {
	l.mu.Lock()
	watched := maps.Clone(l.watched)
	l.mu.Unlock()

	for cgroup, of := range watched {
		l.limitNewCgroup(of, cgroup)
	}
}
