package state_test

import (
	"context"
	"flag"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/touchstone-csi/touchstone/pkg/state"
)

// A property that fails prints what reproduces it, and leaves no file.
var _ = flag.Set("rapid.nofailfile", "true")

// TestStoreMatchesAModel, a map, under random transactions, aborts, restarts, kills, losses of
// power and compactions.
func TestStoreMatchesAModel(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rapid.Uint64().Draw(rt, "seed"))
		p := &player{dir: dir, machine: m, model: map[string]volume{}}
		p.start(rt)

		defer func() { _ = p.store.Close() }()

		rt.Repeat(map[string]func(*rapid.T){
			"":          p.check,
			"update":    p.update,
			"compact":   func(rt *rapid.T) { require.NoError(rt, p.store.Compact(context.Background())) },
			"restart":   func(rt *rapid.T) { p.end(rt); p.start(rt) },
			"kill":      func(rt *rapid.T) { p.crash(); p.machine = p.machine.afterKill(); p.start(rt) },
			"power cut": func(rt *rapid.T) { p.crash(); p.machine = p.machine.afterPowerCut(); p.start(rt) },
		})
	})
}

type player struct {
	dir     string
	machine *machine
	store   fixture
	model   map[string]volume
}

func (p *player) start(rt *rapid.T) {
	p.store = newFixture(p.dir, state.Options{FS: p.machine, CompactAbove: -1})
	require.NoError(rt, p.store.Open(context.Background()))
}

func (p *player) end(rt *rapid.T) { require.NoError(rt, p.store.Close()) }

func (p *player) crash() {
	p.machine.mu.Lock()
	p.machine.crashed = true
	p.machine.mu.Unlock()

	_ = p.store.Close()
}

func (p *player) check(rt *rapid.T) {
	require.Equal(rt, p.model, p.store.all())
	require.Equal(rt, slices.Sorted(maps.Keys(p.model)), append([]string(nil), keys(p.store)...))
	require.Equal(rt, len(p.model), p.store.volumes.Len(), "want: the collection has as many records as the model")

	var sum int64

	for key, each := range p.model {
		sum += each.Bytes

		if each.Name != "" {
			found, _, ok := p.store.volumes.Lookup("name", each.Name)
			require.True(rt, ok, "want: the index has name %q", each.Name)
			require.Equal(rt, key, found)
		}
	}

	require.Equal(rt, sum, *p.store.sum, "want: the index is the sum of the model")
}

// update plays one transaction on the store and on a copy of the model, which
// counts only if neither refuses.
func (p *player) update(rt *rapid.T) {
	next := maps.Clone(p.model)
	key := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g"})
	name := rapid.SampledFrom([]string{"", "x", "y", "z"})
	aborted := rapid.IntRange(0, 5).Draw(rt, "abort") == 0

	err := p.store.Update(context.Background(), func(tx *state.Tx) error {
		volumes := p.store.volumes.In(tx)

		for range rapid.IntRange(0, 4).Draw(rt, "changes") {
			at := key.Draw(rt, "key")

			if rapid.Bool().Draw(rt, "delete") {
				delete(next, at)
				require.NoError(rt, volumes.Delete(at))

				continue
			}

			v := volume{Name: name.Draw(rt, "name"), Bytes: rapid.Int64Range(0, 1000).Draw(rt, "bytes")}
			err := volumes.Put(at, &v)
			require.Equal(rt, collides(next, at, v), err != nil, "want: a change fails only if it collides in the index")

			if err != nil {
				return err
			}

			next[at] = v
		}

		if aborted {
			return errRefused
		}

		return nil
	})
	if err == nil {
		p.model = next

		return
	}

	if !aborted {
		require.ErrorIs(rt, err, state.ErrDuplicate)
	}
}

func collides(model map[string]volume, key string, v volume) bool {
	for other, each := range model {
		if other != key && v.Name != "" && each.Name == v.Name {
			return true
		}
	}

	return false
}
