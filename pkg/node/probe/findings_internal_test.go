package probe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

func reasons(entries []health.Entry) []health.Reason {
	var found []health.Reason
	for _, entry := range entries {
		found = append(found, entry.Reason)
	}

	return found
}

func TestErrorFindings(t *testing.T) {
	t.Parallel()

	check := &fsck.Result{Errors: 3}

	for name, test := range map[string]struct {
		counted filesystem.ErrorCounts
		check   *fsck.Result
		isBtrfs bool
		want    []health.Reason
	}{
		"no errors":               {filesystem.ErrorCounts{}, nil, false, nil},
		"errors":                  {filesystem.ErrorCounts{Count: 1}, nil, false, []health.Reason{health.FilesystemErrors}},
		"errors before the check": {filesystem.ErrorCounts{Count: 3}, check, false, nil},
		"errors since the check":  {filesystem.ErrorCounts{Count: 4}, check, false, []health.Reason{health.FilesystemErrors}},
		"failed requests":         {filesystem.ErrorCounts{Count: 1, IO: true}, nil, false, []health.Reason{health.FilesystemErrors}},
		"corruption":              {filesystem.ErrorCounts{Count: 1, Corrupted: true}, nil, false, []health.Reason{health.FilesystemCorrupted}},
		"btrfs: failed requests":  {filesystem.ErrorCounts{Count: 1, IO: true}, nil, true, []health.Reason{health.IOErrors}},
		"btrfs: both": {
			filesystem.ErrorCounts{Count: 2, IO: true, Corrupted: true},
			nil, true,
			[]health.Reason{health.FilesystemCorrupted, health.IOErrors},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, reasons(errorFindings(test.counted, test.check, test.isBtrfs)))
		})
	}
}

func TestCheckFindings(t *testing.T) {
	t.Parallel()

	const period = time.Hour

	now := time.Now()
	image := volume.Parameters{Backing: volume.BackingImage}
	mounted := &staged.Volume{Parameters: image}
	direct := &staged.Volume{Parameters: volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}}
	recent, old := now.Add(-2*period), now.Add(-2*period-time.Second)

	for name, test := range map[string]struct {
		check  fsck.Result
		volume *staged.Volume
		period time.Duration
		want   []health.Reason
	}{
		"clean":                 {fsck.Result{Verdict: fsck.VerdictClean, CleanAt: recent}, mounted, period, nil},
		"damaged":               {fsck.Result{Verdict: fsck.VerdictDamaged, CleanAt: recent}, mounted, period, []health.Reason{health.FilesystemCorrupted}},
		"damaged, not in use":   {fsck.Result{Verdict: fsck.VerdictDamaged}, nil, period, []health.Reason{health.FilesystemCorrupted}},
		"overdue":               {fsck.Result{Verdict: fsck.VerdictFailed, CleanAt: old}, mounted, period, []health.Reason{health.CheckOverdue}},
		"overdue, not in use":   {fsck.Result{Verdict: fsck.VerdictClean, CleanAt: old}, nil, period, []health.Reason{health.CheckOverdue}},
		"no scheduled checks":   {fsck.Result{Verdict: fsck.VerdictClean, CleanAt: old}, mounted, 0, nil},
		"never clean":           {fsck.Result{Verdict: fsck.VerdictFailed}, mounted, period, nil},
		"a guest may write it":  {fsck.Result{Verdict: fsck.VerdictClean, CleanAt: old}, direct, period, nil},
		"damaged and a guest's": {fsck.Result{Verdict: fsck.VerdictDamaged, CleanAt: old}, direct, period, []health.Reason{health.FilesystemCorrupted}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, reasons(checkFindings(&test.check, test.volume, test.period, now)))
		})
	}
}

func TestLastCleanIgnoresTheFuture(t *testing.T) {
	t.Parallel()

	now := time.Now()
	require.Zero(t, lastClean(nil, now), "want: no check has no time")
	require.Equal(t, now, lastClean(&fsck.Result{CleanAt: now}, now))
	require.Zero(t, lastClean(&fsck.Result{CleanAt: now.Add(time.Hour)}, now), "the clock was set back")
}

func TestExhausted(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		total, available int64
		want             bool
	}{
		"unknown":                     {0, 0, false},
		"empty":                       {1 << 30, 1 << 30, false},
		"full":                        {1 << 30, 0, true},
		"small: less than the least":  {1 << 20, 64<<10 - 1, true},
		"small: the least":            {1 << 20, 64 << 10, false},
		"medium: below a thousandth":  {500 << 20, 500<<20/1000 - 1, true},
		"medium: a thousandth":        {500 << 20, 500 << 20 / 1000, false},
		"large: less than a mebibyte": {1 << 40, 1<<20 - 1, true},
		"large: a mebibyte":           {1 << 40, 1 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, bytesExhausted(mount.Usage{Bytes: mount.Amount{Total: test.total, Available: test.available}}), "want: the filesystem is full if hardly anything is available")
		})
	}

	require.True(t, inodesExhausted(mount.Usage{Inodes: mount.Amount{Total: 10}}), "want: a filesystem without a free inode is exhausted")
	require.False(t, inodesExhausted(mount.Usage{Inodes: mount.Amount{Total: 10, Available: 1}}), "want: a filesystem with a free inode is not exhausted")
	require.False(t, inodesExhausted(mount.Usage{}), "a filesystem without a limit")
}

func TestContradicts(t *testing.T) {
	t.Parallel()

	full := mount.Usage{Bytes: mount.Amount{Total: 1 << 30}}
	free := mount.Usage{Bytes: mount.Amount{Total: 1 << 30, Available: 1 << 29}}
	healthy := NewRecord("volume")
	unhealthy := NewRecord("volume", health.NewEntry(health.OutOfCapacity, "it is full"))

	require.True(t, Contradicts(full, healthy), "it became full")
	require.False(t, Contradicts(full, unhealthy), "want: an unhealthy answer does not contradict a full filesystem")
	require.False(t, Contradicts(free, healthy), "want: a healthy answer does not contradict free space")
	require.True(t, Contradicts(free, unhealthy), "files were deleted")
}

func TestExpectedMounts(t *testing.T) {
	t.Parallel()

	image := volume.Parameters{Backing: volume.BackingImage}
	readOnlyFlag := volume.Capability{MountFlags: []string{"ro"}}
	publications := []staged.Publication{{TargetPath: "/a"}, {TargetPath: "/b", ReadOnly: true}, {TargetPath: "/c", Capability: readOnlyFlag}}
	targets := []expectedMount{{path: "/a", isTarget: true}, {path: "/b", isTarget: true, readOnly: true}, {path: "/c", isTarget: true, readOnly: true}}

	for name, test := range map[string]struct {
		volume staged.Volume
		want   []expectedMount
	}{
		"staged only": {staged.Volume{StagingPath: "/s", Parameters: image}, []expectedMount{{path: "/s"}}},
		"staged and published": {
			staged.Volume{StagingPath: "/s", Parameters: image, Publications: publications},
			append([]expectedMount{{path: "/s"}}, targets...),
		},
		"read-only mount flag": {
			staged.Volume{StagingPath: "/s", Parameters: image, Capability: readOnlyFlag},
			[]expectedMount{{path: "/s", readOnly: true}},
		},
		"attached for reading": {
			staged.Volume{StagingPath: "/s", Parameters: image, ReadOnly: true, Publications: publications[:1]},
			[]expectedMount{{path: "/s", readOnly: true}, {path: "/a", isTarget: true, readOnly: true}},
		},
		"raw block has no staging mount": {
			staged.Volume{StagingPath: "/s", Parameters: image, Capability: volume.Capability{Block: true}, Publications: publications[:1]},
			targets[:1],
		},
		"published, and persistent elsewhere": {
			staged.Volume{StagingPath: "/s", Parameters: image, Publications: publications[:1], Persistent: publications[1:2]},
			[]expectedMount{{path: "/s"}, targets[0], {path: "/b", isTarget: true, isPersistent: true, readOnly: true}},
		},
		"persistent only": {
			staged.Volume{StagingPath: "/s", Parameters: image, Persistent: publications[:1]},
			[]expectedMount{{path: "/a", isTarget: true, isPersistent: true}},
		},
		"persistent, and published": {
			staged.Volume{StagingPath: "/s", Parameters: image, Publications: publications[:1], Persistent: publications[:1]},
			[]expectedMount{{path: "/s"}, {path: "/a", isTarget: true, isPersistent: true}},
		},
		"ephemeral has no staging mount": {
			staged.Volume{Parameters: image, Ephemeral: true, Publications: publications[:1]}, targets[:1],
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			require.Equal(t, test.want, expectedMounts(&test.volume))
		})
	}
}

func TestOnlyALargerImageHasGrown(t *testing.T) {
	t.Parallel()

	now := time.Now()
	earlier := now.Add(-time.Minute)
	last := observation{at: earlier, imageBytes: 1000, growth: growth{until: earlier}}

	require.Equal(t, last.growth, growthSince(last, 1000, now), "the same size")
	require.Equal(t, last.growth, growthSince(last, 500, now), "a smaller image")
	require.Equal(t, growth{}, growthSince(observation{at: earlier}, 1000, now), "no earlier observation")

	grown := growthSince(last, 2000, now)
	require.True(t, grown.covers(now), "want: the growth covers the time now")
	require.True(t, grown.covers(earlier.Add(time.Second)), "it may have grown at any time since the last probe")
	require.False(t, grown.covers(earlier.Add(-time.Second)), "a write before the last probe")
	require.False(t, grown.covers(now.Add(growthSettleTime+time.Second)), "a write long after")
}
