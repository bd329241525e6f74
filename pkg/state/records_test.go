package state_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

var errUnusable = errors.New("it is unusable")

// newChecked returns a store that refuses volumes with the note "unusable", and volumes whose note is
// the key of another one that is not there.
func newChecked(dir string) fixture {
	s := state.New(dir, state.Options{})
	f := fixture{
		Store: s,
		volumes: state.Register(s, "volumes",
			state.WithIndex("name", func(v *volume) string { return v.Name }),
			state.WithCheck(func(_ string, v *volume) error {
				if v.Note == "unusable" {
					return errUnusable
				}

				return nil
			})),
		counts: state.Register[int](s, "counts"),
	}
	s.AddCheck(func(tx *state.Tx, report func(collection, key string, reason error)) {
		for key, v := range f.volumes.In(tx).Ascend("") {
			if _, ok := f.volumes.In(tx).Get(v.Note); v.Note != "" && !ok {
				report("volumes", key, errUnusable)
			}
		}
	})

	return f
}

// TestUnusableRecordsAreRefused, which a program wrote without a check: verify and Open agree, and
// repair leaves out what they name, and nothing else.
func TestUnusableRecordsAreRefused(t *testing.T) {
	t.Parallel()

	bad, good := &volume{Note: "unusable"}, &volume{}

	for name, test := range map[string]struct {
		write func(t *testing.T, f fixture)
		found []string
		left  []string
	}{
		"the newest change": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.put("b", bad))
			require.NoError(t, f.put("c", good))
		}, []string{"b"}, []string{"a", "c"}},
		"a change of a transaction": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.Update(t.Context(), func(tx *state.Tx) error {
				return errors.Join(f.volumes.In(tx).Put("b", bad), f.volumes.In(tx).Put("c", good))
			}))
		}, []string{"b"}, []string{"a", "c"}},
		"a record of the base": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.put("b", bad))
			require.NoError(t, f.put("c", good))
			require.NoError(t, f.Compact(t.Context()))
		}, []string{"b"}, []string{"a", "c"}},
		"a change that a later one replaces": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.put("b", bad))
			require.NoError(t, f.put("b", good))
		}, nil, []string{"a", "b"}},
		"a change that a later one deletes": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.put("b", bad))
			require.NoError(t, f.remove("b"))
		}, nil, []string{"a"}},
		"an older version that is good": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.put("b", good))
			require.NoError(t, f.put("b", bad))
		}, []string{"b"}, []string{"a"}},
		"a record that needs one that needs one that is left out": {func(t *testing.T, f fixture) {
			t.Helper()
			require.NoError(t, f.put("b", bad))
			require.NoError(t, f.put("d", &volume{Note: "c"}))
			require.NoError(t, f.put("c", &volume{Note: "b"}))
		}, []string{"b", "c", "d"}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			f := open(t, dir, state.Options{})
			require.NoError(t, f.put("a", good))
			test.write(t, f)
			require.NoError(t, f.Close())

			report, err := newChecked(dir).Verify(nil)
			require.NoError(t, err)

			var found []string

			lines := strings.Split(journalText(t, dir), "\n")
			for _, each := range report.Findings {
				found = append(found, each.Key)
				require.Equal(t, "volumes", each.Collection)
				require.Contains(t, lines[each.Line-1], `"key":"`+each.Key+`"`)
			}

			require.Equal(t, test.found, found)

			if len(found) > 0 {
				err = newChecked(dir).Open(t.Context())
				require.ErrorAs(t, err, new(*state.DamageError))
				errtext.Require(t, err, `volumes "`+found[0]+`"`)
			}

			_, err = newChecked(dir).Repair()
			require.NoError(t, err)

			repaired := newChecked(dir)
			require.NoError(t, repaired.Open(t.Context()))
			require.Equal(t, test.left, keys(repaired))
			require.ErrorIs(t, repaired.put("x", bad), state.ErrRecord)
			require.NoError(t, repaired.Close())
		})
	}
}

// TestRepairKeepsUnknownMembers: a newer program has written members that this one does not know.
func TestRepairKeepsUnknownMembers(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	s := state.New(dir, state.Options{})
	newer := state.Register[map[string]any](s, "volumes")

	require.NoError(t, s.Open(t.Context()))
	require.NoError(t, s.Update(t.Context(), func(tx *state.Tx) error {
		return errors.Join(newer.In(tx).Put("a", map[string]any{"bytes": 1, "tint": "red"}),
			newer.In(tx).Put("b", map[string]any{"note": "unusable"}))
	}))
	require.NoError(t, s.Close())

	_, err := newChecked(dir).Repair()
	require.NoError(t, err)
	require.Contains(t, journalText(t, dir), `"record":{"bytes":1,"tint":"red"}}`)
}
