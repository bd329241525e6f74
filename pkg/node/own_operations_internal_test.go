package node

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/test/await"
)

var (
	errLeft = errors.New("the caller has left")
	errDone = errors.New("done")
)

// TestAnOperationOfItsCaller runs operations whose caller stays, leaves before they begin, and leaves
// while they run.
func TestAnOperationOfItsCaller(t *testing.T) {
	t.Parallel()

	o := &ownOperations{group: operation.NewGroup()}
	do := func(context.Context) error { return errDone }

	require.ErrorIs(t, o.run(t.Context(), "volume", "check", do), errDone, "the caller stays")
	require.ErrorIs(t, o.start(t.Context(), "volume", "refresh", do), errDone)

	blocked, begun, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)

	go func() {
		ended <- o.start(context.WithoutCancel(t.Context()), "volume", "refresh", func(context.Context) error {
			close(begun)
			<-blocked

			return nil
		})
	}()

	await.Receive(t, begun, "the first operation")

	ctx, leave := context.WithCancelCause(t.Context())
	leave(errLeft)
	require.ErrorIs(t, o.run(ctx, "volume", "check", func(context.Context) error { panic("it began after its caller left") }), errLeft)
	require.NoError(t, o.run(t.Context(), "another", "check", func(context.Context) error { return nil }), "another volume does not wait")

	close(blocked)
	require.NoError(t, await.Receive(t, ended, "the first operation's end"))

	ctx, leave = context.WithCancelCause(t.Context())
	err := o.run(ctx, "volume", "check", func(within context.Context) error {
		leave(errLeft)
		<-within.Done()

		return errors.Join(errDone, context.Cause(within))
	})
	require.ErrorIs(t, err, errDone, "want: what runs is awaited")
	require.ErrorIs(t, err, errLeft, "want: it knows why it ends")
}

// TestOperationsDoNotJoin runs two operations of the same method on one volume.
func TestOperationsDoNotJoin(t *testing.T) {
	t.Parallel()

	o := &ownOperations{group: operation.NewGroup()}
	blocked, begun, ended := make(chan struct{}), make(chan struct{}, 2), make(chan error, 2)

	for range 2 {
		go func() {
			ended <- o.start(t.Context(), "volume", "refresh", func(context.Context) error {
				begun <- struct{}{}
				<-blocked

				return nil
			})
		}()
	}

	await.Receive(t, begun, "the first operation")
	close(blocked)
	await.Receive(t, begun, "the second operation")

	for range 2 {
		require.NoError(t, await.Receive(t, ended, "an operation's end"))
	}
}
