package kata

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// ErrHostPath is returned for a translation that makes no sense.
var ErrHostPath = errors.New("bad translation of paths")

// HostPaths translate the paths that a container has for things into those that
// they have on the host, where the VM's runtime finds them. The zero value
// translates nothing.
type HostPaths struct {
	// pairs have the longest From first, so that the first that fits is the one.
	pairs []hostPath
}

type hostPath struct{ from, to string }

// ParseHostPaths reads translations of the form FROM=TO, both absolute. Error:
// ErrHostPath.
func ParseHostPaths(given []string) (HostPaths, error) {
	var paths HostPaths

	for _, each := range given {
		from, to, _ := strings.Cut(each, "=")
		if !filepath.IsAbs(from) || !filepath.IsAbs(to) {
			return HostPaths{}, fmt.Errorf("%w: %q is not FROM=TO, both of them absolute: a path in the container, and what it is on the host",
				ErrHostPath, each)
		}

		pair := hostPath{from: filepath.Clean(from), to: filepath.Clean(to)}

		if slices.ContainsFunc(paths.pairs, func(p hostPath) bool { return p.from == pair.from && p.to != pair.to }) {
			return HostPaths{}, fmt.Errorf("%w: %s is to be two paths on the host; give one of them", ErrHostPath, pair.from)
		}

		paths.pairs = append(paths.pairs, pair)
	}

	slices.SortStableFunc(paths.pairs, func(a, b hostPath) int { return len(b.from) - len(a.from) })

	return paths, nil
}

// Host returns what the path is on the host.
func (h HostPaths) Host(path string) string {
	path = filepath.Clean(path)

	for _, pair := range h.pairs {
		if beneath, err := filepath.Rel(pair.from, path); err == nil && filepath.IsLocal(beneath) {
			return filepath.Join(pair.to, beneath)
		}
	}

	return path
}
