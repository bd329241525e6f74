package node

import (
	"strings"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
)

// plain normalizes a path: it identifies records, and calls that wait for each
// other. Dot segments stay, to be refused.
func plain(path string) string {
	segments := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	joined := strings.Join(segments, "/")

	if strings.HasPrefix(path, "/") {
		return "/" + joined
	}

	return joined
}

// checkAllowed returns an error for a path that no volume of the driver can be at. A missing
// parent is no error: then there is nothing to undo.
func checkAllowed(dirs *mount.AllowedDirs, path string) error {
	return dirs.WithTarget(path, func(*mount.Target) error { return nil })
}

// checkPath refuses the path of a request's field if no volume can be there in any state.
func (c *Config) checkPath(field, path string) error {
	if err := c.Dirs.CheckPath(path); err != nil {
		return rpc.Invalid("%s: %w", field, err)
	}

	return nil
}
