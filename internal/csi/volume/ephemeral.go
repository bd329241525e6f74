package volume

import (
	"errors"
	"fmt"
	"maps"

	"github.com/touchstone-csi/touchstone/internal/quantity"
)

const (
	// KeyEphemeral is "true" in the volume_context of an inline ephemeral
	// volume (the kubelet's CSIDriver lifecycle mode Ephemeral).
	KeyEphemeral = ReservedPrefix + "ephemeral"
	// KeySize is the size of an inline ephemeral volume, such as 64Mi.
	KeySize = "size"

	// DefaultEphemeralBytes is the size of one that names none.
	DefaultEphemeralBytes = 1 << 30
	// maxEphemeralBytes is what no file can have; sums of a few do not wrap.
	maxEphemeralBytes = 1 << 60
)

// IsEphemeral says whether the volume_context is that of an inline ephemeral
// volume.
func IsEphemeral(context map[string]string) bool { return context[KeyEphemeral] == valueTrue }

// ParseEphemeral reads the volume_context of an inline ephemeral volume: the
// parameters of a StorageClass, written by the author of the pod, and a size in
// bytes. Error: ErrParameter, for an unknown key too.
func ParseEphemeral(given map[string]string) (Parameters, int64, error) {
	rest := maps.Clone(given)
	delete(rest, KeySize)

	parameters, err := ParseParameters(rest)
	if err != nil {
		return Parameters{}, 0, err
	}

	if parameters.DirectAssign {
		return Parameters{}, 0, fmt.Errorf("%w: %s: an inline ephemeral volume is always mounted on the host; use a claim",
			ErrParameter, KeyDirectAssign)
	}

	if _, there := given[KeyConsistency]; there {
		return Parameters{}, 0, fmt.Errorf("%w: %s: an inline ephemeral volume is made of nothing; leave it out", ErrParameter, KeyConsistency)
	}

	text := given[KeySize]
	if text == "" {
		return parameters, DefaultEphemeralBytes, nil
	}

	size, err := quantity.Parse(text)
	if errors.Is(err, quantity.ErrSyntax) {
		return Parameters{}, 0, badValue(KeySize, text, "a size such as 64Mi")
	}

	if err != nil || size <= 0 || size > maxEphemeralBytes {
		return Parameters{}, 0, fmt.Errorf("%w: %s is %q, which no volume can have", ErrParameter, KeySize, text)
	}

	return parameters, size, nil
}
