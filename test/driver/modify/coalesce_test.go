package modify_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// within sets the window in which changes of a volume become one.
func within(window time.Duration) harness.Option {
	return func(c *driver.Config) { c.Controller.CoalesceWindow = window }
}

// longEnough is a window in which several calls arrive, also on a busy machine.
const longEnough = 2 * time.Second

// change is a line of the journal.
type change struct {
	Sequence   int    `json:"sequence"`
	More       bool   `json:"more"`
	Collection string `json:"collection"`
	Key        string `json:"key"`
	Record     struct {
		CapacityBytes int64             `json:"capacityBytes"`
		Mutable       map[string]string `json:"mutable"`
	} `json:"record"`
}

// transaction is all changes that became durable together or not at all.
type transaction struct{ Changes []change }

// journal are the transactions since the state directory was made.
func journal(t *testing.T, d *harness.Driver) []transaction {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(d.Config.StateDir, "state.jsonl"))
	require.NoError(t, err)

	var (
		all []transaction
		one transaction
	)

	for line := range strings.Lines(string(text)) {
		var read change

		if strings.TrimSpace(line) == "" {
			continue
		}

		require.NoError(t, json.Unmarshal([]byte(line), &read))

		// The header has a sequence as well, and no key.
		if read.Key == "" || read.Sequence == 0 {
			continue
		}

		one.Changes = append(one.Changes, read)

		if !read.More {
			all = append(all, one)
			one = transaction{}
		}
	}

	return all
}

func expand(ctx context.Context, d *harness.Driver, id string, bytes int64) (int64, error) {
	answer, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
	})

	return answer.GetCapacityBytes(), err
}

// together makes all calls at once and returns their errors.
func together(calls ...func() error) []error {
	failures := make([]error, len(calls))

	var running sync.WaitGroup

	for i, call := range calls {
		running.Go(func() { failures[i] = call() })
	}

	running.Wait()

	return failures
}

func TestManyRequestsBecomeOneChange(t *testing.T) {
	namespace.NeedRoot(t)

	d := harness.Start(t, within(longEnough))
	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{})
	harness.AttachAndStage(t, d, claim)

	id := claim.VolumeID
	_, before := record(t, d, id)

	failures := together(
		func() error {
			size, err := expand(t.Context(), d, id, 128*harness.MiB)
			if err == nil {
				require.Equal(t, int64(128*harness.MiB), size, "want: the expansion has the size that was asked for")
			}

			return err
		},
		// Rounded up it is the same.
		func() error { _, err := expand(t.Context(), d, id, 128*harness.MiB-1); return err },
		func() error { return harness.Modify(t.Context(), d, id, map[string]string{"readAheadKiB": "64"}) },
		func() error {
			return harness.Modify(t.Context(), d, id, map[string]string{"readAheadKiB": "64", "checkPeriod": "1h"})
		},
	)
	for _, err := range failures {
		require.NoError(t, err)
	}

	parameters, after := record(t, d, id)
	require.Equal(t, map[string]string{"readAheadKiB": "64", "checkPeriod": "1h0m0s"}, parameters)
	require.Equal(t, before+1, after, "it was one durable change")
	require.Equal(t, int64(128*harness.MiB), harness.CapacityOf(t, d, id), "want: the volume has the size that was asked for")
	require.Equal(t, int64(64), queueOf(t, loopsOf(t, d, id)[0].Number).ReadAheadKiB, "want: the device has the read-ahead that was asked for")
}

// oneWaits makes two requests that contradict each other: the one that arrives second is refused with
// ABORTED, so that the other one waits for the end of its window. It returns which one that is, its answer
// when there is one, and the error of the refused one.
func oneWaits(t *testing.T, calls [2]func() error) (waits int, answer <-chan error, refused error) {
	t.Helper()

	answers := [2]chan error{make(chan error, 1), make(chan error, 1)}
	for i, call := range calls {
		go func() { answers[i] <- call() }()
	}

	select {
	case refused = <-answers[0]:
		waits = 1
	case refused = <-answers[1]:
	case <-time.After(await.Limit):
		require.FailNow(t, "want: one of two contradictory requests is refused")
	}

	harness.RequireCode(t, refused, codes.Aborted)

	return waits, answers[waits], refused
}

// sizesFor returns two expansions of a volume.
func sizesFor(t *testing.T, d *harness.Driver, id string, sizes [2]int64) [2]func() error {
	t.Helper()

	return [2]func() error{
		func() error { _, err := expand(t.Context(), d, id, sizes[0]); return err },
		func() error { _, err := expand(t.Context(), d, id, sizes[1]); return err },
	}
}

func TestVolumesDoNotShareAWindow(t *testing.T) {
	d := harness.Start(t, within(time.Hour))
	sizes := map[string][2]int64{
		"one": {128 * harness.MiB, 192 * harness.MiB}, "other": {256 * harness.MiB, 320 * harness.MiB},
	}
	want, answers := map[string]int64{}, []<-chan error{}

	for name, each := range sizes {
		id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{Name: name}).VolumeID
		waits, answer, _ := oneWaits(t, sizesFor(t, d, id, each))
		want[id], answers = each[waits], append(answers, answer)
	}

	d.Stop()

	for _, answer := range answers {
		require.NoError(t, await.Receive(t, answer, "the answer of an expansion"))
	}

	d.Restart(t)

	for id, size := range want {
		require.Equal(t, size, harness.CapacityOf(t, d, id), "want: each volume has its size")
	}
}

func TestContradictionsAreRefused(t *testing.T) {
	d := harness.Start(t, within(time.Hour))
	id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{}).VolumeID

	sizes := [2]int64{128 * harness.MiB, 256 * harness.MiB}
	winner, answer, _ := oneWaits(t, sizesFor(t, d, id, sizes))
	// A stop ends the window.
	d.Stop()
	require.NoError(t, await.Receive(t, answer, "the answer of the expansion"))
	d.Restart(t)
	require.Equal(t, sizes[winner], harness.CapacityOf(t, d, id), "want: the volume has the size of the request that won")

	asked := []map[string]string{
		{"readAheadKiB": "64", "checkPeriod": "1h"}, {"readAheadKiB": "128", "ioScheduler": "none"},
	}
	winner, answer, refused := oneWaits(t, [2]func() error{
		func() error { return harness.Modify(t.Context(), d, id, asked[0]) },
		func() error { return harness.Modify(t.Context(), d, id, asked[1]) },
	})
	harness.RequireCode(t, refused, codes.Aborted, "readAheadKiB")
	d.Stop()
	require.NoError(t, await.Receive(t, answer, "the answer of the change"))
	d.Restart(t, within(0))

	parameters, _ := record(t, d, id)
	want := []map[string]string{{"readAheadKiB": "64", "checkPeriod": "1h0m0s"}, asked[1]}
	require.Equal(t, want[winner], parameters)

	// The CO's retry comes after it.
	require.NoError(t, harness.Modify(t.Context(), d, id, asked[1-winner]))
}

// TestFailureIsNotShared: an error of a request is found before it joins.
func TestFailureIsNotShared(t *testing.T) {
	d := harness.Start(t, within(time.Hour))
	id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{}).VolumeID
	refused := func() {
		harness.RequireCode(t, harness.Modify(t.Context(), d, id, map[string]string{"ioScheduler": "elevator"}), codes.InvalidArgument)

		_, err := expand(t.Context(), d, id, 1<<60)
		harness.RequireCode(t, err, codes.ResourceExhausted)
	}

	refused()

	_, answer, _ := oneWaits(t, [2]func() error{
		func() error { return harness.Modify(t.Context(), d, id, map[string]string{"readAheadKiB": "64"}) },
		func() error { return harness.Modify(t.Context(), d, id, map[string]string{"readAheadKiB": "128"}) },
	})

	refused()

	d.Stop()
	require.NoError(t, await.Receive(t, answer, "the answer of the change"))
	d.Restart(t)
	require.Equal(t, int64(64*harness.MiB), harness.CapacityOf(t, d, id), "want: the refused requests do not change the size")
}

// TestRetryJoins: the CO's deadline is shorter than the window.
func TestRetryJoins(t *testing.T) {
	d := harness.Start(t, within(300*time.Millisecond))
	id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{}).VolumeID
	_, before := record(t, d, id)

	var err error

	for end := time.Now().Add(await.Limit); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err = expand(ctx, d, id, 128*harness.MiB)

		cancel()

		if status.Code(err) != codes.DeadlineExceeded {
			break
		}
	}

	require.NoError(t, err)

	_, after := record(t, d, id)
	require.Equal(t, before+1, after, "want: the retry makes no further change")
}

// TestAStopWaitsForNoWindow: the requested change is made at once, durably.
func TestAStopWaitsForNoWindow(t *testing.T) {
	d := harness.Start(t, within(time.Hour))
	id := harness.NewVolume(t, d, &csi.CreateVolumeRequest{}).VolumeID

	type asked struct {
		bytes int64
		err   error
	}

	answers := make(chan asked, 2)
	ctx, leave := context.WithCancel(t.Context())
	t.Cleanup(leave)

	for _, bytes := range []int64{128 * harness.MiB, 256 * harness.MiB} {
		go func() {
			_, err := expand(ctx, d, id, bytes)
			answers <- asked{bytes: bytes, err: err}
		}()
	}

	// One is refused once the other has arrived, and waits.
	harness.RequireCode(t, await.Receive(t, answers, "the first answer of two expansions").err, codes.Aborted)
	leave()

	waiting := await.Receive(t, answers, "the answer of the canceled expansion")
	harness.RequireCode(t, waiting.err, codes.Canceled)
	require.Equal(t, int64(64*harness.MiB), harness.CapacityOf(t, d, id), "want: the cancelled expansion does not change the size")

	d.Restart(t)
	require.Equal(t, waiting.bytes, harness.CapacityOf(t, d, id), "want: the size is the one that was reported")
}
