package pool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	quotaID      = "01a20000-0000-7000-8000-000000000001"
	quotaOtherID = "01a20000-0000-7000-8000-000000000002"
)

var errQuota = errors.New("the quota fails")

// fakeQuotas has directories without limits, of which one call may fail.
type fakeQuotas struct {
	quota.Directories

	kind quota.Kind
	// failing is the name of the call that returns errQuota.
	failing string
	// evaded are the names of the directories in which Confine and Sweep find something, and grown is what
	// Grown returns.
	evaded, grown []string
	// limits are those of directories by name, and calls what was called.
	limits map[string]int64
	calls  []string
}

func (f *fakeQuotas) called(name string) error {
	f.calls = append(f.calls, name)
	if name == f.failing {
		return errQuota
	}

	return nil
}

func (f *fakeQuotas) Support() quota.Support { return quota.Support{Kind: f.kind, Limited: true} }

func (f *fakeQuotas) Make(parent *os.Root, name string, mode os.FileMode) error {
	return errors.Join(f.called("Make"), f.Directories.Make(parent, name, mode))
}

func (f *fakeQuotas) Limit(directory *os.File, bytes int64) error {
	f.limits[filepath.Base(directory.Name())] = bytes

	return f.called("Limit")
}

func (f *fakeQuotas) Confine(directory *os.File) (bool, error) {
	return slices.Contains(f.evaded, filepath.Base(directory.Name())), f.called("Confine")
}

func (f *fakeQuotas) Sweep(_ context.Context, directory *os.File) (bool, error) {
	return slices.Contains(f.evaded, filepath.Base(directory.Name())), f.called("Sweep")
}

func (f *fakeQuotas) Grown() ([]string, error) { return f.grown, f.called("Grown") }

func (f *fakeQuotas) Usage(directory *os.File) (quota.Usage, bool, error) {
	limit, found := f.limits[filepath.Base(directory.Name())]

	return quota.Usage{LimitBytes: limit, Bytes: 77}, found, f.called("Usage")
}

func (f *fakeQuotas) Allocated(*os.File) (int64, bool, error) { return 99, true, f.called("Allocated") }

func (f *fakeQuotas) Sync(*os.File) error { return f.called("Sync") }

func (f *fakeQuotas) Remove(context.Context, *os.File, string) (bool, error) {
	return false, f.called("Remove")
}

func (f *fakeQuotas) RemoveStale(context.Context) error { return f.called("RemoveStale") }

// newQuotaPool opens a pool with fake quotas, which has a directory volume with a file.
func newQuotaPool(t *testing.T) (*Pool, *fakeQuotas) {
	t.Helper()

	p, err := Open("fake", t.TempDir(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })

	f := &fakeQuotas{Directories: p.Directories.quotas, kind: quota.Project, limits: map[string]int64{}}
	p.Directories.quotas, p.quotas = f, f

	require.NoError(t, p.Directories.Create(quotaID, 10, false))
	require.NoError(t, os.WriteFile(filepath.Join(p.ObjectPath(directoryOf(quotaID)), "file"), []byte("content"), 0o600))

	f.calls = nil

	return p, f
}

// TestEachQuotaCallFails has each call for the limit of a directory fail, which is reported.
func TestEachQuotaCallFails(t *testing.T) {
	t.Parallel()

	directory := Object{ID: quotaID, Backing: volume.BackingDirectory}

	for name, test := range map[string]struct {
		run     func(ctx context.Context, p *Pool) error
		failing []string
	}{
		"EnsureDirectory": {
			run:     func(_ context.Context, p *Pool) error { return p.Directories.Create(quotaOtherID, 10, false) },
			failing: []string{"Make", "Limit", "Confine"},
		},
		"LimitDirectory": {
			run:     func(_ context.Context, p *Pool) error { return p.Directories.Limit(quotaID, 20) },
			failing: []string{"Limit", "Confine"},
		},
		"ConfineDirectory": {
			run:     func(_ context.Context, p *Pool) error { return p.Directories.Confine(quotaID) },
			failing: []string{"Confine"},
		},
		"ConfineGrown": {
			run: func(_ context.Context, p *Pool) error {
				_, err := p.ConfineGrown()

				return err
			},
			failing: []string{"Grown", "Confine"},
		},
		"Sweep": {
			run: func(ctx context.Context, p *Pool) error {
				_, err := p.Sweep(ctx)

				return err
			},
			failing: []string{"Sweep"},
		},
		"SyncDirectory": {
			run:     func(_ context.Context, p *Pool) error { return p.Directories.Sync(quotaID) },
			failing: []string{"Sync"},
		},
		"DirectoryQuota": {
			run: func(_ context.Context, p *Pool) error {
				_, _, err := p.Directories.Quota(quotaID)

				return err
			},
			failing: []string{"Confine", "Usage"},
		},
		"AllocatedBytes": {
			run: func(ctx context.Context, p *Pool) error {
				_, err := p.Directories.AllocatedBytes(ctx, quotaID)

				return err
			},
			failing: []string{"Confine", "Usage"},
		},
		"Allocation.Add": {
			run:     func(ctx context.Context, p *Pool) error { return (&Allocation{}).Add(ctx, p, directory) },
			failing: []string{"Allocated"},
		},
		"RemoveStaleQuotas": {
			run:     func(ctx context.Context, p *Pool) error { return p.Directories.RemoveStaleQuotas(ctx) },
			failing: []string{"RemoveStale"},
		},
		"Remove": {
			run:     func(ctx context.Context, p *Pool) error { return p.Remove(ctx, directory) },
			failing: []string{"Remove"},
		},
		"copy": {
			run: func(ctx context.Context, p *Pool) error {
				making, err := p.NewCopy(p, directory, Object{ID: quotaOtherID, Backing: volume.BackingDirectory}, CopyOptions{SizeBytes: 20})
				if err != nil {
					return err
				}

				err = making.CopyData(ctx)
				if err == nil {
					_, err = making.Commit(ctx)
				}

				return errors.Join(err, making.Abort())
			},
			failing: []string{"Make", "Limit", "Sync"},
		},
		"RemoveEmptyOrphan": {
			run: func(ctx context.Context, p *Pool) error {
				require.NoError(t, os.Remove(filepath.Join(p.ObjectPath(directoryOf(quotaID)), "file")))

				_, err := p.RemoveEmptyOrphan(ctx, Object{ID: quotaID, Backing: volume.BackingDirectory})

				return err
			},
			failing: []string{"Remove"},
		},
		"limit before a copy": {
			run: func(_ context.Context, p *Pool) error {
				p.quotas.(*fakeQuotas).kind = quota.Plain

				making, err := p.NewCopy(p, directory, Object{ID: quotaOtherID, Backing: volume.BackingDirectory}, CopyOptions{SizeBytes: 20})
				if err != nil {
					return err
				}

				return making.Abort()
			},
			failing: []string{"Limit"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			for _, failing := range append(test.failing, "") {
				p, f := newQuotaPool(t)
				f.failing, f.grown = failing, []string{quotaID}

				err := test.run(t.Context(), p)
				if failing == "" {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, errQuota, "want: a failure of %s is reported", failing)
				}
			}
		})
	}
}

// TestEvadedLimits reports the volumes of which files have evaded the limit, also those inside of the
// pool for ephemeral volumes, and no others.
func TestEvadedLimits(t *testing.T) {
	t.Parallel()

	for name, search := range map[string]func(ctx context.Context, p *Pool) ([]string, error){
		"ConfineGrown": func(_ context.Context, p *Pool) ([]string, error) { return p.ConfineGrown() },
		"Sweep":        func(ctx context.Context, p *Pool) ([]string, error) { return p.Sweep(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p, f := newQuotaPool(t)
			require.NoError(t, p.Directories.Create(quotaOtherID, 10, false))

			inner, err := p.Ephemeral()
			require.NoError(t, err)

			const innerID = "01a20000-0000-7000-8000-000000000003"

			inside := &fakeQuotas{Directories: inner.Directories.quotas, kind: quota.Project, limits: map[string]int64{}, evaded: []string{innerID}}
			inner.Directories.quotas, inner.quotas = inside, inside
			require.NoError(t, inner.Directories.Create(innerID, 10, false))

			f.grown = []string{"no volume", quotaID, quotaOtherID, innerID, "01a20000-0000-7000-8000-000000000009"}
			f.evaded = []string{quotaID}

			evaded, err := search(t.Context(), p)
			require.NoError(t, err)
			require.ElementsMatch(t, []string{quotaID, innerID}, evaded)
			require.Positive(t, p.Directories.LimitEvadedFor(quotaID), "want: the volume is reported for a time")
			require.LessOrEqual(t, p.Directories.LimitEvadedFor(quotaID), evasionHold, "want: the volume is not reported for longer than it is held")
			require.Zero(t, p.Directories.LimitEvadedFor(quotaOtherID), "want: the other volume has not evaded its limit")
			require.Positive(t, inner.Directories.LimitEvadedFor(innerID), "want: the inner pool reports its volume")

			// What one directory fails with does not hide what others have.
			f.failing = "Confine"
			inside.failing = "Sweep"
			evaded, err = search(t.Context(), p)
			require.ErrorIs(t, err, errQuota)
			require.Contains(t, evaded, quotaID)

			require.NoError(t, p.Remove(t.Context(), Object{ID: quotaID, Backing: volume.BackingDirectory}))
			require.Zero(t, p.Directories.LimitEvadedFor(quotaID), "want: a removed volume is not reported")
		})
	}

	p, f := newQuotaPool(t)
	f.kind, f.evaded = quota.Subvolume, []string{quotaID}

	evaded, err := p.Sweep(t.Context())
	require.NoError(t, err)
	require.Empty(t, evaded, "want: only projects are swept")
	require.Empty(t, f.calls, "want: only projects are swept")

	ended, cancel := context.WithCancel(t.Context())
	cancel()

	f.kind = quota.Project
	require.NoError(t, os.WriteFile(p.ObjectPath(directoryOf(quotaOtherID)), nil, 0o600))

	_, err = p.Sweep(t.Context())
	require.ErrorIs(t, err, unix.ENOTDIR, "want: what cannot be swept is reported")
	require.NoError(t, os.Remove(p.ObjectPath(directoryOf(quotaOtherID))))
	require.NoError(t, p.Directories.Create(quotaOtherID, 10, false))

	f.calls = nil
	_, err = p.Sweep(ended)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{"Sweep"}, f.calls, "want: a sweep ends with the directory at which it was cancelled")
}

// TestCountedSpace takes what the kernel counts instead of a walk.
func TestCountedSpace(t *testing.T) {
	t.Parallel()

	p, f := newQuotaPool(t)
	f.evaded = []string{quotaID}

	usage, limited, err := p.Directories.Quota(quotaID)
	require.NoError(t, err)
	require.True(t, limited, "want: the directory is limited")
	require.Equal(t, quota.Usage{LimitBytes: 10, Bytes: 77}, usage)
	require.Positive(t, p.Directories.LimitEvadedFor(quotaID), "want: the usage finds what has evaded the limit")

	bytes, err := p.Directories.AllocatedBytes(t.Context(), quotaID)
	require.NoError(t, err)
	require.EqualValues(t, 77, bytes, "want: the usage is what the kernel counts")

	delete(f.limits, quotaID)

	bytes, err = p.Directories.AllocatedBytes(t.Context(), quotaID)
	require.NoError(t, err)
	require.NotEqualValues(t, 77, bytes, "want: a directory without a limit is measured")

	var sum Allocation
	require.NoError(t, sum.Add(t.Context(), p, Object{ID: quotaID, Backing: volume.BackingDirectory}))
	require.EqualValues(t, 99, sum.Bytes(), "want: the sum has what the kernel counts")
}

// TestCopyOfAProjectIsLimitedAtItsEnd limits a copy before it is written, and one in a project after
// that.
func TestCopyOfAProjectIsLimitedAtItsEnd(t *testing.T) {
	t.Parallel()

	for kind, size := range map[quota.Kind]int64{quota.Project: 20, quota.Plain: 20, quota.Kind(""): 0} {
		p, f := newQuotaPool(t)
		f.kind = kind

		making, err := p.NewCopy(p, Object{ID: quotaID, Backing: volume.BackingDirectory},
			Object{ID: quotaOtherID, Backing: volume.BackingDirectory}, CopyOptions{SizeBytes: size})
		require.NoError(t, err)
		require.NoError(t, making.CopyData(t.Context()))
		require.Equal(t, kind == quota.Plain, slices.Contains(f.calls, "Limit"), "want: whether a copy of %q is limited before it is written", kind)

		_, err = making.Commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, making.Abort())
		require.Equal(t, size, f.limits[quotaOtherID], "want: the limit of the copy is its size")
		require.Contains(t, f.calls, "Sync", "want: the limit is durable")
	}
}

// fakeLedger has provisioned some bytes, or fails.
type fakeLedger struct {
	bytes int64
	err   error
}

func (l fakeLedger) ProvisionedBytes(string) int64 { return l.bytes }

func (l fakeLedger) AddAllocated(_ context.Context, _ string, sum *Allocation) error {
	sum.bytes += l.bytes

	return l.err
}

// TestAdmissionHasALimit admits exactly what a pool may provision, and reports what cannot be measured.
func TestAdmissionHasALimit(t *testing.T) {
	t.Parallel()

	p, _ := newQuotaPool(t)
	admission := &Admission{Overcommit: 1, Capacities: map[string]int64{p.name: 100}}
	admission.Register(fakeLedger{bytes: 20})
	admission.Register(fakeLedger{bytes: 10})

	for bytes, fits := range map[int64]bool{0: true, 69: true, 70: true, 71: false} {
		err := admission.Admit(t.Context(), func(check Check) error { return check(p, bytes, false) })
		if fits {
			require.NoError(t, err, "%d bytes fit", bytes)
		} else {
			require.ErrorIs(t, err, ErrOvercommitted)
			errtext.Require(t, err, "71 more bytes, only 70")
		}
	}

	left, err := admission.Capacity(t.Context(), p, false)
	require.NoError(t, err)
	require.EqualValues(t, 70, left, "want: the capacity is what is not provisioned")

	admission.Capacities[p.name] = 1
	left, err = admission.Capacity(t.Context(), p, true)
	require.NoError(t, err)
	require.Zero(t, left, "want: the capacity is never below 0")

	admission.Capacities[p.name] = 1 << 62
	left, err = admission.Capacity(t.Context(), p, true)
	require.NoError(t, err)
	require.Less(t, left, int64(1<<60), "want: thick volumes get no more than is available")

	admission.Capacities[p.name] = 1
	admission.Register(fakeLedger{err: errQuota})

	_, err = admission.Capacity(t.Context(), p, false)
	require.ErrorIs(t, err, errQuota)
	require.ErrorIs(t, admission.Admit(t.Context(), func(check Check) error { return check(p, 2, false) }), errQuota)
}

// TestObjectsOfAnotherTypeAreRefused, although they have the name of a volume.
func TestObjectsOfAnotherTypeAreRefused(t *testing.T) {
	t.Parallel()

	p, _ := newQuotaPool(t)
	require.NoError(t, os.WriteFile(p.ObjectPath(directoryOf(quotaOtherID)), []byte("a file"), 0o600))

	_, err := p.Open(directoryOf(quotaOtherID))
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.NotErrorIs(t, err, ErrMissing)

	removed, err := p.RemoveEmptyOrphan(t.Context(), Object{ID: quotaOtherID, Backing: volume.BackingDirectory})
	require.NoError(t, err)
	require.False(t, removed, "want: a file in place of a directory is kept")
	require.FileExists(t, p.ObjectPath(directoryOf(quotaOtherID)))

	require.NoError(t, os.Symlink("elsewhere", p.ObjectPath(imageOf(quotaOtherID))))
	removed, err = p.RemoveEmptyOrphan(t.Context(), Object{ID: quotaOtherID, Backing: volume.BackingImage})
	require.NoError(t, err)
	require.False(t, removed, "want: a symlink in place of an image is kept")

	removed, err = p.RemoveEmptyOrphan(t.Context(), Object{ID: quotaID, Backing: volume.BackingDirectory})
	require.NoError(t, err)
	require.False(t, removed, "want: a directory with files is kept")

	// It is written between the two checks.
	require.NoError(t, p.Images.Create(quotaID, 1<<20, true))
	removed, err = p.Images.removeUnused(quotaID)
	require.NoError(t, err)
	require.False(t, removed, "want: an image with data is kept")
	require.FileExists(t, p.ObjectPath(imageOf(quotaID)))

	require.NoError(t, os.Remove(filepath.Join(p.ObjectPath(directoryOf(quotaID)), "file")))

	for range 2 {
		removed, err = p.RemoveEmptyOrphan(t.Context(), Object{ID: quotaID, Backing: volume.BackingDirectory})
		require.NoError(t, err)
		require.True(t, removed, "want: an empty or a missing directory is removed")
	}

	require.NoDirExists(t, p.ObjectPath(directoryOf(quotaID)))

	_, err = p.Open(directoryOf(quotaID))
	require.ErrorIs(t, err, ErrMissing)
}
