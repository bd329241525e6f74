package audit_test

import (
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/driver/audit"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	volumeID, otherID  = "01890000-0000-7000-8000-000000000001", "01890000-0000-7000-8000-000000000002"
	snapshotID, thatID = "01890000-0000-7000-8000-000000000003", "01890000-0000-7000-8000-000000000004"
	groupID            = "01890000-0000-7000-8000-000000000005"
	parameters         = `{"pool":"fast","backing":"image","fsType":"xfs","provisioning":"thin","blockSize":4096,"mkfsOptions":"-K"}`
	foundMounted       = `{"volumeId":"` + volumeID + `","stagingPath":"/s","capability":{"mode":""},
		"parameters":{"pool":"","backing":"image","fsType":"ext4","provisioning":"","blockSize":0},"slot":0}`
	capability = `{"fsType":"xfs","mode":"SINGLE_NODE_WRITER","mountFlags":["noatime"],"mountGroup":"1000"}`
)

// example is a record of a collection with all its members, and the members whose text is free.
type example struct {
	key, record string
	free        []string
}

// examples has one of each collection.
var examples = map[string]example{
	"volumes": {
		volumeID,
		`{"parameters":` + parameters + `,"capabilities":[` + capability + `],"mutable":{"checkPeriod":"24h0m0s"},"segments":"a=b",
		"id":"` + volumeID + `","name":"n","capacityBytes":4096,"source":{"snapshotId":"` + snapshotID + `"},"phase":"ready",
		"attachments":[{"nodeId":"here","capability":` + capability + `,"slot":0}],"sizeLimit":"enforced"}`,
		[]string{"pool", "mkfsOptions", "mountFlags", "mountGroup", "segments", "name", "nodeId"},
	},
	"snapshots": {
		snapshotID,
		`{"id":"` + snapshotID + `","name":"n","sourceVolumeId":"` + volumeID + `","groupId":"` + groupID + `","sizeBytes":1,"allocatedBytes":1,
		"parameters":` + parameters + `,"consistency":"filesystem","segments":"a=b","createdAt":"2026-01-01T00:00:00Z","sequence":1,"phase":"copying"}`,
		[]string{"pool", "mkfsOptions", "segments", "name"},
	},
	"groups": {
		groupID,
		`{"id":"` + groupID + `","name":"n","sourceVolumeIds":["` + volumeID + `"],"snapshotIds":["` + thatID + `"],
		"consistency":"none","createdAt":"2026-01-01T00:00:00Z","phase":"ready"}`,
		[]string{"name"},
	},
	"uses": {
		volumeID,
		`{"volumeId":"` + volumeID + `","stagingPath":"/s","capability":` + capability + `,"parameters":` + parameters + `,"slot":-1,
		"publications":[{"targetPath":"/t","capability":` + capability + `,"pod":"p"}]}`,
		[]string{"pool", "mkfsOptions", "mountFlags", "mountGroup", "stagingPath", "targetPath", "pod"},
	},
	"ephemerals": {
		"csi-1",
		`{"volumeId":"csi-1","contentId":"` + volumeID + `","sizeBytes":4096,"parameters":` + parameters + `,
		"publication":{"targetPath":"/t","capability":` + capability + `}}`,
		[]string{"pool", "mkfsOptions", "mountFlags", "mountGroup", "targetPath"},
	},
	"tuned":   {"3", `{"number":3,"volumeId":"` + volumeID + `","scheduler":"none"}`, []string{"volumeId", "scheduler"}},
	"limited": {"/t", `{"targetPath":"/t","volumeId":"` + volumeID + `","pod":"p","number":3}`, []string{"volumeId", "pod"}},
	"frozen":  {volumeID, `{"volumeId":"` + volumeID + `","fsType":"btrfs"}`, nil},
	"checks": {
		volumeID,
		`{"volumeId":"` + volumeID + `","pool":"fast","fsType":"ext4","at":"2026-01-01T00:00:00Z","verdict":"clean","detail":"d","took":1,
		"how":"stage","since":"2026-01-01T00:00:00Z","suspicion":{"reason":"FilesystemErrors","message":"m","at":"2026-01-01T00:00:00Z"}}`,
		[]string{"pool", "detail", "message"},
	},
	"pools": {"fast", `{"id":"` + volumeID + `"}`, nil},
}

// write makes a state with records that no program has checked, in the order of their keys: of two
// that contradict each other the later one is refused.
func write(t *testing.T, records map[string]map[string]string) string {
	t.Helper()

	dir := t.TempDir()
	store := state.New(dir, state.Options{Log: slog.New(slog.DiscardHandler)})
	collections := map[string]*state.Collection[json.RawMessage]{}

	for name := range records {
		collections[name] = state.Register[json.RawMessage](store, name)
	}

	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
		for name, all := range records {
			for _, key := range slices.Sorted(maps.Keys(all)) {
				if err := collections[name].In(tx).Put(key, json.RawMessage(all[key])); err != nil {
					return err
				}
			}
		}

		return nil
	}))
	require.NoError(t, store.Close())

	return dir
}

// findings returns what verify finds. The start refuses the state if there is any, and repair then
// leaves one that it accepts.
func findings(t *testing.T, dir string) []state.Finding {
	t.Helper()

	report, err := audit.NewStore(dir, "verify").Verify(nil)
	require.NoError(t, err)

	if len(report.Findings) == 0 {
		return nil
	}

	err = audit.NewStore(dir, "start").Open(t.Context())
	require.ErrorAs(t, err, new(*state.DamageError), "want: the start refuses what verify finds: %v", report.Findings)
	errtext.Require(t, err, report.Findings[0].Key)

	_, err = audit.NewStore(dir, "repair").Repair()
	require.NoError(t, err)

	store := audit.NewStore(dir, "start")
	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, store.Close())

	return report.Findings
}

// TestEveryRecordIsChecked changes each text in a record of each kind, one at a time.
func TestEveryRecordIsChecked(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	store := audit.NewStore(dir, "make")
	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, store.Close())

	empty, err := audit.NewStore(dir, "verify").Verify(nil)
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Keys(empty.Records)), slices.Collect(maps.Keys(examples)), "the collections with an example")

	for collection, each := range examples {
		t.Run(collection, func(t *testing.T) {
			t.Parallel()

			found := findings(t, write(t, map[string]map[string]string{collection: {each.key: each.record}}))
			require.Empty(t, found, "a record that the driver writes")

			if collection == "uses" {
				found := findings(t, write(t, map[string]map[string]string{collection: {each.key: foundMounted}}))
				require.Empty(t, found, "a record of a volume that was found mounted")
			}

			refused := func(key, text string) {
				t.Helper()

				found := findings(t, write(t, map[string]map[string]string{collection: {key: text}}))
				require.Len(t, found, 1, text)
				require.Equal(t, collection, found[0].Collection)
				require.Equal(t, key, found[0].Key)
				require.Positive(t, found[0].Line, "want: the finding has the line of the record")
				require.Contains(t, found[0].Fix, "drop this record and no other")
			}

			refused(each.key, "{}")
			refused(each.key, "[]")

			if collection != "pools" {
				refused(otherID, each.record)
			}

			var parsed any

			require.NoError(t, json.Unmarshal([]byte(each.record), &parsed))
			eachText(parsed, "", func(member string, set func(text string), text string) {
				if slices.Contains(each.free, member) {
					return
				}

				set("~" + text)

				changed, err := json.Marshal(parsed)
				require.NoError(t, err)
				refused(each.key, string(changed))
				set(text)
			})
		})
	}
}

// eachText calls fn with each text in a JSON value, the member that has it, and a way to change it.
func eachText(value any, member string, fn func(member string, set func(string), text string)) {
	visit := func(member string, value any, set func(any)) {
		if text, ok := value.(string); ok {
			fn(member, func(text string) { set(text) }, text)
		} else {
			eachText(value, member, fn)
		}
	}

	switch value := value.(type) {
	case map[string]any:
		for name, each := range value {
			visit(name, each, func(changed any) { value[name] = changed })
		}
	case []any:
		for i, each := range value {
			visit(member, each, func(changed any) { value[i] = changed })
		}
	}
}

// TestContradictionsAreFound between records of which each is valid by itself.
func TestContradictionsAreFound(t *testing.T) {
	t.Parallel()

	volume, group := examples["volumes"].record, examples["groups"].record
	member := strings.NewReplacer(snapshotID, thatID, "copying", "ready", `"name":"n",`, "").Replace(examples["snapshots"].record)
	inPhase := func(record, phase string) string {
		return strings.Replace(record, `"phase":"ready"`, `"phase":"`+phase+`"`, 1)
	}

	for name, test := range map[string]struct {
		records map[string]map[string]string
		found   []string
	}{
		"two volumes of one name": {
			map[string]map[string]string{"volumes": {volumeID: volume, otherID: strings.ReplaceAll(volume, volumeID, otherID)}},
			[]string{otherID},
		},
		"a deleted volume and a new one of its name": {
			map[string]map[string]string{"volumes": {
				volumeID: inPhase(volume, "deleting"), otherID: strings.ReplaceAll(volume, volumeID, otherID),
			}},
			nil,
		},
		"two ephemeral volumes of one content": {
			map[string]map[string]string{"ephemerals": {
				"csi-1": examples["ephemerals"].record, "csi-2": strings.ReplaceAll(examples["ephemerals"].record, "csi-1", "csi-2"),
			}},
			[]string{"csi-2"},
		},
		"a group and its member": {
			map[string]map[string]string{"groups": {groupID: group}, "snapshots": {thatID: member}}, nil,
		},
		"a group that is being deleted, and its member": {
			map[string]map[string]string{"groups": {groupID: inPhase(group, "deleting")}, "snapshots": {thatID: inPhase(member, "deleting")}}, nil,
		},
		"an unfinished group of a snapshot that is ready": {
			map[string]map[string]string{"groups": {groupID: inPhase(group, "creating")}, "snapshots": {thatID: member}},
			[]string{groupID},
		},
		"a group of another one's member": {
			map[string]map[string]string{"groups": {groupID: group}, "snapshots": {thatID: strings.Replace(member, groupID, otherID, 1)}},
			[]string{groupID},
		},
		"a snapshot that its group does not name": {
			map[string]map[string]string{
				"groups": {groupID: group}, "snapshots": {thatID: member, snapshotID: strings.ReplaceAll(member, thatID, snapshotID)},
			},
			[]string{snapshotID},
		},
		"a snapshot whose source is deleted": {map[string]map[string]string{"snapshots": {thatID: member}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var keys []string
			for _, each := range findings(t, write(t, test.records)) {
				keys = append(keys, each.Key)
				require.Positive(t, each.Line, "want: each finding has the line of its record")
			}

			require.Equal(t, test.found, keys)
		})
	}
}
