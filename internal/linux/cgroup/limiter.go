package cgroup

import (
	"errors"
	"log/slog"
)

// Limiter sets limits for block devices in the cgroups of pods. It is safe for concurrent use.
type Limiter struct {
	root string
	v1   *v1
}

// NewLimiter returns a limiter for the cgroups that are mounted at root, which
// is DefaultCgroupRoot except in tests. Close it.
func NewLimiter(root string, log *slog.Logger) *Limiter {
	return &Limiter{root: root, v1: &v1{log: log, pods: map[string]*pod{}}}
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
	tree, directory, err := l.detect()
	if err != nil {
		return Support{}, err
	}

	return Support{Version: tree.version(), Directory: directory, HasPods: hasPods(directory)}, nil
}

// Set replaces the pod's limits for the device. Where one write fails, it restores the former
// limits. Errors: ErrUnsupported, ErrNoPod.
func (l *Limiter) Set(podUID string, device Device, wanted Limits) error {
	if wanted == (Limits{}) {
		return l.Remove(podUID, device)
	}

	tree, top, err := l.find(podUID)
	if err != nil {
		return err
	}

	return tree.set(podUID, top, device, wanted)
}

// Remove removes the pod's limits for the device. It succeeds where there are none, or where the pod
// is gone.
func (l *Limiter) Remove(podUID string, device Device) error {
	tree, top, err := l.find(podUID)
	if err == nil {
		err = tree.set(podUID, top, device, Limits{})
	}

	switch {
	case errors.Is(err, ErrNoPod):
		l.v1.forget(podUID) // its rules went with it

		return nil
	case errors.Is(err, ErrUnsupported), isRemoved(err):
		return nil // without the controller, or the cgroup, there is no rule
	default:
		return err
	}
}

// find returns the hierarchy and the pod's cgroup.
func (l *Limiter) find(podUID string) (hierarchy, string, error) {
	tree, base, err := l.detect()
	if err != nil {
		return nil, "", err
	}

	top, err := findPod(base, podUID)

	return tree, top, err
}

// Close stops watching the cgroups of pods. The rules stay in force.
func (l *Limiter) Close() error { return l.v1.close() }
