package registration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/served"
)

// TestADeafSocketHasNoName: a process that does not answer is asked until the context ends.
func TestADeafSocketHasNoName(t *testing.T) {
	t.Parallel()

	connection := served.Deaf(t)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	await.Return(t, func() { require.Empty(t, askName(ctx, connection), "want: no name") }, "the end of the question")
}
