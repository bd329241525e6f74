package progress_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/touchstone-csi/touchstone/internal/operation/progress"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/awaitcall"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTasksAreListedWhileTheyRun(t *testing.T) {
	t.Parallel()

	registry := progress.NewRegistry(slog.New(slog.DiscardHandler))
	client := serve(t, registry)

	listed := func() []progress.Entry {
		entries, err := client.List(t.Context())
		require.NoError(t, err)

		return entries
	}

	require.Empty(t, listed(), "want: no task runs")

	first := registry.Start("snapshot", "a", "", 0)
	second := registry.Start("restore", "b", "back", 100)

	first.Set(3, 7)

	entries := listed()
	require.Len(t, entries, 2, "want: both tasks are listed")
	require.Equal(t, []any{"snapshot", "a", int64(3), int64(7)}, []any{entries[0].Kind, entries[0].Object, entries[0].Done, entries[0].Total})
	require.Equal(t, int64(100), entries[1].Total, "want: the task has its total")
	require.False(t, entries[1].Started.Before(entries[0].Started), "want: entries are in the order of their starts")

	first.End(nil)
	require.Len(t, listed(), 1, "want: the ended task is not listed")
	second.End(nil)
	require.Empty(t, listed(), "want: no task runs")
}

func TestLongTasksAreLogged(t *testing.T) {
	t.Parallel()

	var log bytes.Buffer

	task := progress.NewRegistry(slog.New(slog.NewTextHandler(&log, nil))).Start("clone", "v", "", 0)
	for done := range int64(1000) {
		task.Set(done, 1000)
	}

	require.Equal(t, 9, strings.Count(log.String(), "msg=copying"), "once for each tenth: %s", log.String())

	require.NotContains(t, log.String(), "error")
	task.End(errFull)
	require.Contains(t, log.String(), errFull.Error())
}

// TestCancelEndsTheTasksOfAnObject, by its id or name, and waits for their end.
func TestCancelEndsTheTasksOfAnObject(t *testing.T) {
	t.Parallel()

	registry := progress.NewRegistry(slog.New(slog.DiscardHandler))
	client := serve(t, registry)

	fixed := registry.Start("snapshot", "b", "fixed", 0)
	defer fixed.End(nil)

	for _, object := range []string{"a", "data"} {
		task := registry.Start("restore", "a", "data", 100)
		ctx, cancel := context.WithCancelCause(t.Context())
		task.OnCancel(cancel)

		context.AfterFunc(ctx, func() { task.End(context.Cause(ctx)) })

		cancelled, err := client.Cancel(t.Context(), object)
		require.NoError(t, err)
		require.Len(t, cancelled, 1, "want: the task of %s is cancelled", object)
		require.Equal(t, "data", cancelled[0].Name)
		require.ErrorIs(t, context.Cause(ctx), progress.ErrCancelled)
		require.Len(t, registry.List(), 1, "want: the other task runs")
	}

	for _, object := range []string{"a", "fixed"} {
		cancelled, err := client.Cancel(t.Context(), object)
		require.NoError(t, err)
		require.Empty(t, cancelled, "want: nothing of %s can be cancelled", object)
	}

	stuck := registry.Start("clone", "c", "", 0)
	defer stuck.End(nil)

	stuck.OnCancel(func(error) {})

	ended, end := context.WithCancel(t.Context())
	end()

	_, err := registry.Cancel(ended, "c")
	require.ErrorIs(t, err, context.Canceled, "want: the call does not wait for longer than its context")
}

func TestNilRegistryIsUsable(t *testing.T) {
	t.Parallel()

	var none *progress.Registry

	task := none.Start("snapshot", "a", "", 1)
	task.Set(1, 1)
	task.OnCancel(nil)
	task.End(nil)
	require.Empty(t, none.List(), "want: no task is listed")
}

var errFull = errors.New("the pool is full")

func serve(t *testing.T, registry *progress.Registry) *progress.Client {
	t.Helper()

	path := filepath.Join(t.TempDir(), "s")

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	require.NoError(t, err)

	server := grpc.NewServer()
	registry.Register(server)

	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()

	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, await.Receive(t, ended, "the server to end"))
	})

	connection, err := grpc.NewClient("unix://"+path, append(awaitcall.Options(t), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })

	return progress.NewClient(connection)
}
