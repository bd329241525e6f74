package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// podUIDKey is the key of the volume context in which the kubelet names the pod, if the CSIDriver
// object has podInfoOnMount.
const podUIDKey = "csi.storage.k8s.io/pod.uid"

const (
	// maxDepth and maxDirectories bound each search for a pod's cgroup.
	maxDepth       = 6
	maxDirectories = 4096
)

const (
	// maxPodUID is the length of the longest UID, in bytes. Those of pods from
	// files are no UUIDs.
	maxPodUID = 128
	// podUIDBytes are what a UID may hold that is to become part of a path.
	podUIDBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-"
)

// isPodUID reports whether uid may become part of a path. Every publication calls it, so it uses no
// regular expression.
func isPodUID(uid string) bool {
	return uid != "" && len(uid) <= maxPodUID && uid[0] != '-' && strings.Trim(uid, podUIDBytes) == ""
}

// PodUID returns the pod that a volume is published to: what the kubelet says in
// the volume context, else what its paths say:
//
//	…/pods/<uid>/volumes/…
//	…/pods/<uid>/volumeDevices/…
//	…/volumeDevices/publish/<volume>/<uid>
//
// It returns "" where neither names a pod, as with other COs.
func PodUID(targetPath string, volumeContext map[string]string) string {
	found := volumeContext[podUIDKey]
	if found == "" {
		found = podInPath(strings.Split(filepath.Clean(targetPath), "/"))
	}

	if !isPodUID(found) {
		return ""
	}

	return found
}

func podInPath(parts []string) string {
	const afterPods, afterDevices = 2, 3

	for i, part := range parts {
		if part == "pods" && i+afterPods < len(parts) &&
			(parts[i+afterPods] == "volumes" || parts[i+afterPods] == "volumeDevices") {
			return parts[i+1]
		}

		if part == "volumeDevices" && i+afterDevices == len(parts)-1 && parts[i+1] == "publish" {
			return parts[i+afterDevices]
		}
	}

	return ""
}

// findPod returns the cgroup of a pod beneath base, as the kubelet's cgroupfs
// or systemd driver has named it. Errors: ErrNoPod.
func findPod(base, uid string) (found string, err error) {
	if !isPodUID(uid) {
		return "", fmt.Errorf("%w: %q is no pod's UID", ErrNoPod, uid)
	}

	// At last everywhere, for a kubelet in a container of its own or with --cgroup-root.
	for _, top := range []string{"kubepods", "kubepods.slice", ""} {
		found, err = searchPod(filepath.Join(base, top), uid)
		if !errors.Is(err, ErrNoPod) {
			break
		}
	}

	return found, err
}

// hasPods also finds the cgroups of a kubelet that is in a container of its own.
func hasPods(base string) bool {
	for _, pattern := range []string{"kubepods*", "*/kubepods*", "*/*/kubepods*"} {
		if found, err := filepath.Glob(filepath.Join(base, pattern)); err == nil && len(found) > 0 {
			return true
		}
	}

	return false
}

// searchPod searches breadth-first, so that the cgroups of a pod's containers come last.
func searchPod(base, uid string) (string, error) {
	level, seen := []string{base}, 0

	for range maxDepth {
		var next []string

		for _, parent := range level {
			entries, err := os.ReadDir(parent)
			if isRemoved(err) {
				continue
			}

			if err != nil {
				return "", fmt.Errorf("find the cgroup of a pod: %w", err)
			}

			for _, entry := range entries {
				if !entry.IsDir() {
					continue
				}

				if isPod(entry.Name(), uid) {
					return filepath.Join(parent, entry.Name()), nil
				}

				seen++
				if seen > maxDirectories {
					return "", fmt.Errorf("%w among the first %d cgroups in %s", ErrNoPod, maxDirectories, base)
				}

				next = append(next, filepath.Join(parent, entry.Name()))
			}
		}

		level = next
	}

	return "", fmt.Errorf("%w in %s: no pod%s", ErrNoPod, base, uid)
}

// isPod reports whether a cgroup of that name is the pod's. systemd takes a dash for a step in its tree, so
// the kubelet writes the UID's as underscores behind the names of all steps, of which --cgroup-root has more:
// kubepods-besteffort-pod<uid>.slice.
func isPod(name, uid string) bool {
	return name == "pod"+uid || strings.HasSuffix(name, "-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}
