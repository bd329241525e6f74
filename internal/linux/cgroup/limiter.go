package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Limiter sets limits for block devices in the cgroups of pods. It is safe for concurrent use.
type Limiter struct {
	root string
	log  *slog.Logger

	mu   sync.Mutex
	pods map[string]*pod
	// watched maps each watched cgroup to its pod.
	watched map[string]*pod
	// watcher is nil until the first pod has to be watched (cgroup v1).
	watcher *fsnotify.Watcher
	ended   chan struct{}
}

// pod is one whose cgroups are followed. Its lock is held while rules are
// written, so that pods do not wait for each other.
type pod struct {
	mu    sync.Mutex
	rules map[Device]Limits
}

// NewLimiter returns a limiter for the cgroups that are mounted at root, which
// is DefaultCgroupRoot except in tests. Close it.
func NewLimiter(root string, log *slog.Logger) *Limiter {
	return &Limiter{root: root, log: log, pods: map[string]*pod{}, watched: map[string]*pod{}}
}

// CheckSupport returns ErrUnsupported where this machine can't limit block devices.
func (l *Limiter) CheckSupport() error {
	_, _, err := detect(l.root)

	return err
}

// Support describes what a machine offers for limits.
type Support struct {
	// Version is that of cgroups, 1 or 2, and Directory their root.
	Version   int
	Directory string
	// HasPods says that a kubelet's cgroups are seen there, in which those of pods are.
	HasPods bool
}

// Support returns what this machine offers for limits. Error: ErrUnsupported.
func (l *Limiter) Support() (Support, error) {
	ruling, directory, err := detect(l.root)
	if err != nil {
		return Support{}, err
	}

	return Support{Version: ruling.version(), Directory: directory, HasPods: hasPods(directory)}, nil
}

// Set replaces the pod's limits for the device. Where one write fails, it restores the former
// limits. Errors: ErrUnsupported, ErrNoPod.
func (l *Limiter) Set(podUID string, device Device, wanted Limits) error {
	if wanted == (Limits{}) {
		return l.Remove(podUID, device)
	}

	ruling, base, err := detect(l.root)
	if err != nil {
		return err
	}

	top, err := findPod(base, podUID)
	if err != nil {
		return err
	}

	if ruling.inherited() {
		return replaceRules(ruling, []string{top}, device, wanted)
	}

	followed := l.lockPod(podUID)
	defer followed.mu.Unlock()

	cgroups, err := l.watch(followed, top)
	if err == nil {
		err = replaceRules(ruling, cgroups, device, wanted)
	}

	if err == nil {
		followed.rules[device] = wanted
	}

	l.forgetUnlimited(podUID, followed)

	return err
}

// Remove removes the pod's limits for the device. It succeeds where there are none, or where the pod
// is gone.
func (l *Limiter) Remove(podUID string, device Device) error {
	ruling, base, err := detect(l.root)
	if errors.Is(err, ErrUnsupported) {
		return nil // without the controller there is no rule
	}

	if err != nil {
		return err
	}

	followed := l.lockPod(podUID)
	defer followed.mu.Unlock()

	delete(followed.rules, device)
	l.forgetUnlimited(podUID, followed)

	top, err := findPod(base, podUID)
	if errors.Is(err, ErrNoPod) {
		return nil // its rules went with it
	}

	if err != nil {
		return err
	}

	cgroups := []string{top}
	if !ruling.inherited() {
		if cgroups, err = descendants(top); err != nil {
			return err
		}
	}

	err = replaceRules(ruling, cgroups, device, Limits{})
	if isRemoved(err) || errors.Is(err, ErrUnsupported) {
		return nil
	}

	return err
}

// Get returns the pod's limits for the device. Errors: ErrUnsupported, ErrNoPod.
func (l *Limiter) Get(podUID string, device Device) (Limits, error) {
	ruling, base, err := detect(l.root)
	if err != nil {
		return Limits{}, err
	}

	top, err := findPod(base, podUID)
	if err != nil {
		return Limits{}, err
	}

	return ruling.get(top, device)
}

// Close stops watching the cgroups of pods. The rules stay in force.
func (l *Limiter) Close() error {
	l.mu.Lock()
	watcher, ended := l.watcher, l.ended
	l.watcher = nil
	l.mu.Unlock()

	if watcher == nil {
		return nil
	}

	err := watcher.Close()

	<-ended

	if err != nil {
		return fmt.Errorf("stop following pods: %w", err)
	}

	return nil
}

// replaceRules puts the rule into all the cgroups, or takes back what it has done. The first one
// must be there; the others may end at any time.
func replaceRules(ruling hierarchy, cgroups []string, device Device, wanted Limits) error {
	undo := make([]func() error, 0, len(cgroups))

	for i, cgroup := range cgroups {
		before, err := ruling.get(cgroup, device)
		if err == nil {
			undo = append(undo, func() error { return restoreRule(ruling, cgroup, device, before) })
			err = ruling.set(cgroup, device, before, wanted)
		}

		if err == nil || i > 0 && isRemoved(err) {
			continue
		}

		failures := []error{fmt.Errorf("limits of device %s in %s: %w", device, cgroup, err)}
		for _, step := range slices.Backward(undo) {
			failures = append(failures, step())
		}

		return errors.Join(failures...)
	}

	return nil
}

func restoreRule(ruling hierarchy, cgroup string, device Device, before Limits) error {
	now, err := ruling.get(cgroup, device)
	if err == nil {
		err = ruling.set(cgroup, device, now, before)
	}

	if err != nil && !isRemoved(err) {
		return fmt.Errorf("put the former limits of device %s in %s back: %w", device, cgroup, err)
	}

	return nil
}

// isRemoved reports whether the error means that the cgroup was removed. A file that was open then
// returns ENODEV. A device that does not exist returns ENODEV too; but the write to the pod's own
// cgroup, which comes first, has failed with it before.
func isRemoved(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

// descendants returns the cgroup and all of its descendants.
func descendants(top string) ([]string, error) {
	cgroups := []string{top}

	for i := 0; i < len(cgroups); i++ {
		entries, err := os.ReadDir(cgroups[i])
		if isRemoved(err) {
			continue
		}

		if err != nil {
			return nil, fmt.Errorf("list the cgroups of a pod: %w", err)
		}

		for _, entry := range entries {
			if entry.IsDir() {
				cgroups = append(cgroups, filepath.Join(cgroups[i], entry.Name()))
			}
		}
	}

	return cgroups, nil
}
