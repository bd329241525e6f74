package hostpath

import (
	"flag"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEachFlagIsInTheDocumentation but klog's, which it names as one.
func TestEachFlagIsInTheDocumentation(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile("../../../../docs/hostpath.md")
	require.NoError(t, err)

	NewFlags(io.Discard).set.VisitAll(func(each *flag.Flag) {
		if each.Usage != ofKlog {
			require.Regexp(t, "`"+each.Name+"[ `]", string(text))
		}
	})
}
