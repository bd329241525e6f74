package leftover_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/driver/audit"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/btrfs"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// gone and present are the ids of a volume that was deleted and of one that was not.
const (
	gone    = "01900000-0000-7000-8000-000000000001"
	present = "01900000-0000-7000-8000-000000000002"
)

var objects = leftover.Objects{present: true}

// requireOne requires that a check finds the object that is gone, and not the other.
func requireOne(t *testing.T, kind leftover.Kind, found []leftover.Finding) {
	t.Helper()
	require.Len(t, found, 1, "want: the object that is gone is found alone")
	require.Equal(t, kind, found[0].Kind)
	require.Contains(t, found[0].What, gone)
	require.NotContains(t, found[0].What, present)
}

// TestMemoryIsSearched has a reference of each kind in parts of a driver.
func TestMemoryIsSearched(t *testing.T) {
	t.Parallel()

	for place, keep := range map[string]func(id string) any{
		"internal/health.cache.records": func(id string) any {
			monitor := health.New(health.Config{Name: "a view"})
			require.True(t, monitor.Set(id, health.Observation{}, time.Now()), "the first observation is stored")
			_, known := monitor.Get(id)
			require.True(t, known, "the observation is stored")

			return &struct{ Kept any }{monitor}
		},
		"pkg/node/probe.Gate.byVolume": func(id string) any {
			gate := probe.NewGate()
			gate.Close(id) // and it is not opened

			return &struct{ Kept []any }{[]any{gate}}
		},
		"internal/operation.Group.queues": func(id string) any {
			group, hold := operation.NewGroup(), make(chan struct{})
			t.Cleanup(func() {
				close(hold)
				require.NoError(t, group.Drain(context.WithoutCancel(t.Context())))
			})
			require.NoError(t, operation.Start(t.Context(), group, operation.Call{Key: "volume/" + id},
				func(context.Context) { <-hold }))

			return group
		},
	} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()

			found := leftover.InMemory(keep(gone), objects, objects)
			require.Contains(t, found, leftover.Finding{
				Kind: leftover.Memory, What: place + " has 1 objects that are gone, such as " + gone,
			})
			require.Empty(t, leftover.InMemory(keep(present), objects, objects), "want: an object that is present is not left")
		})
	}
}

func TestSeriesAreSearched(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "touchstone_volume_bytes", Help: "the size"}, []string{"volume"})
	registry.MustRegister(gauge)
	gauge.WithLabelValues(present)
	gauge.WithLabelValues(gone)

	found, err := leftover.InMetrics(registry, objects)
	require.NoError(t, err)
	requireOne(t, leftover.Series, found)
}

const (
	capability = `{"fsType":"ext4","mode":"SINGLE_NODE_WRITER"}`
	parameters = `{"pool":"fast","backing":"image","fsType":"ext4","provisioning":"thin","blockSize":4096}`
	use        = `{"volumeId":"` + gone + `","stagingPath":"/s","capability":` + capability + `,"parameters":` + parameters + `,"slot":-1}`
)

func volumeRecord(id, phase string) string {
	return `{"id":"` + id + `","name":"` + id + `","parameters":` + parameters + `,"capabilities":[` + capability + `],
		"capacityBytes":4096,"phase":"` + phase + `"}`
}

// TestRecordsAreCompared has a record of each collection that no object explains.
func TestRecordsAreCompared(t *testing.T) {
	t.Parallel()

	const inline, group = "csi-1", "01900000-0000-7000-8000-000000000003"

	cases := map[string]struct{ key, record, why string }{
		"uses": {gone, use, "nothing is mounted"},
		"ephemerals": {inline, `{"volumeId":"` + inline + `","contentId":"` + gone + `","sizeBytes":4096,"parameters":` + parameters + `,
			"publication":{"targetPath":"/t","capability":` + capability + `}}`, "nothing is mounted"},
		"tuned":   {"3", `{"number":3,"volumeId":"` + gone + `","scheduler":"none"}`, "nothing is mounted"},
		"limited": {"/t", `{"targetPath":"/t","volumeId":"` + gone + `","pod":"p","number":3}`, "nothing is mounted"},
		"frozen":  {gone, `{"volumeId":"` + gone + `","fsType":"btrfs"}`, "nothing is mounted"},
		"checks": {gone, `{"volumeId":"` + gone + `","pool":"fast","fsType":"ext4","at":"2026-01-01T00:00:00Z","verdict":"clean",
			"took":1,"how":"stage"}`, "the volume has gone"},
		"volumes": {gone, volumeRecord(gone, "deleting"), `its phase is "deleting" (<nil>)`},
		"snapshots": {gone, `{"id":"` + gone + `","name":"n","sourceVolumeId":"` + present + `","sizeBytes":1,"parameters":` + parameters + `,
			"consistency":"filesystem","createdAt":"2026-01-01T00:00:00Z","sequence":1,"phase":"creating"}`, `its phase is "creating" (<nil>)`},
		"groups": {group, `{"id":"` + group + `","name":"n","sourceVolumeIds":["` + present + `"],"snapshotIds":["` + gone + `"],
			"consistency":"none","createdAt":"2026-01-01T00:00:00Z","phase":"ready"}`, "its snapshot " + gone + " has gone"},
		"pools": {key: "fast", record: `{"id":"` + present + `"}`},
	}

	empty := t.TempDir()
	store := audit.NewStore(empty, "make")
	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, store.Close())

	report, err := audit.NewStore(empty, "count").Verify(nil)
	require.NoError(t, err)
	require.ElementsMatch(t, slices.Collect(maps.Keys(report.Records)), slices.Collect(maps.Keys(cases)))

	for collection, each := range cases {
		t.Run(collection, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			write(t, dir, collection, each.key, each.record)

			read, err := leftover.ReadState(dir)
			require.NoError(t, err)

			var wanted []leftover.Finding
			if each.why != "" {
				wanted = []leftover.Finding{{Kind: leftover.Record, What: collection + " " + each.key + ": " + each.why}}
			}

			require.Equal(t, wanted, read.Left(objects))
		})
	}
}

// write writes a record, and the volume that is present.
func write(t *testing.T, dir, collection, key, record string) {
	t.Helper()

	store := state.New(dir, state.Options{Owner: "the test", Log: slog.New(slog.DiscardHandler)})
	volumes := state.Register[json.RawMessage](store, "volumes")

	records := volumes
	if collection != "volumes" {
		records = state.Register[json.RawMessage](store, collection)
	}

	require.NoError(t, store.Open(t.Context()))
	require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
		if err := volumes.In(tx).Put(present, json.RawMessage(volumeRecord(present, "ready"))); err != nil {
			return err
		}

		return records.In(tx).Put(key, json.RawMessage(record))
	}))
	require.NoError(t, store.Close())
}

func TestEntriesAreCompared(t *testing.T) {
	t.Parallel()

	for _, name := range []string{
		"images/" + gone + ".img", "directories/" + gone, "snapshots/" + gone, "snapshots/" + gone + ".img",
		"scratch/" + gone + ".img", "scratch/" + gone, "removing/" + gone, "attributes/" + gone + ".json",
		"ephemeral/images/" + gone + ".img", "ephemeral/directories/" + gone, "ephemeral/scratch/" + gone,
		"ephemeral/removing/" + gone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			pool := t.TempDir()
			for _, each := range []string{"images/" + present + ".img", "attributes/" + present + ".json", name} {
				require.NoError(t, os.MkdirAll(filepath.Join(pool, each), 0o700))
			}

			found, err := leftover.Entries(pool, func(id string) bool { return objects[id] })
			require.NoError(t, err)
			requireOne(t, leftover.Entry, found)
		})
	}
}

func TestQuotaGroupsAreCompared(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	pool := testpool.Btrfs(t, 256*harness.MiB)
	directory, err := os.Open(pool)
	require.NoError(t, err)

	defer directory.Close()

	require.NoError(t, btrfs.Enable(directory))
	require.NoError(t, os.Mkdir(filepath.Join(pool, "directories"), 0o700))
	require.NoError(t, testpool.MakeSubvolume(filepath.Join(pool, "directories"), present, 0))

	volume, err := os.Open(filepath.Join(pool, "directories", present))
	require.NoError(t, err)

	defer volume.Close()

	id, err := btrfs.ID(volume)
	require.NoError(t, err)

	for _, number := range []uint64{id, id + 100} {
		group := btrfs.GroupOf(1, number)
		require.NoError(t, btrfs.CreateGroup(directory, group))
		require.NoError(t, btrfs.Limit(directory, group, harness.MiB))
	}

	found, err := leftover.Quotas(pool)
	require.NoError(t, err)
	require.Equal(t, []leftover.Finding{
		{Kind: leftover.Quota, What: "quota group " + btrfs.GroupOf(1, id+100).String() + " in " + pool},
	}, found)
}

func TestGoroutinesAreFoundByTheirDriver(t *testing.T) {
	t.Parallel()

	hold, ended := make(chan struct{}), make(chan struct{})

	leftover.Attribute("one", func() {
		go func() {
			defer close(ended)
			<-hold
		}()
	})

	found, err := leftover.Goroutines("one")
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the goroutine of the driver is found")
	require.Contains(t, found[0].What, "TestGoroutinesAreFoundByTheirDriver")

	found, err = leftover.Goroutines("two")
	require.NoError(t, err)
	require.Empty(t, found, "want: another driver has no goroutine")

	close(hold)
	<-ended
}

func TestDescriptorsAreFoundByTheirDriver(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	opened, err := os.Create(filepath.Join(root, "file"))
	require.NoError(t, err)

	defer opened.Close()

	// Also one without a name any more.
	require.NoError(t, os.Remove(opened.Name()))

	found, err := leftover.Descriptors(root)
	require.NoError(t, err)
	require.Len(t, found, 1, "want: the open file is found")
	require.Contains(t, found[0].What, opened.Name())

	found, err = leftover.Descriptors(root + "-other")
	require.NoError(t, err)
	require.Empty(t, found, "want: a file elsewhere is not found")
}

// TestFilesOfTheProcessAreCompared opens files without a path. No other test runs at the same time.
func TestFilesOfTheProcessAreCompared(t *testing.T) {
	before, err := leftover.Opened()
	require.NoError(t, err)

	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	require.NoError(t, err)

	found := since(t, before)
	require.Equal(t, []leftover.Finding{{Kind: leftover.Descriptor, What: strconv.Itoa(watch) + " of anon_inode:inotify"}}, found)
	require.NoError(t, unix.Close(watch))
	require.Empty(t, since(t, before), "want: a closed file is not left")
}

// TestPipesOfCopiesAreNotLeft copies between sockets, for which Go keeps a pipe. No other test runs at the
// same time.
func TestPipesOfCopiesAreNotLeft(t *testing.T) {
	from, sender := connected(t)
	to, _ := connected(t)
	before, err := leftover.Opened()
	require.NoError(t, err)

	_, err = sender.Write([]byte("data"))
	require.NoError(t, err)
	require.NoError(t, sender.Close())

	copied, err := io.Copy(to, from)
	require.NoError(t, err)
	require.EqualValues(t, len("data"), copied, "want: the whole text is copied")
	require.Len(t, since(t, before), 2, "want: Go keeps the pipe")

	require.Eventually(t, func() bool {
		found, err := leftover.OpenedSince(before)

		return err == nil && len(found) == 0
	}, await.Limit, time.Millisecond, "the pipe of a copy counts as left")
}

// connected returns both ends of a connection.
func connected(t *testing.T) (accepted, dialed net.Conn) {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dialed, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	accepted, err = listener.Accept()
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	t.Cleanup(func() {
		require.NoError(t, accepted.Close())
		_ = dialed.Close()
	})

	return accepted, dialed
}

func since(t *testing.T, before leftover.Files) []leftover.Finding {
	t.Helper()

	opened, err := leftover.Opened()
	require.NoError(t, err)

	return opened.Since(before)
}

func TestAssignmentsAreListed(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	found, err := leftover.Assignments(filepath.Join(root, "absent"))
	require.NoError(t, err)
	require.Empty(t, found, "want: a missing root has no assignments")

	require.NoError(t, os.Mkdir(filepath.Join(root, gone), 0o700))

	found, err = leftover.Assignments(root)
	require.NoError(t, err)
	requireOne(t, leftover.Entry, found)
}
