package calls

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/lab/jq"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var errEnough = errors.New("enough")

// TestFollowReportsWhatItMissed has more calls than are kept end while one is sent.
func TestFollowReportsWhatItMissed(t *testing.T) {
	t.Parallel()

	r, err := New(Config{MaxCalls: 3, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)

	end := func(number uint64) { r.Begin(t.Context(), number, "/csi.v1.Identity/Probe").End(nil, nil) }
	end(1)

	var got []Followed

	err = r.follow(t.Context(), FollowRequest{}, func(value any) error {
		each, _ := value.(Followed)

		switch got = append(got, each); len(got) {
		case 1:
			for number := uint64(2); number < 8; number++ {
				end(number)
			}

			return nil
		case 3:
			return errEnough
		default:
			return nil
		}
	})
	require.ErrorIs(t, err, errEnough)
	require.Equal(t, uint64(1), got[0].Call.Number, "want: the first call is followed")
	require.Equal(t, Followed{Missed: 3}, got[1])
	require.Equal(t, uint64(5), got[2].Call.Number, "want: the call after the missed ones is followed")

	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, jq.ErrLimit) // as after jq.Limit
	defer cancel()

	err = r.follow(ctx, FollowRequest{Filter: Filter{JQ: `last(range(infinite))`}}, func(any) error { return nil })
	rpccode.Require(t, err, codes.InvalidArgument, "it runs for longer than")
}
