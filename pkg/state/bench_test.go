package state_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// stored has about 600 bytes of JSON, as a volume of a driver has.
type stored struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Pool       string            `json:"pool"`
	Backing    string            `json:"backing"`
	Bytes      int64             `json:"bytes"`
	Parameters map[string]string `json:"parameters"`
	Modes      []string          `json:"modes"`
	Topology   map[string]string `json:"topology"`
	Note       string            `json:"note"`
}

func newStored(i int) *stored {
	return &stored{
		ID:   fmt.Sprintf("0199a1b2-c3d4-7e5f-8a9b-%012d", i),
		Name: fmt.Sprintf("pvc-6e5f8a9b-0000-4000-8000-%012d", i*7919%1_000_003),
		Pool: "default", Backing: "image", Bytes: 1 << 30,
		Parameters: map[string]string{"backing": "image", "csi.storage.k8s.io/fstype": "ext4"},
		Modes:      []string{"SINGLE_NODE_WRITER", "SINGLE_NODE_SINGLE_WRITER"},
		Topology:   map[string]string{"topology.touchstone.dev/node": "node-1"},
		Note:       strings.Repeat("n", 150),
	}
}

func openStored(tb testing.TB, dir string, opts state.Options) (*state.Store, *state.Collection[*stored]) {
	tb.Helper()

	s := state.New(dir, opts)
	c := state.Register(s, "volumes", state.WithIndex("name", func(v *stored) string { return v.Name }))
	require.NoError(tb, s.Open(context.Background()))

	return s, c
}

// fill makes a directory with records in its base.
func fill(tb testing.TB, records int) string {
	tb.Helper()

	dir := tb.TempDir()
	s, c := openStored(tb, dir, state.Options{CompactAbove: -1})

	for first := 0; first < records; first += 1000 {
		require.NoError(tb, s.Update(context.Background(), func(tx *state.Tx) error {
			for i := first; i < min(first+1000, records); i++ {
				v := newStored(i)

				err := c.In(tx).Put(v.ID, v)
				if err != nil {
					return err
				}
			}

			return nil
		}))
	}

	require.NoError(tb, s.Compact(context.Background()))
	require.NoError(tb, s.Close())

	return dir
}

func BenchmarkUpdate(b *testing.B) {
	for _, records := range []int{100, 100_000} {
		dir := fill(b, records)

		for _, writers := range []int{1, 16} {
			b.Run(fmt.Sprintf("records=%d/writers=%d", records, writers), func(b *testing.B) {
				s, c := openStored(b, dir, state.Options{})
				defer s.Close()

				var next atomic.Int64

				b.SetParallelism(max(1, writers/runtime.GOMAXPROCS(0)))
				b.ResetTimer()

				update := func() {
					v := newStored(int(next.Add(1)) * 31 % records)

					err := s.Update(context.Background(), func(tx *state.Tx) error { return c.In(tx).Put(v.ID, v) })
					if err != nil {
						b.Error(err)
					}
				}

				if writers == 1 {
					for range b.N {
						update()
					}

					return
				}

				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						update()
					}
				})
			})
		}
	}
}

func BenchmarkOpen100k(b *testing.B) {
	dir := fill(b, 100_000)

	info, err := os.Stat(dir + "/" + journalFile)
	require.NoError(b, err)

	for b.Loop() {
		s, c := openStored(b, dir, state.Options{})
		require.Equal(b, 100_000, c.Len(), "want: the state has all records")

		b.StopTimer()

		var memory runtime.MemStats

		runtime.GC()
		runtime.ReadMemStats(&memory)
		b.ReportMetric(float64(memory.HeapAlloc)/(1<<20), "MiB-heap")
		require.NoError(b, s.Close())
		b.StartTimer()
	}

	b.ReportMetric(float64(info.Size())/100_000, "bytes/record")
}

func BenchmarkGet(b *testing.B) {
	s, c := openStored(b, fill(b, 100_000), state.Options{})
	defer s.Close()

	id := newStored(77_777).ID

	b.ReportAllocs()

	for b.Loop() {
		if _, ok := c.Get(id); !ok {
			b.Fatal("missing")
		}
	}
}

func BenchmarkAscend10k(b *testing.B) {
	s, c := openStored(b, fill(b, 10_000), state.Options{})
	defer s.Close()

	b.ReportAllocs()

	for b.Loop() {
		found := 0

		for range c.Ascend("") {
			found++
		}

		if found != 10_000 {
			b.Fatal(found)
		}
	}
}

func BenchmarkCompact100k(b *testing.B) {
	s, _ := openStored(b, fill(b, 100_000), state.Options{CompactAbove: -1})
	defer func() { require.NoError(b, s.Close()) }()

	b.ReportAllocs()

	for b.Loop() {
		require.NoError(b, s.Compact(context.Background()))
	}
}
