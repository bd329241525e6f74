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

// FuzzOpen opens whatever bytes the files hold: that succeeds or names damage,
// and what was opened can be written to and opened again.
func FuzzOpen(f *testing.F) {
	for _, seed := range fuzzSeeds() {
		f.Add([]byte(seed[0]), []byte(seed[1]), []byte(seed[2]))
	}

	f.Fuzz(func(t *testing.T, snapshot, journal, previous []byte) {
		dir := t.TempDir()
		m := newMachine(1)

		for name, text := range map[string][]byte{snapshotFile: snapshot, journalFile: journal, previousFile: previous} {
			switch {
			case len(text) == 0:
			case name == snapshotFile:
				m.load(dir, name, string(text))
			default:
				m.load(dir, name, filled(string(text)))
			}
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

// fuzzSeeds are files of stores that lived for a while.
func fuzzSeeds() [][3]string {
	seeds := [][3]string{{}}

	for crashAt := 0; crashAt < 60; crashAt += 3 {
		dir, err := os.MkdirTemp("", "touchstone-fuzz-")
		if err != nil {
			return seeds
		}

		m := newMachine(1)
		m.crashAt = crashAt
		store := newFixture(dir, state.Options{FS: m, CompactAbove: -1})

		if store.Open(context.Background()) == nil {
			live(store, m)
		}

		_ = store.Close()
		_ = os.RemoveAll(dir)

		var seed [3]string

		for i, name := range []string{snapshotFile, journalFile, previousFile} {
			if node := m.names[filepath.Join(dir, name)]; node != nil {
				seed[i] = strings.TrimRight(string(node.now), "\n") + "\n"
			}
		}

		seeds = append(seeds, seed)
	}

	return seeds
}
