package probe

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/holder"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

func searching(busy *busyVolume) *busyProbe {
	return &busyProbe{volumes: newBusyVolumes(), held: busy, found: &findings{}}
}

// TestAHangingSearchForAHolderDelaysOneProbe for ResponseTimeout, and is not joined by another.
func TestAHangingSearchForAHolderDelaysOneProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		last := holder.Process{PID: 1, Command: "known"}
		s := searching(&busyVolume{holder: last})
		hang := make(chan struct{})
		var searches atomic.Int32

		for range 2 {
			began := time.Now()
			found := s.findHolder(t.Context(), func() ([]holder.Process, error) {
				searches.Add(1)
				<-hang

				return nil, nil
			})

			require.Equal(t, last, found)
			require.Equal(t, ResponseTimeout, time.Since(began), "want: the search ends at the limit of the response")
			require.EqualValues(t, 1, searches.Load(), "want: a hanging search is not repeated")
		}

		close(hang)
		synctest.Wait()

		found := s.findHolder(t.Context(), func() ([]holder.Process, error) { return nil, nil })
		require.Zero(t, found, "the first search after the one that hung")
	})
}

// TestHolderOfADetachedDevice is not kept: the device's number may be another volume's by now.
func TestHolderOfADetachedDevice(t *testing.T) {
	t.Parallel()

	const noDevice = 1 << 19

	s := searching(&busyVolume{device: Attachment{Number: noDevice, Sequence: 1}})
	s.loops, s.inUse = loop.NewLoops(loop.LoopsOptions{}), true

	require.NoError(t, s.report(t.Context(), nil))
	require.True(t, s.held.released, "want: the volume is released")
	require.Zero(t, s.held.searchedAt, "want: what the search found is not kept")
}

// TestHolderStaysTheSame while it is among the holders found, although another has a lower PID: a
// CO makes an event of each new message.
func TestHolderStaysTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second, third := holder.Process{PID: 41}, holder.Process{PID: 42}, holder.Process{PID: 43}
		s := searching(&busyVolume{})
		s.volumes.add(s.id, busyVolume{})

		device, otherDevice := holder.Process{Device: "/dev/dm-7000"}, holder.Process{Device: "/dev/dm-7001"}

		for _, step := range []struct {
			found []holder.Process
			want  holder.Process
		}{
			{[]holder.Process{second, third}, second},
			{[]holder.Process{first, second, third}, second},
			{[]holder.Process{first, third}, first},
			{nil, holder.Process{}},
			{[]holder.Process{otherDevice}, otherDevice},
			{[]holder.Process{device, otherDevice}, otherDevice},
		} {
			time.Sleep(holderPeriod)

			got := s.findHolder(context.Background(), func() ([]holder.Process, error) { return step.found, nil })
			require.Equal(t, step.want, got)
			require.Equal(t, step.want, s.volumes.get(s.id).holder, "want: the next probe knows it")
		}
	})
}

// TestSearchForAHolderIsNotRepeated within holderPeriod, if none was found or it is running.
func TestSearchForAHolderIsNotRepeated(t *testing.T) {
	t.Parallel()

	for name, last := range map[string]holder.Process{"none": {}, "running": self(t)} {
		s := searching(&busyVolume{holder: last, searchedAt: time.Now()})
		found := s.findHolder(t.Context(), func() ([]holder.Process, error) {
			t.Error("searched again: " + name)

			return nil, nil
		})
		require.Equal(t, last, found)
	}

	ended := self(t)
	ended.Command = "another program"
	s := searching(&busyVolume{holder: ended, searchedAt: time.Now()})
	require.Zero(t, s.findHolder(t.Context(), func() ([]holder.Process, error) { return nil, nil }), "want: a holder that has ended is not returned")
}

// self returns this process as a holder.
func self(t *testing.T) holder.Process {
	t.Helper()

	command, err := os.ReadFile("/proc/self/comm")
	require.NoError(t, err)

	var namespace unix.Stat_t
	require.NoError(t, unix.Stat("/proc/self/ns/mnt", &namespace))

	return holder.Process{PID: os.Getpid(), Command: strings.TrimSpace(string(command)), MountNamespace: namespace.Ino}
}
