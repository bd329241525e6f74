package pool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestHardLinksTakeNoMemory copies files that have two names each, with long paths:
// to remember the paths would take more than 60 MB.
func TestHardLinksTakeNoMemory(t *testing.T) {
	const files, most = 30000, 32 << 20

	p := newPool(t, plain, 2*roomy)
	object, path := newTree(t, p)

	long := path
	for range 8 {
		long = filepath.Join(long, strings.Repeat("x", 240))
	}

	require.NoError(t, os.MkdirAll(long, 0o755))

	directory, err := os.Open(long)
	require.NoError(t, err)

	defer directory.Close()

	at := int(directory.Fd())

	for i := range files {
		require.NoError(t, unix.Mknodat(at, fmt.Sprint("a", i), unix.S_IFREG|0o600, 0))
		require.NoError(t, unix.Linkat(at, fmt.Sprint("a", i), at, fmt.Sprint("b", i), 0))
	}

	usage, err := p.Directories.Usage(t.Context(), object.ID)
	require.NoError(t, err)
	require.EqualValues(t, files+9, usage.Inodes, "want: each file is counted however many links it has")

	held := func() uint64 {
		var stats runtime.MemStats

		runtime.GC()
		runtime.ReadMemStats(&stats)

		return stats.HeapAlloc
	}
	before, peak := held(), uint64(0)
	ended := make(chan error, 1)
	target := snapshotOf(t, object)

	copying, err := p.NewCopy(p, object, target, pool.CopyOptions{})
	require.NoError(t, err)

	go func() { ended <- copying.CopyData(t.Context()) }()

	late := time.After(removalLimit)

	for running := true; running; {
		select {
		case <-late:
			require.FailNow(t, "Cut has not returned", "%s ago", removalLimit)
		case err := <-ended:
			require.NoError(t, err)

			running = false
		case <-time.After(50 * time.Millisecond):
			peak = max(peak, held())
		}
	}

	_, err = copying.Commit(t.Context())
	require.NoError(t, err)
	require.Less(t, peak, before+most, "bytes of the heap that were in use")

	var stat unix.Stat_t

	copied := strings.Replace(long, path, placeOf(p, target), 1)
	require.NoError(t, unix.Stat(filepath.Join(copied, "b7"), &stat))
	require.EqualValues(t, 2, stat.Nlink, "names of a copied file")
	nothingHalfMade(t, p, snapshotOf(t, object))
}

// TestALeaseEndsACopy names the file that a process keeps a lease on; the open
// would wait for 45 s else.
func TestALeaseEndsACopy(t *testing.T) {
	p := newPool(t, reflink, roomy)
	object, path := newTree(t, p)

	file, err := os.OpenFile(filepath.Join(path, "leased"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)

	defer file.Close()

	_, err = file.WriteString("content")
	require.NoError(t, err)
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	require.NoError(t, err)

	copying, err := p.NewCopy(p, object, snapshotOf(t, object), pool.CopyOptions{})
	require.NoError(t, err)

	err = copying.CopyData(t.Context())
	require.ErrorIs(t, err, tree.ErrLeased)
	errtext.Require(t, err, "leased")

	// Its shared blocks cannot be determined.
	var sum pool.Allocation
	require.NoError(t, sum.Add(t.Context(), p, object), "want: a file that cannot be opened does not end a measurement")

	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	require.NoError(t, err)
	copied(t, p, p, object, snapshotOf(t, object), pool.CopyOptions{})
}
