package metadata

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var errWalk = errors.New("the walk fails")

// TestStreamsEnd: with their walk, their client, the driver, or a message that is not read.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()

	waits := func(ctx context.Context, _ *tuples) error {
		<-ctx.Done()

		return ctx.Err()
	}

	for name, test := range map[string]struct {
		walk func(ctx context.Context, found *tuples) error
		// meanwhile happens while the stream runs.
		meanwhile func(m *Service, leave context.CancelFunc)
		reads     time.Duration
		want      codes.Code
		messages  int
	}{
		"nothing found": {walk: func(context.Context, *tuples) error { return nil }, messages: 1},
		"it fails":      {walk: func(context.Context, *tuples) error { return errWalk }, want: codes.Internal},
		"it panics":     {walk: func(context.Context, *tuples) error { panic("because") }, want: codes.Internal},
		"the client leaves": {
			walk: waits, meanwhile: func(_ *Service, leave context.CancelFunc) { leave() }, want: codes.Canceled,
		},
		"the driver ends": {walk: waits, want: codes.Unavailable, meanwhile: func(m *Service, _ context.CancelFunc) {
			require.NoError(t, m.Drain(t.Context()))
			require.NoError(t, m.Drain(t.Context()), "want: a second call does nothing")
		}},
		"a message is read late": {
			walk: func(context.Context, *tuples) error { return nil }, reads: time.Minute + 1, want: codes.DeadlineExceeded, messages: 1,
		},
		"a message is read in time": {
			walk: func(context.Context, *tuples) error { return nil }, reads: time.Minute - 1, messages: 1,
		},
		"the next message comes late": {
			walk: func(_ context.Context, found *tuples) error {
				defer time.Sleep(time.Hour)

				return errors.Join(found.flush(), found.flush())
			},
			messages: 2,
		},
		"another message after the end": {
			walk: func(ctx context.Context, found *tuples) error {
				<-ctx.Done()

				return found.flush()
			},
			meanwhile: func(_ *Service, leave context.CancelFunc) { leave() }, want: codes.Canceled,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			synctest.Test(t, func(t *testing.T) {
				messages := 0
				m := New(&locked{}, &locked{}, time.Minute, 0)
				found := newTuples(page{}, &record.Snapshot{SizeBytes: 1}, func([]*csi.BlockMetadata) error {
					messages++

					time.Sleep(test.reads)

					return nil
				})
				ctx, leave := context.WithCancel(t.Context())
				answer := make(chan error, 1)

				go func() {
					answer <- m.send(ctx, found, func(ctx context.Context) error { return test.walk(ctx, found) })
				}()

				if test.meanwhile != nil {
					synctest.Wait()
					require.Empty(t, answer, "want: the stream runs")
					test.meanwhile(m, leave)
				}

				rpccode.Require(t, <-answer, test.want)
				leave()
				synctest.Wait()
				time.Sleep(test.reads)
				require.Equal(t, test.messages, messages, "want: nothing is sent after the end")
			})
		})
	}
}

// TestAMessageAfterTheEndIsNotSent, and fails with the reason of the end.
func TestAMessageAfterTheEndIsNotSent(t *testing.T) {
	t.Parallel()

	sent := 0
	found := &tuples{send: func([]*csi.BlockMetadata) error { sent++; return errWalk }}
	ctx, cancel := context.WithCancelCause(t.Context())

	New(&locked{}, &locked{}, time.Hour, 0).limitSends(ctx, cancel, found)
	require.ErrorIs(t, found.send(nil), errWalk)
	require.Equal(t, 1, sent, "want: it is sent while the stream runs")
	cancel(rpc.Errorf(codes.Unavailable, "the reason"))
	rpccode.Require(t, rpc.Status(found.send(nil)), codes.Unavailable)
	require.Equal(t, 1, sent, "want: nothing is sent after the end")
}
