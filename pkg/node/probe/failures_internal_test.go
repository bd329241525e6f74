package probe

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

func TestFailedStagingsAreRememberedForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, at := newFailedStagings(), time.Now()
		failed := failedStaging{volume: &staged.Volume{VolumeID: "a"}, cause: errors.New("broken"), at: at}
		f.add(failed)

		found, ok := f.get("a")
		require.True(t, ok, "want: the staging has failed")
		require.Equal(t, failed, found)
		require.Equal(t, []string{"a"}, f.ids())

		_, ok = f.get("b")
		require.False(t, ok, "want: another volume has not failed")

		f.forget("a", at.Add(-1))
		require.Len(t, f.ids(), 1, "want: a probe that began before knows nothing of it")

		time.Sleep(failedStagingHold - 1)

		_, ok = f.get("a")
		require.True(t, ok, "want: the CO may repeat its call until then")

		time.Sleep(time.Nanosecond)

		_, ok = f.get("a")
		require.False(t, ok, "want: the CO has given up")
		require.Empty(t, f.ids(), "want: nothing is left of it")

		f.add(failedStaging{volume: &staged.Volume{VolumeID: "a", Persistent: []staged.Publication{{}}}, at: time.Now()})
		time.Sleep(failedStagingHold)

		_, ok = f.get("a")
		require.True(t, ok, "want: only the next start repeats a persistent mount")
		f.forget("a", time.Now())
		require.Empty(t, f.ids(), "want: what failed until then is forgotten")
		f.forget("a", time.Now())
	})
}

// TestAFailedPersistentMountSaysWhy it is not mounted, until it is not wanted any more.
func TestAFailedPersistentMountSaysWhy(t *testing.T) {
	t.Parallel()

	f := newFixture(t)
	f.StagingFailed(&staged.Volume{VolumeID: f.id}, errors.New("volume "+f.id+": bad option"))

	persistent := expectedMount{isTarget: true, isPersistent: true}
	require.Equal(t, "bad option", f.failures.whyUnmounted(f.id, persistent))
	require.Equal(t, unmounted, f.failures.whyUnmounted(f.id, expectedMount{isTarget: true}), "want: only a persistent mount has that cause")
	require.Equal(t, unmounted, f.failures.whyUnmounted("another", persistent))

	f.NotWanted(f.id)
	require.Equal(t, unmounted, f.failures.whyUnmounted(f.id, persistent), "want: the failure is forgotten")
}

func TestFailedStagingIsACondition(t *testing.T) {
	t.Parallel()

	at := time.Now().Add(-time.Minute)
	cause := errors.New("volume a: mount: bad option")

	for name, test := range map[string]struct {
		cause   error
		entries []health.Entry
		check   *fsck.Result
		want    []health.Reason
		kept    bool
	}{
		"unexplained":      {cause, nil, nil, []health.Reason{health.StagingFailed}, true},
		"less severe":      {cause, []health.Entry{health.NewEntry(health.IOErrors, "")}, nil, []health.Reason{health.IOErrors, health.StagingFailed}, true},
		"explained":        {cause, []health.Entry{health.NewEntry(health.BackingFileMissing, "")}, nil, []health.Reason{health.BackingFileMissing}, true},
		"worse":            {cause, []health.Entry{health.NewEntry(health.FilesystemCorrupted, "")}, nil, []health.Reason{health.FilesystemCorrupted}, true},
		"the image exists": {fmt.Errorf("stage: %w", pool.ErrMissing), nil, nil, nil, false},
		"it is whole":      {fmt.Errorf("stage: %w", filesystem.ErrTruncated), nil, nil, nil, false},
		"clean since":      {cause, nil, &fsck.Result{CleanAt: at.Add(1)}, nil, false},
		"clean until then": {cause, nil, &fsck.Result{CleanAt: at}, []health.Reason{health.StagingFailed}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := &Prober{failures: newFailedStagings()}
			s := &probeState{prober: p, view: volumeView{id: "a", check: test.check}, findings: findings{entries: test.entries}}
			s.addFailedStaging()
			require.Len(t, s.entries, len(test.entries), "want: without a failed staging nothing is added")
			require.Zero(t, s.again, "want: without a failed staging nothing ends")

			p.failures.add(failedStaging{volume: &staged.Volume{VolumeID: "a"}, cause: test.cause, at: at})
			s.addFailedStaging()
			require.Equal(t, test.want, reasons(s.entries))
			require.Equal(t, test.kept, len(p.failures.ids()) == 1, "want: only what is over is forgotten")
			require.WithinDuration(t, at.Add(failedStagingHold), time.Now().Add(s.again), time.Second)

			if test.want != nil && s.entries[len(s.entries)-1].Reason == health.StagingFailed {
				require.Equal(t, "it cannot be staged: mount: bad option", s.entries[len(s.entries)-1].Message)
			}
		})
	}
}
