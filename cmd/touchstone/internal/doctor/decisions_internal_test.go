package doctor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

// TestSpaceIsJudged by bytes, and by inodes where a filesystem has a number of them.
func TestSpaceIsJudged(t *testing.T) {
	t.Parallel()

	half := pool.Capacity{Total: 100 << 20, Available: 50 << 20}

	for seen, test := range map[string]struct {
		capacity pool.Capacity
		inodes   mount.Amount
		want     Verdict
	}{
		"50 MiB of 100 MiB available, 50 of 100 inodes": {half, mount.Amount{Total: 100, Available: 50}, OK},
		"50 MiB of 100 MiB available, 5 of 100 inodes":  {half, mount.Amount{Total: 100, Available: 5}, OK},
		"50 MiB of 100 MiB available, 4 of 100 inodes":  {half, mount.Amount{Total: 100, Available: 4}, Warning},
		"50 MiB of 100 MiB available, 0 of 100 inodes":  {half, mount.Amount{Total: 100}, Problem},
		"50 MiB of 100 MiB available":                   {half, mount.Amount{}, OK},
		"1 B of 100 MiB available":                      {pool.Capacity{Total: 100 << 20, Available: 1}, mount.Amount{}, Warning},
		"0 B of 100 MiB available":                      {pool.Capacity{Total: 100 << 20}, mount.Amount{}, Problem},
	} {
		found := judgeSpace(test.capacity, test.inodes)
		require.Equal(t, test.want, found.Verdict, "want: the verdict of %s", seen)
		require.Equal(t, seen, found.Seen)
	}
}

// TestMountsOfStorageAreJudged by whether data can be written, and stay.
func TestMountsOfStorageAreJudged(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		point mount.Point
		want  Verdict
		says  string
	}{
		"a disk":                {mount.Point{FSType: "ext4"}, OK, ""},
		"read-only":             {mount.Point{FSType: "ext4", ReadOnly: true}, Problem, "read-only"},
		"a read-only disk":      {mount.Point{FSType: "ext4", SuperReadOnly: true}, Problem, "read-only"},
		"a container's own":     {mount.Point{FSType: "overlay"}, Problem, "deleted with it"},
		"memory":                {mount.Point{FSType: "tmpfs"}, Warning, "in memory"},
		"memory without a size": {mount.Point{FSType: "ramfs"}, Warning, "in memory"},
	} {
		found := checkStorageMount("/pool", test.point)
		require.Equal(t, test.want, found.Verdict, "want: the verdict of %s", name)
		require.Contains(t, found.Seen, test.says, "want: what is said of %s", name)
	}
}

// TestLeftoversAreThoseOfTwoObservations, a pause apart: what is there once only belongs to a call.
func TestLeftoversAreThoseOfTwoObservations(t *testing.T) {
	t.Parallel()

	failed := errors.New("failed")

	for name, test := range map[string]struct {
		// observed are the results of the observations, and errs their errors.
		observed [][]string
		errs     []error
		want     []string
		err      error
		paused   time.Duration
	}{
		"nothing":               {[][]string{nil}, []error{nil}, nil, nil, 0},
		"both":                  {[][]string{{"a"}, {"a"}}, []error{nil, nil}, []string{"a"}, nil, time.Minute},
		"one of them":           {[][]string{{"a", "b"}, {"b", "c"}}, []error{nil, nil}, []string{"b"}, nil, time.Minute},
		"the first has failed":  {[][]string{{"a"}}, []error{failed}, []string{"a"}, failed, 0},
		"the second has failed": {[][]string{{"a"}, nil}, []error{nil, failed}, []string{"a"}, nil, time.Minute},
		"nothing at the second": {[][]string{{"a"}, nil}, []error{nil, nil}, []string{}, nil, time.Minute},
		"the context has ended": {[][]string{{"a"}}, []error{nil}, []string{"a"}, nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			if name == "the context has ended" {
				cancel()
			}

			began, at := time.Now(), 0
			found, err := observeTwice(ctx, time.Minute, func() ([]string, error) {
				at++

				return test.observed[at-1], test.errs[at-1]
			})

			require.ErrorIs(t, err, test.err, name)
			require.Equal(t, test.want, found, name)
			require.Len(t, test.observed, at, "%s: the observations", name)
			require.Equal(t, test.paused, time.Since(began), "%s: the pause", name)
		})
	}
}
