package fsck_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
)

// TestANewerRecordStays has a staging record the volume while a check that began earlier runs.
func TestANewerRecordStays(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	f.tool = func(context.Context, filesystem.Command) (filesystem.Result, error) {
		f.RecordFormatted(context.Background(), f.record())

		return filesystem.Result{ExitCode: 4}, nil
	}

	report, err := f.Check(t.Context(), f.id, fsck.HowOffline)
	require.NoError(t, err)
	require.Equal(t, fsck.VerdictDamaged, report.Verdict, "want: the caller gets the verdict of its check")
	require.Equal(t, fsck.VerdictClean, f.Get(f.id).Verdict, "want: the newer record stays")
	require.Equal(t, f.Get(f.id).At, report.CleanAt)
	require.Empty(t, f.node.takeProbed(), "want: an outdated verdict requests no probe")
}

func TestForgottenRecordsStayForgotten(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	require.NoError(t, f.Forget(f.id), "want: a volume without a record is forgotten already")
	require.Empty(t, f.node.takeProbed(), "want: without a record there is nothing to probe")

	suspicion := fsck.Suspicion{Reason: health.FilesystemErrors, Message: "suspected"}

	for range 300 {
		f.RecordFormatted(t.Context(), f.record())

		changed := make(chan struct{})

		// What changes an existing record must not store it after its deletion.
		go func() {
			defer close(changed)

			for range 20 {
				suspicion.At = time.Now()
				f.Suspect(f.id, nil, suspicion)
				f.SetErrorCount(f.id, uint64(suspicion.At.UnixNano()))
			}
		}()

		require.NoError(t, f.Forget(f.id))
		<-changed
		require.False(t, f.HasRecord(f.id), "want: no change restores a deleted record")
	}

	require.Equal(t, f.id, f.node.takeProbed()[0], "want: a deleted record has the volume probed")
	f.closeStore()
	require.Nil(t, f.durable(), "want: the next start finds no record either")
}

func TestReportDescribesTheResult(t *testing.T) {
	t.Parallel()

	f := newFixture(t, time.Hour)
	require.Nil(t, f.Report(nil), "want: no record has no report")

	at := time.Now()
	record := &fsck.Result{
		VolumeID: f.id, At: at, Verdict: fsck.VerdictDamaged, Detail: " bad inode\n", Took: time.Second, How: fsck.HowOffline, CleanAt: at.Add(-1),
	}
	want := health.CheckReport{
		At: at, Verdict: fsck.VerdictDamaged, Detail: "bad inode", Took: time.Second, How: fsck.HowOffline, CleanAt: at.Add(-1), Period: time.Hour,
	}
	require.Equal(t, want, *f.Report(record))

	f.node.period, want.Period = time.Minute, time.Minute
	require.Equal(t, want, *f.Report(record), "want: the period that the last probe has read")
}

func TestRecordsThatTheDriverDoesNotWriteAreRefused(t *testing.T) {
	t.Parallel()

	id := volume.NewID()

	valid := fsck.Result{VolumeID: id, FSType: filesystem.Ext4, Verdict: fsck.VerdictClean, How: fsck.HowStage}
	require.NoError(t, valid.Check())
	require.Equal(t, id, valid.RecordID())

	for name, change := range map[string]func(*fsck.Result){
		"verdict":    func(r *fsck.Result) { r.Verdict = "fine" },
		"kind":       func(r *fsck.Result) { r.How = "quickly" },
		"filesystem": func(r *fsck.Result) { r.FSType = "vfat" },
		"suspicion":  func(r *fsck.Result) { r.Suspicion = &fsck.Suspicion{Reason: "Doubts"} },
		"id":         func(r *fsck.Result) { r.VolumeID = "../" + id },
	} {
		changed := valid
		change(&changed)
		require.Error(t, changed.Check(), "want: a record with another %s is refused", name)
	}

	valid.Suspicion = &fsck.Suspicion{Reason: health.FilesystemErrors}
	require.NoError(t, valid.Check())
}
