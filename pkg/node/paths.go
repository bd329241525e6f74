package node

import (
	"errors"
	"io/fs"
	"strings"

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
	target, err := dirs.Target(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	target.Close()

	return nil
}
