// Package mountinfo reads the mount tables of processes (proc_pid_mountinfo(5)). The kernel makes
// the text of all mounts for that; where it has statmount(2), package mount asks it for single ones.
package mountinfo

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/mount-utils"
)

// Mount is a line of the table. Its paths and its source are as they were given to the kernel.
type Mount = mount.MountInfo

// Of returns the mounts of a process' mount namespace, in the order of the table, in which a mount
// follows the one that contains its mount point. A table in which a mount has an empty source, which
// only a call of mount(2) by hand makes, is an error.
func Of(pid int) ([]Mount, error) { return read(fmt.Sprintf("/proc/%d/mountinfo", pid)) }

// Own is Of for this thread.
func Own() ([]Mount, error) { return read("/proc/thread-self/mountinfo") }

// Below returns those of Own at a path and beneath it.
func Below(path string) ([]Mount, error) {
	return ownWhere(func(point string) bool {
		return point == path || strings.HasPrefix(point, strings.TrimSuffix(path, "/")+"/")
	})
}

// At returns those of Own at a path; the last one covers the others.
func At(path string) ([]Mount, error) {
	return ownWhere(func(point string) bool { return point == path })
}

func ownWhere(wanted func(point string) bool) ([]Mount, error) {
	all, err := Own()

	var found []Mount

	for _, each := range all {
		if wanted(each.MountPoint) {
			found = append(found, each)
		}
	}

	return found, err
}

func read(path string) ([]Mount, error) {
	mounts, err := mount.ParseMountInfo(path)
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}

	for i := range mounts {
		m := &mounts[i]
		m.Root, m.MountPoint, m.Source = unescape(m.Root), unescape(m.MountPoint), unescape(m.Source)
	}

	return mounts, nil
}

// unescape replaces what the kernel has escaped: a byte as a backslash and three octal digits.
func unescape(text string) string {
	const digits = 3

	var plain strings.Builder

	for {
		before, after, found := strings.Cut(text, `\`)
		plain.WriteString(before)

		if !found {
			return plain.String()
		}

		value, err := strconv.ParseUint(after[:min(digits, len(after))], 8, 8)
		if err == nil && len(after) >= digits {
			plain.WriteByte(byte(value))
			text = after[digits:]
		} else {
			plain.WriteByte('\\')
			text = after
		}
	}
}
