package operation_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestDoLogged returns what Do does, and logs a panic alone.
func TestDoLogged(t *testing.T) {
	t.Parallel()

	var text bytes.Buffer

	log, ops := slog.New(slog.NewTextHandler(&text, nil)), operation.NewGroup()
	call := operation.VolumeCall("v", "object", "Method", nil)
	require.Equal(t, operation.Call{Key: "volume v", Object: "object", Method: "Method"}, call)

	got, err := operation.DoLogged(t.Context(), log, ops, call, func(context.Context) (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, got, "want: the result of the operation")

	_, err = operation.DoLogged(t.Context(), log, ops, call, func(context.Context) (int, error) { return 0, pool.ErrInUse })
	rpccode.Require(t, err, codes.FailedPrecondition)
	require.Empty(t, text.String(), "want: nothing is logged")

	_, err = operation.DoLogged(t.Context(), log, ops, call, func(context.Context) (int, error) { panic("a defect") })
	rpccode.Require(t, err, codes.Internal)
	require.Contains(t, text.String(), "a defect")
}
