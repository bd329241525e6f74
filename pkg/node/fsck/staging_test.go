package fsck_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/fsck"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// checked is a filesystem whose checks find the verdicts, one after the other.
type checked struct {
	filesystem.Filesystem

	verdicts []filesystem.Verdict
	err      error
	// forced is how many of the checks read all metadata.
	checks, forced int
}

func (*checked) Name() string { return filesystem.Ext4 }

func (c *checked) Check(context.Context, string) (filesystem.Verdict, error) {
	c.checks++

	if c.err != nil {
		return filesystem.Verdict{}, c.err
	}

	return c.verdicts[c.checks-1], nil
}

func (c *checked) ForceCheck(ctx context.Context, path string) (filesystem.Verdict, error) {
	c.forced++

	return c.Check(ctx, path)
}

func TestTheVerdictDecidesWhetherAVolumeIsStaged(t *testing.T) {
	t.Parallel()

	clean, repaired := filesystem.Verdict{State: filesystem.Clean}, filesystem.Verdict{State: filesystem.Repaired, Detail: "fixed"}
	damaged, dirty := filesystem.Verdict{State: filesystem.Damaged, Detail: "bad inode"}, filesystem.Verdict{State: filesystem.NeedsReplay}

	for name, test := range map[string]struct {
		fs       *checked
		replayed bool
		verdict  string
		code     codes.Code
		dirty    bool
	}{
		"clean":                    {&checked{verdicts: []filesystem.Verdict{clean}}, false, fsck.VerdictClean, codes.OK, false},
		"repaired":                 {&checked{verdicts: []filesystem.Verdict{repaired}}, false, fsck.VerdictRepaired, codes.OK, false},
		"damaged":                  {&checked{verdicts: []filesystem.Verdict{damaged}}, false, fsck.VerdictDamaged, codes.Internal, false},
		"dirty":                    {&checked{verdicts: []filesystem.Verdict{dirty}}, false, "", codes.OK, true},
		"clean after a replay":     {&checked{verdicts: []filesystem.Verdict{clean}}, true, fsck.VerdictClean, codes.OK, false},
		"dirty after a replay":     {&checked{verdicts: []filesystem.Verdict{dirty}}, true, fsck.VerdictDamaged, codes.Internal, false},
		"the check cannot be made": {&checked{err: errTool}, false, "", codes.Internal, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, began := newFixture(t, 0), time.Now()

			var since time.Time
			if test.replayed {
				since = began.Add(-time.Hour)
			}

			gotDirty, err := f.CheckAtStaging(t.Context(), f.record(), test.fs, "/dev/loop0", since)
			err = rpc.Status(err)
			rpccode.Require(t, err, test.code)
			require.Equal(t, test.dirty, gotDirty, "want: only a log that was not replayed yet has to be")
			require.Zero(t, test.fs.forced, "want: a filesystem without a finding is trusted if it is marked clean")
			require.Empty(t, f.node.takeProbed(), "want: the staging requests a probe itself")

			found := f.Get(f.id)
			if test.verdict == "" {
				require.Nil(t, found, "want: a check that was not made has no record")

				return
			}

			f.requireCounted(fsck.HowStage, test.verdict)
			require.Equal(t, test.verdict, found.Verdict)
			require.Equal(t, test.fs.verdicts[len(test.fs.verdicts)-1].Detail, found.Detail)
			require.Equal(t, "second", found.Pool)
			require.Equal(t, filesystem.Ext4, found.FSType)
			require.Equal(t, fsck.HowStage, found.How)
			if test.replayed {
				require.True(t, since.Equal(found.At), "want: the check began before the replay")
				require.Greater(t, found.Took, time.Hour, "want: the replay is a part of the check")
			} else {
				require.WithinRange(t, found.At, began, time.Now())
			}

			require.Equal(t, found.At, found.Since)
			require.Positive(t, found.Took, "want: the check takes some time")
		})
	}
}

// TestFindingForcesAFullCheckAtStaging: the filesystem is damaged, or suspected to be.
func TestFindingForcesAFullCheckAtStaging(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	stage := func(state filesystem.State) int {
		fs := &checked{verdicts: []filesystem.Verdict{{State: state}}}
		_, _ = f.CheckAtStaging(t.Context(), f.record(), fs, "/dev/loop0", time.Time{})

		return fs.forced
	}

	require.Zero(t, stage(filesystem.Damaged), "want: the first check trusts the filesystem")
	require.Equal(t, 1, stage(filesystem.Clean), "want: a damaged filesystem is checked wholly")
	require.Zero(t, stage(filesystem.Clean), "want: a clean filesystem is trusted again")

	f.Suspect(f.id, nil, fsck.Suspicion{Reason: health.FilesystemErrors, At: time.Now()})
	require.True(t, f.Get(f.id).HasFinding(), "want: the suspicion is a finding")
	require.Equal(t, 1, stage(filesystem.Clean), "want: a suspected filesystem is checked wholly")
	require.False(t, f.Get(f.id).HasFinding(), "want: the whole check ends the suspicion")
}

func TestAMountIsRecordedAsClean(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	require.False(t, f.HasRecord(f.id), "want: a new volume has no record")

	f.RecordMounted(t.Context(), f.record())

	first := f.Get(f.id)
	require.Equal(t, fsck.VerdictClean, first.Verdict, "want: a mounted filesystem was found clean or made")
	require.Equal(t, first.At, first.CleanAt)

	f.RecordMounted(t.Context(), f.record())
	require.Same(t, first, f.Get(f.id), "want: an existing record stays")
}

func TestStagingFailureIsRecordedAsDamage(t *testing.T) {
	t.Parallel()

	truncated, unrecognized := fmt.Errorf("stage: %w", filesystem.ErrTruncated), fmt.Errorf("stage: %w", filesystem.ErrUnrecognized)

	for name, test := range map[string]struct {
		known     bool
		failure   error
		verdict   string
		suspected bool
	}{
		"the kernel refuses it":      {false, fmt.Errorf("mount: %w", mount.ErrCorrupted), fsck.VerdictDamaged, false},
		"lost":                       {true, unrecognized, fsck.VerdictDamaged, false},
		"never had one":              {false, unrecognized, "", false},
		"truncated":                  {true, truncated, fsck.VerdictClean, true},
		"truncated, without a check": {false, truncated, fsck.VerdictFailed, true},
		"another failure":            {true, errTool, fsck.VerdictClean, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, 0)
			if test.known {
				f.RecordFormatted(t.Context(), f.record())
			}

			f.RecordFailure(t.Context(), f.record(), test.failure)

			found := f.Get(f.id)
			if test.verdict == "" {
				require.Nil(t, found, "want: a volume that never had a filesystem has no record")

				return
			}

			require.Equal(t, test.verdict, found.Verdict)
			require.Equal(t, test.suspected, found.Suspicion != nil, "want: a suspicion only of an image that is too short")

			if test.suspected {
				require.Equal(t, fsck.Truncated, found.Suspicion.Message)
			}

			if test.verdict == fsck.VerdictDamaged {
				require.Contains(t, found.Detail, test.failure.Error())
			}
		})
	}
}

func TestSuspicionsAreRecorded(t *testing.T) {
	t.Parallel()

	at := time.Now()
	errs := func(after time.Duration) fsck.Suspicion {
		return fsck.Suspicion{Reason: health.FilesystemErrors, Message: "errors", At: at.Add(after)}
	}
	corrupted := func(after time.Duration) fsck.Suspicion {
		return fsck.Suspicion{Reason: health.FilesystemCorrupted, Message: "corrupted", At: at.Add(after)}
	}

	for name, test := range map[string]struct {
		given []fsck.Suspicion
		want  fsck.Suspicion
	}{
		"one":                         {[]fsck.Suspicion{errs(1)}, errs(1)},
		"later":                       {[]fsck.Suspicion{errs(1), errs(2)}, errs(2)},
		"at the same time":            {[]fsck.Suspicion{errs(1), {Reason: health.FilesystemErrors, Message: "others", At: at.Add(1)}}, errs(1)},
		"later, with another message": {[]fsck.Suspicion{errs(1), {Reason: health.FilesystemErrors, Message: "others", At: at.Add(2)}}, errs(2)},
		"earlier":                     {[]fsck.Suspicion{errs(2), errs(1)}, errs(2)},
		"worse and later":             {[]fsck.Suspicion{errs(1), corrupted(2)}, corrupted(2)},
		"worse and earlier":           {[]fsck.Suspicion{errs(2), corrupted(1)}, corrupted(2)},
		"less severe and later":       {[]fsck.Suspicion{corrupted(1), errs(2)}, corrupted(2)},
		"less severe and earlier":     {[]fsck.Suspicion{corrupted(2), errs(1)}, corrupted(2)},
		"before the last check too":   {[]fsck.Suspicion{errs(1), errs(-time.Hour)}, errs(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, 0)
			for _, each := range test.given {
				f.Suspect(f.id, f.record(), each)
			}

			found := f.Get(f.id)
			require.True(t, test.want.At.Equal(found.Suspicion.At), "want: the suspicion is of %s, not %s", test.want.At, found.Suspicion.At)
			require.Equal(t, test.want.Reason, found.Suspicion.Reason)
			require.Equal(t, test.want.Message, found.Suspicion.Message)
			require.Equal(t, fsck.VerdictFailed, found.Verdict, "want: no check has found the volume clean")
			require.Equal(t, test.given[0].Message, found.Detail)
		})
	}
}

func TestOtherVolumesAreNotSuspected(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	suspicion := fsck.Suspicion{Reason: health.FilesystemErrors, At: time.Now()}

	f.Suspect(f.id, nil, suspicion)
	require.Nil(t, f.Get(f.id), "want: a volume without a filesystem here is not suspected")

	f.RecordFormatted(t.Context(), f.record())
	f.Suspect(f.id, f.record(), suspicion)
	require.False(t, f.Get(f.id).HasFinding(), "want: the later clean check stands")

	suspicion.At = f.Get(f.id).CleanAt
	f.Suspect(f.id, f.record(), suspicion)
	require.True(t, f.Get(f.id).HasFinding(), "want: a check that began at that time proves nothing")
}

// TestFutureCleanCheckDoesNotSkipTheCheck: the clock is set back after a clean check.
func TestFutureCleanCheckDoesNotSkipTheCheck(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	require.NoError(t, f.records.PutLazily(&fsck.Result{
		VolumeID: f.id, FSType: filesystem.Ext4, Verdict: fsck.VerdictClean, How: fsck.HowStage, CleanAt: time.Now().Add(time.Hour),
	}))
	f.Suspect(f.id, nil, fsck.Suspicion{Reason: health.FilesystemErrors, At: time.Now()})
	require.True(t, f.Get(f.id).HasFinding(), "want: the suspicion is recorded")
}

func TestErrorCountsAreRecorded(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	f.SetErrorCount(f.id, 3)
	require.Nil(t, f.Get(f.id), "want: a count makes no record")

	f.RecordFormatted(t.Context(), f.record())

	formatted := f.Get(f.id)
	f.SetErrorCount(f.id, 0)
	require.Same(t, formatted, f.Get(f.id), "want: the same count changes nothing")

	f.SetErrorCount(f.id, 3)
	require.EqualValues(t, 3, f.Get(f.id).Errors, "want: the count after the check at staging")
	require.Zero(t, formatted.Errors, "want: a record is never modified")

	_, err := f.Check(t.Context(), f.id, fsck.HowOffline)
	require.NoError(t, err)
	f.SetErrorCount(f.id, 4)
	require.EqualValues(t, 3, f.Get(f.id).Errors, "want: another check knows the count itself")
}

func TestAStoreThatFailsIsReported(t *testing.T) {
	t.Parallel()

	f := newFixture(t, 0)
	f.RecordFormatted(t.Context(), f.record())
	f.closeStore()

	require.Error(t, f.Forget(f.id), "want: the record cannot be deleted")
	require.True(t, f.HasRecord(f.id), "want: the record stays")
}
