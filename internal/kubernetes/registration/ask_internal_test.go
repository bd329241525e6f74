package registration

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/touchstone-csi/touchstone/test/await"
)

// TestADeafSocketHasNoName: who does not answer is asked until the context ends.
func TestADeafSocketHasNoName(t *testing.T) {
	t.Parallel()

	deaf, err := net.Listen("unix", filepath.Join(t.TempDir(), "deaf.sock"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, deaf.Close()) })

	connection, err := grpc.NewClient("unix://"+deaf.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()

	await.Return(t, func() { require.Empty(t, askName(ctx, connection), "want: no name") }, "the end of the question")
}
