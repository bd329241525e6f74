package calls_test

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/lab/calls"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
	"github.com/touchstone-csi/touchstone/test/served"
)

func serve(t *testing.T, recorder *calls.Recorder) *calls.Client {
	t.Helper()

	return calls.NewClient(served.Connect(t, recorder.Register))
}

func probed(t *testing.T, r *calls.Recorder, number uint64) {
	t.Helper()
	record(t.Context(), r, number, csi.Identity_Probe_FullMethodName, &csi.ProbeRequest{}, &csi.ProbeResponse{}, nil)
}

// TestWaitHasNoRace counts a call in each order of the call and the wait.
func TestWaitHasNoRace(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	client := serve(t, r)
	wanted := calls.WaitRequest{Filter: calls.Filter{Method: "Probe"}, Count: 2}

	// Before the wait, and during it.
	probed(t, r, 1)

	waited := make(chan *calls.WaitResult, 1)

	go func() {
		result, err := client.Wait(t.Context(), wanted)
		if err != nil {
			t.Error(err)
		}

		waited <- result
	}()

	probed(t, r, 2)

	result := await.Receive(t, waited, "the wait for two calls")
	require.True(t, result.Reached, "want: the call that was waited for has come")
	require.Len(t, result.Calls, 2, "want: both calls are returned")

	// All before it.
	result, err := client.Wait(t.Context(), wanted)
	require.NoError(t, err)
	require.True(t, result.Reached, "want: the call that was waited for has come")

	// Each of many waits ends, whenever the call comes.
	for i := range uint64(50) {
		go func() {
			result, err := client.Wait(t.Context(), calls.WaitRequest{Filter: calls.Filter{SinceCall: 10 + i}})
			if err != nil {
				t.Error(err)
			}

			waited <- result
		}()

		probed(t, r, 11+i)
		require.True(t, await.Receive(t, waited, "the wait for the next call").Reached, "want: the call that was waited for has come")
	}
}

func TestAWaitEndsWithItsTimeout(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	client := serve(t, r)

	probed(t, r, 1)

	result, err := client.Wait(t.Context(), calls.WaitRequest{Count: 2, Timeout: 0.001})
	require.NoError(t, err)
	require.False(t, result.Reached, "want: the call that was waited for has not come")
	require.Len(t, result.Calls, 1, "what there was")

	result, err = client.Wait(t.Context(), calls.WaitRequest{New: true, Timeout: 0.001})
	require.NoError(t, err)
	require.False(t, result.Reached, "want: the call that was waited for has not come")
	require.Empty(t, result.Calls, "a new call only")

	_, err = client.Wait(t.Context(), calls.WaitRequest{Filter: calls.Filter{Method: "["}})
	rpccode.Require(t, err, codes.InvalidArgument)

	_, err = client.List(t.Context(), calls.Filter{Code: "x"})
	rpccode.Require(t, err, codes.InvalidArgument)
}

var errEnough = errors.New("enough")

func TestFollowSendsTheCallsThatEnd(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	client := serve(t, r)

	probed(t, r, 1)

	followed, ended := make(chan calls.Followed), make(chan error, 1)

	go func() {
		ended <- client.Follow(t.Context(), calls.FollowRequest{}, func(each calls.Followed) error {
			followed <- each

			if each.Call.Number == 3 {
				return errEnough
			}

			return nil
		})
	}()

	require.Equal(t, uint64(1), await.Receive(t, followed, "the recorded call").Call.Number, "want: the recorded call is followed")

	for number := uint64(2); number < 4; number++ {
		probed(t, r, number)
		require.Equal(t, number, await.Receive(t, followed, "the next call").Call.Number, "want: the next call is followed")
	}

	require.ErrorIs(t, await.Receive(t, ended, "the end of Follow"), errEnough)
}

// TestDrainEndsFollowAndWait, so that they do not delay the end of a driver.
func TestDrainEndsFollowAndWait(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	client := serve(t, r)
	ended := make(chan error, 2)

	go func() {
		ended <- client.Follow(context.WithoutCancel(t.Context()), calls.FollowRequest{}, func(calls.Followed) error { return nil })
	}()
	go func() {
		_, err := client.Wait(context.WithoutCancel(t.Context()), calls.WaitRequest{})
		ended <- err
	}()

	r.Drain()

	for range 2 {
		rpccode.Require(t, await.Receive(t, ended, "the end of Follow and Wait"), codes.Unavailable)
	}
}

func TestClearAndCountsThroughTheSocket(t *testing.T) {
	t.Parallel()

	r := newRecorder(t, calls.Config{})
	client := serve(t, r)
	probed(t, r, 1)

	counts, err := client.Counts(t.Context())
	require.NoError(t, err)
	require.Equal(t, []calls.Count{{Method: "Probe", Code: "OK", Count: 1}}, counts)
	require.NoError(t, client.Clear(t.Context()))

	found, err := client.List(t.Context(), calls.Filter{})
	require.NoError(t, err)
	require.Empty(t, found, "want: Clear removes all calls")
}
