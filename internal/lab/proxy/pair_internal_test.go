package proxy

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
)

// TestConnectionsAreClosedAtTheEnd are those that are open then, and those that come later.
func TestConnectionsAreClosedAtTheEnd(t *testing.T) {
	t.Parallel()

	connections := &connections{open: map[net.Conn]bool{}}
	before, removed, after := newPipe(t), newPipe(t), newPipe(t)

	connections.add(before[0])
	connections.add(removed[0])
	connections.remove(removed[0])
	connections.close()
	connections.add(after[0])
	requireClosed(t, before)
	requireClosed(t, after)

	go func() { _, _ = removed[0].Write([]byte("a")) }()

	n, err := removed[1].Read(make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n, "want: a connection that has been removed is left alone")
}

// TestJoinedConnectionsEndTogether, after they have carried bytes in both directions.
func TestJoinedConnectionsEndTogether(t *testing.T) {
	t.Parallel()

	one, other := newPipe(t), newPipe(t)
	joined := make(chan struct{})

	go func() {
		defer close(joined)

		join(one[0], other[0])
	}()

	for _, each := range [][2]net.Conn{{one[1], other[1]}, {other[1], one[1]}} {
		go func() { _, _ = each[0].Write([]byte("a")) }()

		n, err := each[1].Read(make([]byte, 1))
		require.NoError(t, err)
		require.Equal(t, 1, n, "want: what is written at one end is read at the other")
	}

	require.NoError(t, one[1].Close())
	await.Receive(t, joined, "the end of both connections")
	requireClosed(t, other)
}

func newPipe(t *testing.T) (ends [2]net.Conn) {
	t.Helper()

	ends[0], ends[1] = net.Pipe()
	t.Cleanup(func() { _ = ends[0].Close(); _ = ends[1].Close() })

	return ends
}

func requireClosed(t *testing.T, ends [2]net.Conn) {
	t.Helper()

	_, err := ends[1].Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
