package ctxread_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
	"github.com/touchstone-csi/touchstone/test/await"
)

func pipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()

	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = reader.Close()
		_ = writer.Close()
	})

	return reader, writer
}

// TestEachPassesWhatIsRead, at its time, until the context ends, which is no error.
func TestEachPassesWhatIsRead(t *testing.T) {
	t.Parallel()

	reader, writer := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	taken, ended := make(chan string), make(chan error, 1)

	go func() {
		ended <- ctxread.Each(ctx, reader, 4, func(at time.Time, data []byte) error {
			if at.Before(began) || at.After(time.Now()) {
				return errors.New("another time than that of the read")
			}

			taken <- string(data)

			return nil
		})
	}()

	for text, want := range map[string][]string{"one": {"one"}, "longer": {"long", "er"}} {
		_, err := writer.WriteString(text)
		require.NoError(t, err)

		for _, part := range want {
			require.Equal(t, part, await.Receive(t, taken, "what was written"))
		}
	}

	cancel()
	require.NoError(t, await.Receive(t, ended, "Each to return when its context ends"))
}

// TestEachEndsWithAnError of a read or of what takes it.
func TestEachEndsWithAnError(t *testing.T) {
	t.Parallel()

	errTaken := errors.New("it is not taken")
	reader, writer := pipe(t)
	_, err := writer.WriteString("text")
	require.NoError(t, err)
	require.ErrorIs(t, ctxread.Each(t.Context(), reader, 4, func(time.Time, []byte) error { return errTaken }), errTaken)
	require.NoError(t, reader.Close())

	calls := 0
	err = ctxread.Each(t.Context(), reader, 4, func(time.Time, []byte) error {
		calls++

		return nil
	})
	require.ErrorIs(t, err, os.ErrClosed)
	require.Zero(t, calls, "want: nothing was read")
}

// TestALaterEndOfTheContextEndsNoRead of those that use the file after Each.
func TestALaterEndOfTheContextEndsNoRead(t *testing.T) {
	t.Parallel()

	errTaken := errors.New("it is not taken")
	reader, writer := pipe(t)
	ctx, cancel := context.WithCancel(t.Context())

	_, err := writer.WriteString("text")
	require.NoError(t, err)
	require.ErrorIs(t, ctxread.Each(ctx, reader, 4, func(time.Time, []byte) error { return errTaken }), errTaken)
	cancel()

	read := make(chan error, 1)

	go func() {
		_, err := reader.Read(make([]byte, 4))
		read <- err
	}()

	require.Never(t, func() bool { return len(read) > 0 }, 20*time.Millisecond, time.Millisecond, "want: the read waits for data")

	_, err = writer.WriteString("more")
	require.NoError(t, err)
	require.NoError(t, await.Receive(t, read, "the read of what was written"))
}

// TestAPauseEndsWithItsContext, or has lasted as long as asked.
func TestAPauseEndsWithItsContext(t *testing.T) {
	t.Parallel()

	const pause = 20 * time.Millisecond

	began := time.Now()
	ctxread.Pause(t.Context(), pause)
	require.GreaterOrEqual(t, time.Since(began), pause, "how long the pause was")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	await.Return(t, func() { ctxread.Pause(ctx, time.Hour) }, "the pause whose context has ended")
}
