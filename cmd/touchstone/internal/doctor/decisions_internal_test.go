package doctor

import (
	"testing"

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
