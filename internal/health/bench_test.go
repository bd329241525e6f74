package health_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
)

// many is what a large cluster's controller looks after.
const many = 10_000

func manyIDs() []string {
	ids := make([]string, many)
	for i := range ids {
		ids[i] = fmt.Sprintf("0197f0a0-0000-7000-8000-%012d", i)
	}

	return ids
}

// BenchmarkRelist probes 10,000 healthy subjects. The empty one is the cost without
// the probes.
func BenchmarkRelist(b *testing.B) {
	for name, took := range map[string]time.Duration{"empty": 0, "10us": 10 * time.Microsecond} {
		b.Run(name, func(b *testing.B) {
			ids := manyIDs()
			monitor := health.New(health.Config{
				Name: "controller", List: func() []string { return ids },
				Probe: func(context.Context, string) (health.Observation, error) {
					for began := time.Now(); time.Since(began) < took; {
					}

					return health.Observation{}, nil
				},
			})

			b.ReportAllocs()

			for b.Loop() {
				require.NoError(b, monitor.Relist(b.Context()))
			}

			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/many, "ns/subject")
		})
	}
}

// BenchmarkGet is what ListVolumes asks for each volume, many calls at a time.
func BenchmarkGet(b *testing.B) {
	ids := manyIDs()
	monitor := health.New(health.Config{
		Name: "controller", List: func() []string { return ids },
		Probe: func(context.Context, string) (health.Observation, error) { return health.Observation{}, nil },
	})
	require.NoError(b, monitor.Relist(b.Context()))

	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()

		for i := 0; b.Loop(); i++ {
			if _, ok := monitor.Get(ids[i%many]); !ok {
				b.Fatal("it is not known")
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				if _, ok := monitor.Get(ids[i%many]); !ok {
					b.Fatal("it is not known")
				}
			}
		})
	})
}

// BenchmarkAbnormal finds a few unhealthy subjects among many healthy ones.
func BenchmarkAbnormal(b *testing.B) {
	ids := manyIDs()
	monitor := health.New(health.Config{
		Name: "controller", List: func() []string { return ids },
		Probe: func(_ context.Context, id string) (health.Observation, error) {
			if id == ids[many/2] {
				return health.Observation{Entries: []health.Entry{health.NewEntry(health.DiskFailure, "it is gone")}}, nil
			}

			return health.Observation{}, nil
		},
	})
	require.NoError(b, monitor.Relist(b.Context()))
	b.ReportAllocs()

	for b.Loop() {
		if len(monitor.Abnormal("")) != 1 {
			b.Fatal("it is not found")
		}
	}
}
