package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/inotify"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

// ruleFiles are the files of v1, in the order of Limits.each.
var ruleFiles = [...]string{
	"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
	"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device",
}

// v1 has a file for each limit, with a line for each device. A rule holds for one cgroup alone, so
// it is written to all of the pod's, and to new ones for as long as the pod has a rule.
type v1 struct {
	log *slog.Logger

	mu   sync.Mutex
	pods map[string]*pod
	// watcher reports new cgroups. It is nil until the first pod has a rule.
	watcher *inotify.Watcher
	// stop ends the reading of its events, and waits for that.
	stop   func() error
	closed bool
}

// pod is one that has rules. Its lock is held while rules are written, so that pods do not wait for
// each other.
type pod struct {
	mu    sync.Mutex
	top   string
	rules map[Device]Limits
	// forgotten says that v1 does not have the entry any more.
	forgotten bool
}

func (*v1) version() int { return 1 }

func (*v1) get(cgroup string, device Device) (Limits, error) {
	var found Limits

	for i, limit := range found.each() {
		values, err := readRule(cgroup, ruleFiles[i], device)
		if err == nil && len(values) > 0 {
			*limit, err = parseValue(values[0])
		}

		if err != nil {
			return Limits{}, fmt.Errorf("%s of %s: %w", ruleFiles[i], cgroup, err)
		}
	}

	return found, nil
}

func (t *v1) set(podUID, top string, device Device, wanted Limits) error {
	limited := t.lock(func() *pod {
		if t.pods[podUID] == nil {
			t.pods[podUID] = &pod{top: top, rules: map[Device]Limits{}}
		}

		return t.pods[podUID]
	})
	defer limited.mu.Unlock()

	isLimit := wanted != Limits{}
	if !isLimit {
		delete(limited.rules, device)
	}

	cgroups, err := t.list(top, isLimit)
	if err == nil {
		err = t.replaceRules(cgroups, device, wanted)
	}

	if err == nil && isLimit {
		limited.rules[device] = wanted
	}

	if len(limited.rules) == 0 {
		t.drop(podUID, limited)
	}

	return err
}

// forget is called for a pod that has no cgroup any more.
func (t *v1) forget(podUID string) {
	if limited := t.lock(func() *pod { return t.pods[podUID] }); limited != nil {
		t.drop(podUID, limited)
		limited.mu.Unlock()
	}
}

// lock returns the entry that find returns, with its lock held. find is called with v1's lock held.
func (t *v1) lock(find func() *pod) *pod {
	for {
		t.mu.Lock()
		found := find()
		t.mu.Unlock()

		if found == nil {
			return nil
		}

		found.mu.Lock()

		if !found.forgotten {
			return found
		}

		// It was dropped while this call waited for its lock.
		found.mu.Unlock()
	}
}

// drop removes the pod's entry and its watches. The pod's lock is held.
func (t *v1) drop(podUID string, unlimited *pod) {
	t.mu.Lock()
	defer t.mu.Unlock()

	unlimited.forgotten = true
	delete(t.pods, podUID)

	if t.watcher == nil {
		return
	}

	for _, cgroup := range t.watcher.Directories() {
		if unlimited.has(cgroup) {
			t.watcher.Remove(cgroup)
		}
	}
}

// has says whether the cgroup is the pod's own or beneath it.
func (p *pod) has(cgroup string) bool { return strings.HasPrefix(cgroup+"/", p.top+"/") }

// list returns the cgroup and all of its descendants. With watch it watches them for new children.
func (t *v1) list(top string, watch bool) ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if watch && t.closed {
		return nil, fmt.Errorf("follow the cgroups of pods: %w", os.ErrClosed)
	}

	if watch && t.watcher == nil {
		watcher, err := inotify.NewWatcher()
		if err != nil {
			return nil, fmt.Errorf("follow the cgroups of pods: %w", err)
		}

		t.watcher, t.stop = watcher, t.follow(watcher)
	}

	cgroups := []string{top}

	for i := 0; i < len(cgroups); i++ {
		// The watch first, then the listing, so that no new cgroup is missed in between.
		if watch {
			if err := t.watcher.Add(cgroups[i]); err != nil && (i == 0 || !isRemoved(err)) {
				return nil, fmt.Errorf("follow the cgroups of a pod: %w", err)
			}
		}

		entries, err := os.ReadDir(cgroups[i])
		if err != nil && !isRemoved(err) {
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

// replaceRules puts the rule into all the cgroups, or takes back what it has done. The first one
// must be there; the others may end at any time.
func (t *v1) replaceRules(cgroups []string, device Device, wanted Limits) error {
	var undo []func() error

	for i, cgroup := range cgroups {
		before, err := t.get(cgroup, device)
		if err == nil {
			undo = append(undo, func() error { return t.write(cgroup, device, before) })
			err = t.write(cgroup, device, wanted)
		}

		if err == nil || i > 0 && isRemoved(err) {
			continue
		}

		failures := []error{fmt.Errorf("limits of device %s in %s: %w", device, cgroup, err)}

		for _, step := range slices.Backward(undo) {
			if err := step(); err != nil && !isRemoved(err) {
				failures = append(failures, fmt.Errorf("put the former limits back: %w", err))
			}
		}

		return errors.Join(failures...)
	}

	return nil
}

// write writes what differs. It may fail half-way.
func (t *v1) write(cgroup string, device Device, wanted Limits) error {
	now, err := t.get(cgroup, device)
	if err != nil {
		return err
	}

	for i, limit := range wanted.each() {
		if *limit == *now.each()[i] {
			continue
		}

		line := fmt.Sprintf("%s %d", device, *limit)
		if err := sysfs.Write(filepath.Join(cgroup, ruleFiles[i]), line); err != nil {
			return fmt.Errorf("limit: write %q: %w", line, err)
		}
	}

	return nil
}

// follow limits new cgroups until it is stopped.
func (t *v1) follow(watcher *inotify.Watcher) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		removed := func(error) {} // a cgroup ends with its container
		//nolint:contextcheck // limits are written also while the watch ends
		if err := watcher.Run(ctx, func(event inotify.Event) { t.take(watcher, event) }, removed); err != nil {
			t.log.Error("new containers of limited pods are not limited; start the driver again", "error", err)
		}
	}()

	return func() error {
		cancel()
		<-ended

		return watcher.Close()
	}
}

// take limits the cgroups that an event is about.
func (t *v1) take(watcher *inotify.Watcher, event inotify.Event) {
	if event.Path == "" {
		t.log.Warn("looking through all cgroups of limited pods, because events were lost")

		for _, cgroup := range watcher.Directories() {
			t.limitNewCgroup(cgroup)
		}

		return
	}

	info, err := os.Stat(event.Path)

	switch {
	case isRemoved(err):
		watcher.Remove(event.Path) // the kernel does not remove the watch of a cgroup
	case event.Kind == inotify.Appeared && err == nil && info.IsDir():
		t.limitNewCgroup(event.Path)
	}
}

// limitNewCgroup gives its pod's rules to a cgroup that was not there when they were made, and to
// what is in it.
func (t *v1) limitNewCgroup(cgroup string) {
	limited := t.lock(func() *pod {
		for _, each := range t.pods {
			if each.has(cgroup) {
				return each
			}
		}

		return nil
	})
	if limited == nil {
		return
	}
	defer limited.mu.Unlock()

	cgroups, err := t.list(cgroup, true)
	for device, limits := range limited.rules {
		if err == nil {
			err = t.replaceRules(cgroups, device, limits)
		}
	}

	if err != nil && !isRemoved(err) {
		t.log.Error("a container of a limited pod is not limited", "cgroup", cgroup, "error", err)
	}
}

// isRemoved reports whether the error means that the cgroup was removed. A file that was open then
// returns ENODEV. A device that does not exist returns ENODEV too; but the write to the pod's own
// cgroup, which comes first, has failed with it before.
func isRemoved(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) }

func (t *v1) close() error {
	t.mu.Lock()
	watcher, stop := t.watcher, t.stop
	t.watcher, t.closed = nil, true
	t.mu.Unlock()

	if watcher == nil {
		return nil
	}

	return stop()
}
