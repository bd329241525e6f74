package record

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"unique"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// TestSharingChangesNothing lets records of every kind share, twice, and
// compares them with what was read.
func TestSharingChangesNothing(t *testing.T) {
	t.Parallel()

	var common Interner

	for _, capabilities := range [][]volume.Capability{
		nil,
		{{Block: true, Mode: "SINGLE_NODE_WRITER"}},
		{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}},
		{{FSType: "xfs", Mode: "SINGLE_NODE_WRITER"}},
		{{FSType: "ext4", Mode: "MULTI_NODE_READER_ONLY"}},
		{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER", MountFlags: []string{"noatime"}}},
		{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER", MountGroup: "1000"}},
		{{FSType: "unheard of", Mode: "SINGLE_NODE_WRITER"}},
		{{Block: true, Mode: "SINGLE_NODE_WRITER"}, {FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}},
	} {
		for _, pool := range []string{"default", "fast"} {
			before := Volume{
				ID: "id", Name: "name", Phase: PhaseReady,
				Properties: &Properties{
					Capabilities: capabilities,
					Parameters:   volume.Parameters{Pool: pool, Backing: volume.BackingImage, BlockSize: volume.DefaultBlockSize},
				},
			}
			text, err := json.Marshal(before)
			require.NoError(t, err)

			for range 2 {
				var after Volume

				require.NoError(t, json.Unmarshal(text, &after))
				common.Intern("id", &after)
				require.Equal(t, before, after, fmt.Sprint(capabilities))
			}
		}
	}
}

// TestSharingSharesMemory compares addresses, which no caller can.
func TestSharingSharesMemory(t *testing.T) {
	t.Parallel()

	var (
		common Interner
		shared [2]*Properties
	)

	for i := range shared {
		v := &Volume{Properties: &Properties{Capabilities: []volume.Capability{{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}}}}
		common.Intern("id", v)

		shared[i] = v.Properties
	}

	require.Same(t, shared[0], shared[1], "want: equal properties are kept once")

	// Without a handle a collection forgets what is kept once.
	held := []any{unique.Make(Phase("ready")), unique.Make(volume.Consistency("none")), unique.Make(volume.Parameters{Pool: "default"})}
	defer runtime.KeepAlive(held)

	key, other := newText("id"), newText("id")
	v := &Volume{ID: newText("id"), Phase: Phase(newText("ready")), Properties: &Properties{}}
	again := &Volume{ID: "other", Phase: Phase(newText("ready")), Properties: &Properties{}}
	common.Intern(key, v)
	common.Intern(other, again)
	requireShared(t, key, v.ID)
	requireShared(t, v.Phase, again.Phase)
	require.Equal(t, "other", again.ID, "want: an id stays that is not the key")

	var taken [2]*Snapshot

	for i := range taken {
		taken[i] = &Snapshot{
			ID: newText("id"), Phase: Phase(newText("ready")), Consistency: volume.Consistency(newText("none")),
			Parameters: volume.Parameters{Pool: newText("default")},
		}
		InternSnapshot(key, taken[i])
	}

	requireShared(t, key, taken[0].ID)
	requireShared(t, taken[0].Phase, taken[1].Phase)
	requireShared(t, taken[0].Consistency, taken[1].Consistency)
	requireShared(t, taken[0].Parameters.Pool, taken[1].Parameters.Pool)
}

// newText returns an equal text in memory of its own.
func newText(text string) string { return string([]byte(text)) }

func requireShared[T ~string](t *testing.T, one, other T) {
	t.Helper()
	require.Equal(t, one, other)
	require.Same(t, unsafe.StringData(string(one)), unsafe.StringData(string(other)), "want: %q is kept once", one)
}

// TestOnlyPlainPropertiesAreShared: others distinguish volumes without being part of the key.
func TestOnlyPlainPropertiesAreShared(t *testing.T) {
	t.Parallel()

	plain := volume.Capability{FSType: "ext4", Mode: "SINGLE_NODE_WRITER"}

	for name, test := range map[string]struct {
		want   bool
		change func(p *Properties)
	}{
		"plain":              {true, func(*Properties) {}},
		"no filesystem":      {true, func(p *Properties) { p.Capabilities[0].FSType = "" }},
		"unknown filesystem": {false, func(p *Properties) { p.Capabilities[0].FSType = "unheard of" }},
		"two capabilities":   {false, func(p *Properties) { p.Capabilities = append(p.Capabilities, plain) }},
		"no capability":      {false, func(p *Properties) { p.Capabilities = nil }},
		"options of mkfs":    {false, func(p *Properties) { p.Parameters.MkfsOptions = "-m 0" }},
		"mutable parameters": {false, func(p *Properties) { p.Mutable = volume.Mutable{volume.KeyIOScheduler: "none"} }},
		"mount flags":        {false, func(p *Properties) { p.Capabilities[0].MountFlags = []string{"noatime"} }},
		"a mount group":      {false, func(p *Properties) { p.Capabilities[0].MountGroup = "5" }},
	} {
		p := &Properties{Capabilities: []volume.Capability{plain}}
		test.change(p)

		_, ok := p.plain()
		require.Equal(t, test.want, ok, "want: only plain properties are shared, not with %s", name)
	}
}

// TestSetMutableKeepsOtherRecords changes one of two records that share their properties.
func TestSetMutableKeepsOtherRecords(t *testing.T) {
	t.Parallel()

	one := &Volume{Properties: &Properties{}}
	other := one.Clone()
	other.SetMutable(volume.Mutable{volume.KeyIOScheduler: "none"})

	require.Equal(t, "none", other.Mutable[volume.KeyIOScheduler])
	require.True(t, one.Mutable.IsZero(), "want: the record that was cloned has none")
}
