package progress_test

import (
	"bytes"
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

	first := registry.Start("snapshot", "a", 0)
	second := registry.Start("restore", "b", 100)

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

	task := progress.NewRegistry(slog.New(slog.NewTextHandler(&log, nil))).Start("clone", "v", 0)
	for done := range int64(1000) {
		task.Set(done, 1000)
	}

	require.Equal(t, 9, strings.Count(log.String(), "msg=copying"), "once for each tenth: %s", log.String())

	require.NotContains(t, log.String(), "error")
	task.End(errFull)
	require.Contains(t, log.String(), errFull.Error())
}

func TestNilRegistryIsUsable(t *testing.T) {
	t.Parallel()

	var none *progress.Registry

	task := none.Start("snapshot", "a", 1)
	task.Set(1, 1)
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

	connection, err := grpc.NewClient("unix://"+path, append(await.Calls(t), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })

	return progress.NewClient(connection)
}
