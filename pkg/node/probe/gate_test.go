package probe_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/node/probe"
)

func TestGateKeepsProbesOutWhileClosed(t *testing.T) {
	t.Parallel()

	gate := probe.NewGate()
	reopen, reopenToo := gate.Close("volume"), gate.Close("volume")

	_, ok := gate.TryEnter("volume")
	require.False(t, ok, "a probe enters a closed gate")

	leave, ok := gate.TryEnter("another")
	require.True(t, ok, "the gate of another volume is closed")
	leave()
	reopen()

	_, ok = gate.TryEnter("volume")
	require.False(t, ok, "the gate is open while one of two operations has it closed")
	reopenToo()

	leave, ok = gate.TryEnter("volume")
	require.True(t, ok, "the gate is still closed")
	leave()
}

func TestGateCloseWaitsForProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := probe.NewGate()
		leave, _ := gate.TryEnter("volume")
		leaveToo, _ := gate.TryEnter("volume")
		closed := make(chan struct{})
		began := time.Now()

		go func() {
			gate.Close("volume")()
			close(closed)
		}()

		leave()
		synctest.Wait()

		select {
		case <-closed:
			t.Fatal("Close returns while a probe is inside")
		default:
		}

		leaveToo()
		<-closed
		require.Zero(t, time.Since(began), "want: it returns when the last probe leaves, and not at its limit")
	})
}

func TestGateCloseIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := probe.NewGate()
		_, ok := gate.TryEnter("volume")
		require.True(t, ok, "want: a probe enters an open gate")

		began := time.Now()
		gate.Close("volume")()
		require.Less(t, time.Since(began), 10*time.Second, "want: it does not wait for a probe that hangs")
	})
}
