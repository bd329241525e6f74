package volume

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
)

// ErrInvalidID is returned for an id that no CO can have got from Touchstone
// and that has the shape of an attempt to leave the pool.
var ErrInvalidID = errdefs.New(errdefs.ErrInvalidArgument, "not a volume id")

// NewID returns a fresh volume id, a UUIDv7: ordered by time of creation and
// never derived from anything in a request.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// IsID says whether id has the exact form that NewID gives, and so may become
// part of a path in a pool.
func IsID(id string) bool {
	parsed, err := uuid.Parse(id)

	return err == nil && parsed.Version() == 7 && parsed.String() == id
}

// CheckID refuses with ErrInvalidID what is not just unknown but dangerous or
// unprintable in a message: separators, dot segments, control characters,
// invalid UTF-8. An unknown but harmless id passes; it will not be found.
func CheckID(id string) error {
	switch {
	case !utf8.ValidString(id):
		return fmt.Errorf("%w: it is not valid UTF-8", ErrInvalidID)
	case strings.ContainsAny(id, `/\`):
		return fmt.Errorf("%w: %q holds a path separator", ErrInvalidID, id)
	case id == "." || strings.Contains(id, ".."):
		return fmt.Errorf("%w: %q holds a dot segment", ErrInvalidID, id)
	case strings.ContainsFunc(id, unicode.IsControl):
		return fmt.Errorf("%w: %q holds a control character", ErrInvalidID, id)
	default:
		return nil
	}
}
