package access

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/await"
)

var errGrowth = errors.New("the growth failed")

// TestAGrowthThatHangs continues beside its caller, and keeps the volume from another one.
func TestAGrowthThatHangs(t *testing.T) {
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
