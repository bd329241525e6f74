package node

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/touchstone-csi/touchstone/pkg/rpc"
)

// plain normalizes a path: it identifies records, and calls that wait for each
// other. Dot segments stay, to be refused.
func plain(path string) string {
	if !strings.Contains(path, "//") && !strings.HasSuffix(path, "/") {
		return path
	}

	segments := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	joined := strings.Join(segments, "/")

	if strings.HasPrefix(path, "/") {
		return "/" + joined
	}

	return joined
}

func (s *Service) checkStagingPath(path string) error {
	if err := s.dirs.CheckPath(path); err != nil {
		return rpc.Invalid("staging_target_path: %w", err)
	}

	return nil
}

// allowed refuses a path that no volume of ours can be at. A missing parent is
// no refusal: then there is nothing to undo.
func (s *Service) allowed(path string) error {
	place, err := s.dirs.Target(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	place.Close()

	return nil
}
