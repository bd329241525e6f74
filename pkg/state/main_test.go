package state_test

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/syscallfault"
)

// TestMain preallocates small chunks: thousands of starts in these tests read all the newlines that
// a journal is filled with, which takes the race detector most of the time. Benchmarks have the
// driver's unit.
func TestMain(m *testing.M) {
	flag.Parse()

	if flag.Lookup("test.bench").Value.String() == "" {
		state.SetJournalChunk(chunk)
	}

	syscallfault.ServeIfAsked(onceOperations)

	goleak.VerifyTestMain(m)
}

// volume is a record as a driver would have it.
type volume struct {
	Name  string `json:"name,omitempty"`
	Bytes int64  `json:"bytes"`
	Note  string `json:"note,omitempty"`
}

const (
	journalFile = "state.jsonl"
	draftFile   = "state.jsonl.new"
	markFile    = "durable.json"
)

// fixture is a store with two collections.
type fixture struct {
	*state.Store

	volumes *state.Collection[*volume]
	counts  *state.Collection[int]
	// sum is derived by an observer.
	sum *int64
}

func newFixture(dir string, opts state.Options) fixture {
	s := state.New(dir, opts)
	sum := new(int64)

	return fixture{
		Store: s,
		volumes: state.Register(s, "volumes",
			state.WithIndex("name", func(v *volume) string { return v.Name }),
			state.WithObserver(func(_ string, old, now *volume, hadOld, hasNew bool) {
				if hadOld {
					*sum -= old.Bytes
				}

				if hasNew {
					*sum += now.Bytes
				}
			})),
		counts: state.Register[int](s, "counts"),
		sum:    sum,
	}
}

// open opens a store that is closed at the end of the test at the latest.
func open(t *testing.T, dir string, opts state.Options) fixture {
	t.Helper()

	f := newFixture(dir, opts)
	require.NoError(t, f.Open(t.Context()))
	t.Cleanup(func() { _ = f.Close() })

	return f
}

func (f fixture) put(key string, v *volume) error {
	return f.Update(context.Background(), func(tx *state.Tx) error {
		return f.volumes.In(tx).Put(key, v)
	})
}

func (f fixture) remove(key string) error {
	return f.Update(context.Background(), func(tx *state.Tx) error {
		return f.volumes.In(tx).Delete(key)
	})
}

// all is what readers see.
func (f fixture) all() map[string]volume {
	found := map[string]volume{}

	for key, v := range f.volumes.Ascend("") {
		found[key] = *v
	}

	return found
}

func read(t *testing.T, dir, name string) string {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)

	return string(text)
}

// write writes a journal, filled up as the store does it.
func write(t *testing.T, dir, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, journalFile), []byte(filled(text)), 0o600))
}

// chunk is the unit in which a journal is preallocated in these tests.
const chunk = 16 << 10

// filled appends the newlines that a journal ends with.
func filled(journal string) string {
	return journal + strings.Repeat("\n", (len(journal)/chunk+1)*chunk-len(journal))
}

// loseMark removes what a loss of power may have kept from the disk.
func loseMark(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(dir, markFile)))
}

// journalText is a journal without what it is filled up with.
func journalText(t *testing.T, dir string) string {
	t.Helper()

	return strings.TrimRight(read(t, dir, journalFile), "\n") + "\n"
}

// unclean is a journal as a kill leaves it: without the mark of a clean end.
func unclean(t *testing.T, dir string) string {
	t.Helper()

	text := journalText(t, dir)
	end := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1
	require.Contains(t, text[end:], `"closed"`)

	return text[:end]
}

// copyState copies the journal into a new directory.
func copyState(t *testing.T, dir string) string {
	t.Helper()

	to := t.TempDir()
	write(t, to, journalText(t, dir))

	return to
}
