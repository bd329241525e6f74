package faults_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/lab/faults"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestPointsAndActsAreDocumented: docs/faults.md has a line for each.
func TestPointsAndActsAreDocumented(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../../docs/faults.md")
	require.NoError(t, err)

	for _, each := range faults.Points() {
		require.Contains(t, string(text), fmt.Sprintf("| %#q | %s | %s | %s |", each.Point, each.RPC, each.Done, each.Missing))
	}

	_, err = faults.Parse([]byte("act: {}"))
	errtext.Require(t, err, "one of ")

	_, names, _ := strings.Cut(err.Error(), "one of ")
	for name := range strings.SplitSeq(names, ", ") {
		require.Contains(t, string(text), "\n- `"+name, name)
	}
}
