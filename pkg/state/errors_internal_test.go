package state

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDamageNamesItsPlace: the file, and the line and the record where there are such.
func TestDamageNamesItsPlace(t *testing.T) {
	t.Parallel()

	const see = "see `touchstone state verify` and `touchstone state repair`"

	for want, damage := range map[string]DamageError{
		"f: state is damaged: why; " + see:   {File: "f", Reason: "why"},
		"f:3: state is damaged: why; " + see: {File: "f", Line: 3, Reason: "why", Fix: fixDrop},
		`f:3: state is damaged: volumes "v": why; if a newer program has written it, use that one; otherwise ` + see: {
			File: "f", Line: 3, Collection: "volumes", Key: "v", Reason: "why", Fix: fixOmit,
		},
	} {
		require.EqualError(t, &damage, want)
	}
}
