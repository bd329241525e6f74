package access

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
)

var errGrowth = errors.New("the growth failed")

// TestHangingGrowthKeepsTheVolume: it continues beside its caller, and refuses another one.
func TestHangingGrowthKeepsTheVolume(t *testing.T) {
	t.Parallel()

	g := &growths{}
	hangs := make(chan struct{})

	require.ErrorIs(t, g.run(t.Context(), "volume", time.Minute, func() error { return errGrowth }), errGrowth)
	require.ErrorIs(t, g.run(t.Context(), "volume", time.Millisecond, func() error {
		<-hangs

		return nil
	}), errGrowing)
	require.ErrorIs(t, g.run(t.Context(), "volume", time.Minute, func() error { panic("a second growth") }), errGrowing)
	require.ErrorIs(t, g.wait(t.Context(), "volume", time.Millisecond), errGrowing)
	require.NoError(t, g.run(t.Context(), "another", time.Minute, func() error { return nil }))

	close(hangs)
	require.NoError(t, g.wait(t.Context(), "volume", await.Limit))
	require.NoError(t, g.run(t.Context(), "volume", time.Minute, func() error { return nil }))
}

// TestGrowthsOfSeveralVolumesAtOnce begins and awaits growths at the same time.
func TestGrowthsOfSeveralVolumesAtOnce(t *testing.T) {
	t.Parallel()

	g := &growths{}

	var growing sync.WaitGroup

	for worker := range 8 {
		growing.Go(func() {
			id := strconv.Itoa(worker)

			for range 500 {
				if err := g.run(t.Context(), id, time.Minute, func() error { return nil }); err != nil {
					t.Errorf("volume %s is not grown: %v", id, err)
				}

				if err := g.wait(t.Context(), id, time.Minute); err != nil {
					t.Errorf("volume %s still grows: %v", id, err)
				}
			}
		})
	}

	growing.Wait()
}
