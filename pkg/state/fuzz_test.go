package state_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// FuzzOpen opens whatever bytes the journal has: that succeeds or names damage,
// and what was opened can be written to and opened again.
func FuzzOpen(f *testing.F) {
	for _, seed := range fuzzSeeds() {
		f.Add([]byte(seed))
	}

	f.Fuzz(func(t *testing.T, journal []byte) {
		dir := t.TempDir()
		m := newMachine(1)

		if len(journal) > 0 {
			m.load(dir, journalFile, filled(string(journal)))
		}

		store := newFixture(dir, state.Options{FS: m, CompactAbove: -1})

		err := store.Open(t.Context())
		if damage, ok := errors.AsType[*state.DamageError](err); ok {
			if filepath.Dir(damage.File) != dir || damage.Reason == "" {
				t.Fatalf("damage names nothing: %v", damage)
			}

			return
		}

		if err != nil {
			t.Fatal(err)
		}

		if err := errors.Join(store.put("new", &volume{}), store.Compact(t.Context()), store.put("newer", &volume{}), store.Close()); err != nil {
			t.Fatal(err)
		}

		again := newFixture(dir, state.Options{FS: m, CompactAbove: -1})
		if err := again.Open(t.Context()); err != nil {
			t.Fatal(err)
		}

		defer again.Close()

		if _, ok := again.volumes.Get("newer"); !ok {
			t.Fatal("an acknowledged record is lost")
		}
	})
}

// fuzzSeeds are journals of stores that lived for a while.
func fuzzSeeds() []string {
	seeds := []string{""}

	for crashAt := 0; crashAt < 60; crashAt += 3 {
		dir, err := os.MkdirTemp("", "touchstone-fuzz-")
		if err != nil {
			return seeds
		}

		m := newMachine(1)
		m.crashAt = crashAt
		store := newFixture(dir, state.Options{FS: m, CompactAbove: -1})

		if store.Open(context.Background()) == nil {
			live(store, m, false)
		}

		_ = store.Close()
		_ = os.RemoveAll(dir)

		if node := m.names[filepath.Join(dir, journalFile)]; node != nil {
			seeds = append(seeds, strings.TrimRight(string(node.now), "\n")+"\n")
		}
	}

	return seeds
}
