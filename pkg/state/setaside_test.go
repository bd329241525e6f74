package state_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// TestTheJournalThatWasSetAsideIsWhole: a compaction was interrupted, so that two
// journals hold what the snapshot lacks. Where the end of the first one is missing,
// the second one does not follow it, and the store does not open.
func TestTheJournalThatWasSetAsideIsWhole(t *testing.T) {
	t.Parallel()

	m, dir := newMachine(1), t.TempDir()
	f := open(t, dir, state.Options{FS: m, CompactAbove: -1})

	for i := range 3 {
		require.NoError(t, f.put(fmt.Sprint("v", i), &volume{Bytes: 1}))
	}

	m.fail = func(step string) error {
		if step == "create "+snapshotFile+".new" {
			return syscall.EIO
		}

		return nil
	}

	require.ErrorIs(t, f.Compact(t.Context()), syscall.EIO)
	require.NoError(t, f.put("v3", &volume{Bytes: 1}))
	require.NoError(t, f.Close())

	m.fail = nil
	aside := m.names[filepath.Join(dir, previousFile)]
	require.NotNil(t, aside, "a compaction that fails leaves the journal that was set aside")

	// Its last line becomes the newlines that a journal is preallocated with.
	end := bytes.LastIndexByte(bytes.TrimRight(aside.now, "\n"), '\n') + 1
	copy(aside.now[end:], bytes.Repeat([]byte{'\n'}, len(aside.now)-end))

	err := newFixture(dir, state.Options{FS: m}).Open(t.Context())

	var damage *state.DamageError

	require.ErrorAs(t, err, &damage, "open with a transaction missing at the end of %s", previousFile)
	require.Contains(t, damage.Reason, "ends at 2")
}
