package state_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/logs"
)

// based returns a machine with a store whose base has ten records, and its size.
func based(t *testing.T, dir string) (*machine, int) {
	t.Helper()

	m := newMachine(1)
	f := open(t, dir, state.Options{FS: m, CompactAbove: -1})

	for i := range 10 {
		require.NoError(t, f.put(fmt.Sprint("v", i), &volume{Note: strings.Repeat("n", 300)}))
	}

	require.NoError(t, f.Compact(t.Context()))
	require.NoError(t, f.Close())

	return m, sizeOf(m, dir)
}

// sizeOf is the journal's size without what it is filled up with.
func sizeOf(m *machine, dir string) int {
	return len(bytes.TrimRight(m.names[filepath.Join(dir, journalFile)].now, "\n")) + 1
}

// count returns how often a step is made from now on.
func count(m *machine, step string) *atomic.Int64 {
	var n atomic.Int64

	m.fail = func(now string) error {
		if now == step {
			n.Add(1)
		}

		return nil
	}

	return &n
}

// TestCompactsWhenLarge: a journal is compacted when what was appended has as many bytes as the option
// says and as half of the base, not before: after a change, and at a start.
func TestCompactsWhenLarge(t *testing.T) {
	t.Parallel()

	probeDir := t.TempDir()
	probe, base := based(t, probeDir)
	f := open(t, probeDir, state.Options{FS: probe, CompactAbove: -1})
	require.NoError(t, f.put("w", &volume{Note: "n"}))

	shortest := sizeOf(probe, probeDir) - base
	require.NoError(t, f.Close())

	for name, test := range map[string]struct{ above, appended, want int }{
		"as many as the option":        {base, base, 1},
		"fewer than the option":        {base, base - 1, 0},
		"half of the base":             {1, base / 2, 1},
		"fewer than half of the base":  {1, base/2 - 1, 0},
		"never":                        {-1, 10 * base, 0},
		"the default, of a few change": {0, 10 * base, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := &volume{Note: strings.Repeat("n", 1+test.appended-shortest)}
			dir := t.TempDir()
			m, _ := based(t, dir)
			compactions := count(m, "rename "+draftFile)
			f := open(t, dir, state.Options{FS: m, CompactAbove: int64(test.above)})
			require.NoError(t, f.put("w", v))
			require.NoError(t, f.Close())
			require.EqualValues(t, test.want, compactions.Load(), "compactions after a change")

			dir = t.TempDir()
			m, _ = based(t, dir)
			f = open(t, dir, state.Options{FS: m, CompactAbove: -1})
			require.NoError(t, f.put("w", v))

			m.crashed = true
			_ = f.Close() // for its goroutines

			m = m.afterKill()
			compactions = count(m, "rename "+draftFile)
			f = open(t, dir, state.Options{FS: m, CompactAbove: int64(test.above)})
			require.NoError(t, f.Close())
			require.EqualValues(t, test.want, compactions.Load(), "compactions at a start")
		})
	}
}

// TestCompactsOnce: after a compaction the counting begins again, and after a failed one it is not
// tried with each change.
func TestCompactsOnce(t *testing.T) {
	t.Parallel()

	for name, cause := range map[string]error{"successful": nil, "failed": syscall.EIO} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var attempts atomic.Int64

			dir := t.TempDir()
			m, base := based(t, dir)
			m.fail = func(step string) error {
				if step != "create "+draftFile {
					return nil
				}

				attempts.Add(1)

				return cause
			}

			log := &logs.Buffer{}
			f := open(t, dir, state.Options{FS: m, CompactAbove: int64(base), Log: slog.New(slog.NewTextHandler(log, nil))})
			require.NoError(t, f.put("w", &volume{Note: strings.Repeat("n", base)}))

			for i := range 5 {
				require.NoError(t, f.put("x", &volume{Bytes: int64(i)}))
			}

			// It waits for the one that runs.
			require.ErrorIs(t, f.Compact(t.Context()), cause)
			require.EqualValues(t, 2, attempts.Load(), "compactions that were tried")
			require.Equal(t, cause != nil, strings.Contains(log.String(), "was not compacted"), "want: the log has a failure, and nothing else")
			require.NoError(t, f.put("x", &volume{}))
			require.NoError(t, f.put("y", &volume{Note: strings.Repeat("n", 2*chunk)}))
			require.NoError(t, f.Close())
			require.EqualValues(t, 3, attempts.Load(), "compactions that were tried")
		})
	}
}

// TestClosedAfterACompaction: the line of a clean end follows what was changed during a compaction, and
// is not needed behind a base. A store that ends compacts nothing.
func TestClosedAfterACompaction(t *testing.T) {
	t.Parallel()

	for changes := range 2 {
		dir := t.TempDir()
		m := newMachine(1)
		f := open(t, dir, state.Options{FS: m, CompactAbove: -1})
		require.NoError(t, f.put("a", &volume{}))

		left := changes
		m.beforeSync = func(name string) {
			if name == draftFile && left > 0 {
				left--

				require.NoError(t, f.put("b", &volume{}))
			}
		}
		require.NoError(t, f.Compact(t.Context()))
		require.NoError(t, f.Close())

		text := string(m.names[filepath.Join(dir, journalFile)].now)
		require.Equal(t, changes, strings.Count(text, `"closed":2`), "the journal: %s", strings.TrimRight(text, "\n"))
		require.NotContains(t, text, `"closed":1`)
	}

	m := newMachine(1)
	compactions := count(m, "create "+draftFile)
	f := open(t, t.TempDir(), state.Options{FS: m, CompactAbove: 1, LazyFlush: 1 << 40})
	compactions.Store(0) // that of the first journal

	require.NoError(t, f.UpdateLazily(func(tx *state.Tx) error { return f.counts.In(tx).Put("n", 1) }))
	require.NoError(t, f.Close())
	require.Zero(t, compactions.Load(), "want: the end waits for no compaction")
}

// TestLargeBaseIsWrittenInParts, with syncs between them, and its writing can be given up.
func TestLargeBaseIsWrittenInParts(t *testing.T) {
	t.Parallel()

	const (
		part    = 128 << 10
		synced  = 4 << 20
		records = 6 << 10
	)

	m := newMachine(1)
	dir := t.TempDir()
	f := open(t, dir, state.Options{FS: m, CompactAbove: -1})
	require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
		for i := range records {
			if err := f.volumes.In(tx).Put(fmt.Sprintf("v%05d", i), &volume{Note: strings.Repeat("n", 1<<10)}); err != nil {
				return err
			}
		}

		return nil
	}))

	before := f.all()

	var writes, syncs int

	m.fail = func(step string) error {
		switch step {
		case "write " + draftFile:
			writes++
		case "sync " + draftFile:
			syncs++
		}

		return nil
	}

	require.NoError(t, f.Compact(t.Context()))

	size := sizeOf(m, dir)
	// The last part, and what is preallocated, are writes, too.
	require.InDelta(t, size/part, writes, 3, "writes of %d bytes", size)
	require.Greater(t, size, synced, "the base must need a sync in its middle")
	// With that in the middle: after the base, after what was appended meanwhile, and after what is preallocated.
	require.Equal(t, 4, syncs, "syncs of %d bytes", size)

	ctx, cancel := context.WithCancel(t.Context())
	m.fail = func(step string) error {
		if step == "write "+draftFile {
			cancel()
		}

		return nil
	}

	require.ErrorIs(t, f.Compact(ctx), context.Canceled)
	require.ErrorIs(t, f.Compact(ctx), context.Canceled)
	require.NotContains(t, m.names, filepath.Join(dir, draftFile), "what a compaction that was given up has left")

	m.fail = nil
	require.NoError(t, f.put("new", &volume{}))
	require.NoError(t, f.remove("new"))
	require.NoError(t, f.Close())

	f = open(t, dir, state.Options{FS: m})
	require.Equal(t, before, f.all())
	require.NoError(t, f.Close())
}

// TestDefaultOptionsEndWithoutSpace: the options are left out.
func TestDefaultOptionsEndWithoutSpace(t *testing.T) {
	t.Parallel()

	m := newMachine(1)
	dir := t.TempDir()
	f := open(t, dir, state.Options{FS: m})

	var tries atomic.Int64

	m.fail = func(step string) error {
		if step == "write "+journalFile {
			tries.Add(1) // of the change, and of the newlines over a part of it

			return syscall.ENOSPC
		}

		return nil
	}

	require.ErrorIs(t, f.put("a", &volume{}), syscall.ENOSPC)
	require.Never(t, func() bool { return tries.Load() > 2 }, 50*time.Millisecond, time.Millisecond, "want: the store waits before it tries again")
	require.NoError(t, f.Close())
}
