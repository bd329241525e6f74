package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver/audit"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// recorded is the state of a driver that has ended, with a record of each kind that a simulated
// node and a controller write, and data in its volumes.
type recorded struct {
	*stopped

	// attached is staged as well.
	attached, other, snapshot, group, member string
}

var simulated = []string{"--mode=all", "--simulate-node", "--node-id=here"}

func record(t *testing.T) *recorded {
	t.Helper()

	s := &recorded{stopped: &stopped{dir: t.TempDir()}}
	s.during(t, func(client *csiclient.Client) {
		s.attached = createVolume(t, client, "attached", nil)
		s.other = createVolume(t, client, "other", nil)

		claim := &csi.ControllerPublishVolumeRequest{
			VolumeId: s.attached, NodeId: "here", VolumeCapability: csiclient.MountCapability(writer, ""),
		}
		published, err := client.ControllerPublishVolume(t.Context(), claim)
		require.NoError(t, err)

		got, err := client.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: s.attached})
		require.NoError(t, err)

		for _, id := range []string{s.attached, s.other} {
			put(t, s.image(t, id), strings.Repeat("data", 1<<18))
		}

		cut, err := client.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: s.other})
		require.NoError(t, err)

		group, err := client.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
			Name: "group", SourceVolumeIds: []string{s.other},
		})
		require.NoError(t, err)

		_, err = client.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: s.attached, StagingTargetPath: filepath.Join(s.dir, "staging"), VolumeCapability: claim.GetVolumeCapability(),
			VolumeContext: got.GetVolume().GetVolumeContext(), PublishContext: published.GetPublishContext(),
		})
		require.NoError(t, err)

		s.snapshot, s.group = cut.GetSnapshot().GetSnapshotId(), group.GetGroupSnapshot().GetGroupSnapshotId()
		s.member = group.GetGroupSnapshot().GetSnapshots()[0].GetSnapshotId()
	}, simulated...)

	return s
}

func (s *recorded) image(t *testing.T, id string) string {
	t.Helper()

	return s.pool(t, "images", id+".img")
}

// edit changes the newest line of a record as if the driver had written it so.
func (s *recorded) edit(t *testing.T, collection, key string, change func(line string) string) {
	t.Helper()

	path := s.journal()
	text, err := os.ReadFile(path)
	require.NoError(t, err)

	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	names := fmt.Sprintf(`"collection":%q,"key":%q,`, collection, key)
	at := -1

	for i, line := range lines {
		if strings.Contains(line, names) {
			at = i
		}
	}

	require.GreaterOrEqual(t, at, 0, "want: a line with %s", names)

	changed := change(lines[at])
	require.NotEqual(t, lines[at], changed, "want: the edit changes the line")

	const start = len(`{"crc32c":"00000000",`)

	sum := crc32.Checksum([]byte(changed[start:]), crc32.MakeTable(crc32.Castagnoli))
	lines[at] = fmt.Sprintf(`{"crc32c":"%08x",`, sum) + changed[start:]
	// The preallocated newlines at the end make up for another length.
	longer := strings.Join(lines, "\n") + strings.Repeat("\n", len(text))

	require.NoError(t, os.WriteFile(path, []byte(longer[:len(text)]), 0o600))
}

func (s *recorded) journal() string { return filepath.Join(s.dir, "state", "state.jsonl") }

// compact moves all records to the base of the journal.
func (s *recorded) compact(t *testing.T) {
	t.Helper()

	store := audit.NewStore(filepath.Join(s.dir, "state"), "of the test")
	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, store.Compact(t.Context()))
	require.NoError(t, store.Close())
}

// refuses starts the driver, which ends at once and names what it refuses.
func (s *recorded) refuses(t *testing.T, says ...string) {
	t.Helper()

	_, lines, ended := startHere(t, s.dir, simulated...)
	for line := range lines {
		require.NotContains(t, line, "msg=ready", "want: the driver refuses to start")
	}

	err := await.Receive(t, ended, "the end of the driver")
	for _, part := range says {
		errtext.Require(t, err, part)
	}
}

// TestUnknownValuesRemoveNothing changes one letter of a value, with a right checksum. No verb and no
// start removes anything; verify names the record, and repair drops it and no other.
func TestUnknownValuesRemoveNothing(t *testing.T) {
	t.Parallel()

	flip := func(from, to string) func(string) string {
		return func(line string) string { return strings.Replace(line, from, to, 1) }
	}

	for name, test := range map[string]struct {
		collection string
		key        func(s *recorded) string
		change     func(line string) string
	}{
		"phase of a volume":          {"volumes", func(s *recorded) string { return s.other }, flip(`"phase":"ready"`, `"phase":"seady"`)},
		"later phase of a volume":    {"volumes", func(s *recorded) string { return s.other }, flip(`"phase":"ready"`, `"phase":"moving"`)},
		"backing of a volume":        {"volumes", func(s *recorded) string { return s.other }, flip(`"backing":"image"`, `"backing":"imafe"`)},
		"access mode of attachment":  {"volumes", func(s *recorded) string { return s.attached }, flip(`"attachments":[{"nodeId":"here","capability":{"mode":"SINGLE`, `"attachments":[{"nodeId":"here","capability":{"mode":"TINGLE`)},
		"phase of a snapshot":        {"snapshots", func(s *recorded) string { return s.snapshot }, flip(`"phase":"ready"`, `"phase":"seady"`)},
		"phase of a member":          {"snapshots", func(s *recorded) string { return s.member }, flip(`"phase":"ready"`, `"phase":"seady"`)},
		"consistency of a snapshot":  {"snapshots", func(s *recorded) string { return s.snapshot }, flip(`"consistency":"f`, `"consistency":"g`)},
		"phase of a group":           {"groups", func(s *recorded) string { return s.group }, flip(`"phase":"ready"`, `"phase":"seady"`)},
		"group unlike its members":   {"groups", func(s *recorded) string { return s.group }, flip(`"phase":"ready"`, `"phase":"deleting"`)},
		"access mode of a staging":   {"uses", func(s *recorded) string { return s.attached }, flip(`"mode":"SINGLE`, `"mode":"TINGLE`)},
		"identity of a pool":         {"pools", func(*recorded) string { return "default" }, flip(`"id":"`, `"id":"x`)},
		"id that is not the key":     {"volumes", func(s *recorded) string { return s.other }, flip(`"id":"0`, `"id":"1`)},
		"name of another volume":     {"volumes", func(s *recorded) string { return s.other }, flip(`"name":"other"`, `"name":"attached"`)},
		"name that is not UTF-8":     {"volumes", func(s *recorded) string { return s.other }, flip(`"name":"other"`, "\"name\":\"oth\xe5r\"")},
		"record that is no object":   {"volumes", func(s *recorded) string { return s.other }, flip(`"record":{`, `"record":{{`)},
		"staging of another volume":  {"uses", func(s *recorded) string { return s.attached }, flip(`"volumeId":"0`, `"volumeId":"1`)},
		"collection of another kind": {"volumes", func(s *recorded) string { return s.other }, flip(`"collection":"volumes"`, `"collection":"volumez"`)},
	} {
		for _, place := range []string{"base", "change"} {
			t.Run(name+" in the "+place, func(t *testing.T) {
				t.Parallel()

				s := record(t)
				if place == "base" {
					s.compact(t)
				}

				key := test.key(s)
				s.edit(t, test.collection, key, test.change)
				s.isRefusedAndRepaired(t, key)
			})
		}
	}
}

func (s *recorded) isRefusedAndRepaired(t *testing.T, key string) {
	t.Helper()

	before := tree(t, s.pool(t))
	s.refuses(t, "state.jsonl:", key, "state verify")

	code, out, said := touchstone("state", "verify", "--json", "--state-dir", filepath.Join(s.dir, "state"))
	require.Equal(t, exitNotWell, code, out+said)

	var report state.Report

	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Len(t, report.Findings, 1, out)
	require.Equal(t, key, report.Findings[0].Key)
	require.NotEmpty(t, report.Findings[0].Collection, "want: the finding names the collection of the record")
	require.NotEmpty(t, report.Findings[0].Fix, "want: the finding says how to repair the record")
	require.Positive(t, report.Findings[0].Line, "want: the finding has the line of the record")
	require.Equal(t, s.journal(), report.Findings[0].File)

	code, said = s.state("verify")
	require.Equal(t, exitNotWell, code, said)
	require.Contains(t, said, fmt.Sprintf("%s:%d: %s %q: ", s.journal(), report.Findings[0].Line, report.Findings[0].Collection, key))

	code, out, _ = touchstone("state", "dump", "--state-dir", filepath.Join(s.dir, "state"))
	require.Equal(t, exitNotWell, code, out)

	code, said = s.state("repair")
	require.Zero(t, code, said)
	require.Equal(t, before, tree(t, s.pool(t)), "want: repair and a refused start leave the pool alone")

	code, out, said = touchstone("state", "dump", "--state-dir", filepath.Join(s.dir, "state"))
	require.Zero(t, code, said)
	require.True(t, json.Valid([]byte(out)), "want: dump writes JSON")
	s.served(t, report.Findings[0].Collection, key)
}

// served starts the driver: it serves all records but one, and keeps all data.
func (s *recorded) served(t *testing.T, collection, dropped string) {
	t.Helper()

	s.during(t, func(client *csiclient.Client) {
		listed, err := client.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		require.NoError(t, err)

		var ids []string
		for _, each := range listed.GetEntries() {
			ids = append(ids, each.GetVolume().GetVolumeId())
		}

		for _, id := range []string{s.attached, s.other} {
			if id != dropped || collection == "uses" {
				require.Contains(t, ids, id)
			} else {
				require.NotContains(t, ids, id)
			}
		}

		snapshots, err := client.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
		require.NoError(t, err)

		for _, each := range snapshots.GetEntries() {
			require.NotEqual(t, dropped, each.GetSnapshot().GetSnapshotId(), "want: the dropped snapshot is not listed")
		}

		want := 2
		if collection == "snapshots" {
			want = 1
		}

		require.Len(t, snapshots.GetEntries(), want, "want: the listed snapshots are those that were kept")
	}, simulated...)

	for _, id := range []string{s.attached, s.other} {
		content, err := os.ReadFile(s.image(t, id))
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(content, []byte("data")), "want: the data of volume %s are there", id)
	}

	for _, id := range []string{s.snapshot, s.member} {
		require.FileExists(t, s.pool(t, "snapshots", id+".img"))
	}
}

// TestSnapshotOfALostVolumeIsKept drops the record of a volume while a snapshot of it is copied: the
// start fails the acknowledged snapshot, and removes nothing.
func TestSnapshotOfALostVolumeIsKept(t *testing.T) {
	t.Parallel()

	s := record(t)
	s.edit(t, "snapshots", s.snapshot, func(line string) string { return strings.Replace(line, `"phase":"ready"`, `"phase":"copying"`, 1) })
	s.edit(t, "volumes", s.other, func(line string) string { return strings.Replace(line, `"phase":"ready"`, `"phase":"lost"`, 1) })

	code, said := s.state("repair")
	require.Zero(t, code, said)

	s.during(t, func(client *csiclient.Client) {
		listed, err := client.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: s.snapshot})
		require.NoError(t, err)
		require.Len(t, listed.GetEntries(), 1, "want: the snapshot of the lost volume is still listed")
	}, simulated...)

	_, said = s.state("dump")
	require.Contains(t, said, `"phase":"failed"`)
	require.FileExists(t, s.pool(t, "snapshots", s.snapshot+".img"))
}
