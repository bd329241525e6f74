package pool

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/extent"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func TestTimes(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		bytes  int64
		factor float64
		want   int64
	}{
		{0, 2, 0},
		{10, 0.5, 5},
		{10, 1.5, 15},
		{3, 0.5, 1},
		{1 << 62, 1, 1 << 62},
		{1 << 62, 2, math.MaxInt64},
		{math.MaxInt64, 1, math.MaxInt64},
		{1, math.MaxFloat64, math.MaxInt64},
	} {
		require.Equal(t, test.want, times(test.bytes, test.factor), "%d times %v", test.bytes, test.factor)
	}
}

func TestUnprovisioned(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		capacity    Capacity
		overcommit  float64
		provisioned int64
		allocated   bool
		want        int64
	}{
		{Capacity{Available: 100}, 1, 0, false, 100},
		{Capacity{Available: 100}, 1, 30, false, 70},
		{Capacity{Available: 100, Allocated: 30}, 1, 30, false, 100},
		{Capacity{Available: 100, Allocated: 50}, 1, 30, false, 100},
		{Capacity{Available: 100, Allocated: 50}, 1, 30, true, 120},
		{Capacity{Available: 100, Allocated: 50}, 2, 30, false, 200},
		{Capacity{Available: 100, Allocated: 50}, 2, 300, false, 0},
		{Capacity{Available: 100}, 1, 130, false, -30},
		{Capacity{Available: 100}, 1, 130, true, -30},
	} {
		require.Equal(t, test.want, test.capacity.unprovisioned(test.overcommit, test.provisioned, test.allocated), "%+v", test)
	}
}

// provisionedBytes is a ledger of volumes that have allocated nothing.
type provisionedBytes int64

func (p provisionedBytes) ProvisionedBytes(string) int64 { return int64(p) }

func (provisionedBytes) AddAllocated(context.Context, string, *Allocation) error { return nil }

// TestAllThatIsProvisionedCountsForAdmission: the ledgers count together, and a configured capacity replaces the space of its pool
// and the ratio.
func TestAllThatIsProvisionedCountsForAdmission(t *testing.T) {
	t.Parallel()

	space, configured := Capacity{Available: 100, Allocated: 50}, map[string]int64{"default": 70, "another": 1}

	for _, test := range []struct {
		capacities  map[string]int64
		overcommit  float64
		provisioned []int64
		allocated   bool
		// most is what is admitted, and no byte more.
		most int64
	}{
		{nil, 1, nil, false, 100},
		{nil, 1, []int64{90}, false, 60},
		{nil, 1, []int64{40, 50}, false, 60},
		{nil, 1, []int64{20}, true, 130},
		{nil, 2, []int64{90}, false, 200},
		{nil, 2, []int64{200}, false, 100},
		{map[string]int64{"another": 1}, 1, []int64{90}, false, 60},
		{configured, 1, nil, false, 70},
		{configured, 2, []int64{20, 30}, false, 20},
		{configured, 1, []int64{20}, true, 50},
	} {
		admission, stored := &Admission{Overcommit: test.overcommit, Capacities: test.capacities}, &Pool{label: label{name: "default"}}
		for _, each := range test.provisioned {
			admission.Register(provisionedBytes(each))
		}

		require.NoError(t, admission.check(stored, space, test.most, test.allocated), "%+v", test)

		err := admission.check(stored, space, test.most+1, test.allocated)
		require.ErrorIs(t, err, ErrOvercommitted, "%+v", test)
		errtext.Require(t, err, fmt.Sprintf(`pool "default" can't provision %d more bytes, only %d`, test.most+1, test.most))
	}
}

func TestBlocksToBytes(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		blocks uint64
		size   int64
		want   int64
	}{
		{0, 4096, 0},
		{3, 4096, 12288},
		{3, 0, math.MaxInt64},
		{3, -1, math.MaxInt64},
		{3, 1, 3},
		{math.MaxInt64, 1, math.MaxInt64},
		{math.MaxInt64 / 4096, 4096, math.MaxInt64 / 4096 * 4096},
		{math.MaxInt64/4096 + 1, 4096, math.MaxInt64},
		{math.MaxUint64, 512, math.MaxInt64},
	} {
		require.Equal(t, test.want, blocksToBytes(test.blocks, test.size), "%d blocks of %d", test.blocks, test.size)
	}
}

func TestAPoolIsNearlyFullBelowAShare(t *testing.T) {
	t.Parallel()

	const gibi = 1 << 30

	for _, test := range []struct {
		total, available int64
		want             bool
	}{
		{2000, 100, false},
		{2000, 99, true},
		{2000, 0, true},
		{2000, 2000, false},
		{20 * gibi, gibi, false},
		{20 * gibi, gibi - 1, true},
		{1000 * gibi, gibi, false},
		{1000 * gibi, gibi - 1, true},
	} {
		require.Equal(t, test.want, Capacity{Total: test.total, Available: test.available}.NearlyFull(), "%+v", test)
	}
}

func TestProvisioned(t *testing.T) {
	t.Parallel()

	var sum Provisioned

	require.Zero(t, sum.Bytes("one"), "want: nothing is provisioned before the first")
	sum.Add("one", 5)
	sum.Add("two", 7)
	sum.Add("one", -3)
	require.EqualValues(t, 2, sum.Bytes("one"), "want: what is provisioned in the first pool")
	require.EqualValues(t, 7, sum.Bytes("two"), "want: what is provisioned in the second pool")
}

// TestKeyedLocks: the holder of an id excludes others of it alone, and nothing is kept of it.
func TestKeyedLocks(t *testing.T) {
	t.Parallel()

	locks := newKeyedSemaphores(1)

	release, err := locks.acquire(t.Context(), "one")
	require.NoError(t, err)

	ended, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the reason")
	cancel(reason)

	_, err = locks.acquire(ended, "one")
	require.ErrorIs(t, err, reason, "another has it")

	other, err := locks.acquire(t.Context(), "two")
	require.NoError(t, err)
	other()

	next := make(chan func())

	go func() {
		release, _ := locks.acquire(t.Context(), "one")
		next <- release
	}()

	select {
	case <-next:
		require.Fail(t, "two have the lock of one id")
	default:
	}

	release()
	(<-next)()
	require.Empty(t, locks.used, "want: no lock is kept that is not held")
}

func TestErrorsOfSpaceNameThePool(t *testing.T) {
	t.Parallel()

	p := label{name: "default", path: "/pool"}

	for _, cause := range []error{unix.ENOSPC, unix.EDQUOT, fmt.Errorf("write: %w", unix.ENOSPC)} {
		err := p.spaceError(cause)
		require.ErrorIs(t, err, ErrNoSpace)
		require.ErrorIs(t, err, cause)
		errtext.Require(t, err, `pool "default" at /pool`)
		require.Equal(t, err, p.spaceError(err), "it has the pool once")
	}

	require.NoError(t, p.spaceError(nil))
	require.Equal(t, unix.EIO, p.spaceError(unix.EIO))
}

func TestMissingLocksAreAnErrorOfTheirOwn(t *testing.T) {
	t.Parallel()

	for cause, without := range map[error]bool{unix.EOPNOTSUPP: true, unix.ENOLCK: true, unix.ENOSYS: true, unix.EIO: false} {
		err := lockError("/pool/images/one.img", cause, ErrInUse)
		require.ErrorIs(t, err, cause)
		errtext.Require(t, err, "/pool/images/one.img")
		require.Equal(t, without, errors.Is(err, ErrNoLocks), "want: whether %s says that there are no locks", cause)
		require.NotErrorIs(t, err, ErrInUse)
	}

	require.ErrorIs(t, lockError("/pool/images/one.img", unix.EWOULDBLOCK, ErrInUse), ErrInUse)
	require.NoError(t, lockError("/pool/images/one.img", nil, ErrInUse))
}

func TestRangesNeedFreeSpace(t *testing.T) {
	t.Parallel()

	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	require.NoError(t, err)

	defer file.Close()

	require.NoError(t, checkFree(file, nil))
	require.NoError(t, checkFree(file, []extent.Range{{Length: 1}, {Length: 1}}))

	err = checkFree(file, []extent.Range{{Length: 1 << 61}, {Length: 1}})
	require.ErrorIs(t, err, unix.ENOSPC)
	errtext.Require(t, err, "2305843009213693953 bytes have to be allocated")
}
