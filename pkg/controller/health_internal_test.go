package controller

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/controller/names"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// monitored has a monitor without relists.
func monitored(c *Config) { c.Health.RelistPeriod, c.Health.EventedRelistPeriod = time.Hour, time.Hour }

// watch runs the monitor until the test ends.
func (s *site) watch() {
	s.t.Helper()

	ctx, stop := context.WithCancel(s.t.Context())

	var running sync.WaitGroup

	running.Go(func() { s.health.Monitor.Run(ctx) })
	s.t.Cleanup(func() { stop(); running.Wait() })
	require.NoError(s.t, s.health.Monitor.AwaitRelist(s.t.Context()))
}

// hide records a volume as one that is being created.
func (s *site) hide(id string) {
	s.t.Helper()
	require.NoError(s.t, s.config.Store.Update(s.t.Context(), func(tx *state.Tx) error {
		v, _ := s.catalog.Volumes.In(tx).Get(id)
		v = v.Clone()
		v.Phase = record.PhaseCreating

		return s.catalog.Volumes.In(tx).Put(id, v)
	}))
}

func reasons(entries []health.Entry) []health.Reason {
	var found []health.Reason
	for _, each := range entries {
		found = append(found, each.Reason)
	}

	return found
}

// TestVolumeProbeReportsItsCondition: what is not in the pool, or is too short, is found.
func TestVolumeProbeReportsItsCondition(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	image, directory := s.create("image"), s.create("directory", with("backing", "directory"))
	short, hidden := s.create("short"), s.create("hidden")

	probe := func(id string, want ...health.Reason) {
		t.Helper()

		seen, err := s.health.probe(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, want, reasons(seen.Entries))
	}

	probe(image)
	probe(directory)
	require.NoError(t, os.Truncate(s.imagePath(short), 4*mib+1))
	probe(short)
	require.NoError(t, os.Truncate(s.imagePath(short), 4*mib-1))
	require.Empty(t, s.node.truncated, "want: the node is informed of what is truncated")
	probe(short, health.BackingFileTruncated)
	require.Equal(t, []string{short}, s.node.truncated)
	require.NoError(t, os.Remove(s.imagePath(image)))
	probe(image, health.BackingFileMissing)
	require.NoError(t, os.Remove(filepath.Join(s.pool("default"), "directories", directory)))
	probe(directory, health.VolumeNotFound)
	require.Equal(t, []string{short}, s.node.truncated, "want: what is missing is not truncated")

	s.hide(hidden)

	for _, id := range []string{hidden, newID(t)} {
		_, err := s.health.probe(t.Context(), id)
		require.ErrorIs(t, err, health.ErrGone)
	}

	ended, end := context.WithCancel(t.Context())
	end()

	var releases []func()

	for range pool.MaxInPool {
		release, err := s.health.probes.Acquire(t.Context(), "default")
		require.NoError(t, err)

		releases = append(releases, release)
	}

	_, err := s.health.probe(ended, short)
	require.ErrorIs(t, err, context.Canceled, "want: a probe waits while many others do")

	for _, release := range releases {
		release()
	}

	for range pool.MaxInPool + 1 {
		probe(short, health.BackingFileTruncated)
	}

	s.failPool("default")

	_, err = s.health.probe(t.Context(), short)
	rpccode.Require(t, err, codes.Unavailable)
}

// doneContext calls asked when a caller first waits for its end.
type doneContext struct {
	context.Context //nolint:containedctx // it is a context

	once  sync.Once
	asked func()
}

func (c *doneContext) Done() <-chan struct{} {
	c.once.Do(c.asked)

	return c.Context.Done()
}

// TestAFindingIsOfTheRecordThatIsStored: what is found by a record that has changed meanwhile is
// found once more.
func TestAFindingIsOfTheRecordThatIsStored(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		meanwhile func(s *site, id string)
		gone      bool
		want      []health.Reason
	}{
		"nothing":        {func(*site, string) {}, false, []health.Reason{health.BackingFileTruncated}},
		"it is removed":  {func(s *site, id string) { s.hide(id) }, true, nil},
		"it is restored": {func(s *site, id string) { require.NoError(s.t, os.Truncate(s.imagePath(id), 4*mib)) }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			id := s.create("volume")
			require.NoError(t, os.Truncate(s.imagePath(id), mib))

			seen, err := s.health.probe(&doneContext{Context: t.Context(), asked: func() { test.meanwhile(s, id) }}, id)
			require.Equal(t, test.gone, err != nil, "want: it is gone: %v", err)
			require.Equal(t, test.want, reasons(seen.Entries), "want: the findings of the record that is stored")
		})
	}
}

// TestVolumesOfASilentPoolKeepTheirFindings, and have one more.
func TestVolumesOfASilentPoolKeepTheirFindings(t *testing.T) {
	t.Parallel()

	storage := health.New(health.Config{Name: "storage"})
	s := newSite(t, func(c *Config) { c.Storage = storage })
	id, other := s.create("volume"), s.create("other", with("pool", "fast"))

	require.NoError(t, os.Remove(s.imagePath(id)))
	require.NoError(t, os.Remove(s.imagePath(other)))
	require.False(t, s.health.unreachable("default"), "want: a pool without a condition answers")
	require.True(t, storage.Set(health.PoolSubject("default"), health.Observation{
		Entries: []health.Entry{health.NewEntry(health.PoolUnreachable, "away")},
	}, time.Now()), "want: the condition is stored")
	require.True(t, s.health.unreachable("default"), "want: its condition says that it does not answer")
	require.False(t, s.health.unreachable("fast"), "want: another pool answers")

	seen, err := s.health.probe(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []health.Reason{health.ProbeTimedOut}, reasons(seen.Entries), "want: no probe, which would find no image")

	require.True(t, s.health.Monitor.Set(id, health.Observation{Entries: []health.Entry{
		health.NewEntry(health.BackingFileTruncated, "before"), health.NewEntry(health.ProbeTimedOut, "before"),
	}}, time.Now()), "want: the condition is stored")

	seen, err = s.health.probe(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []health.Reason{health.ProbeTimedOut, health.BackingFileTruncated}, reasons(seen.Entries))

	seen, err = s.health.probe(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, []health.Reason{health.BackingFileMissing}, reasons(seen.Entries))
}

func TestStorageFindings(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		backing   volume.Backing
		evadedFor time.Duration
		failure   error
		want      []health.Reason
	}{
		"image":                  {volume.BackingImage, 0, nil, nil},
		"shorter image":          {volume.BackingImage, 0, pool.ErrTruncated, []health.Reason{health.BackingFileTruncated}},
		"missing image":          {volume.BackingImage, 0, pool.ErrMissing, []health.Reason{health.BackingFileMissing}},
		"directory":              {volume.BackingDirectory, 0, nil, nil},
		"missing directory":      {volume.BackingDirectory, 0, pool.ErrMissing, []health.Reason{health.VolumeNotFound}},
		"directory with evasion": {volume.BackingDirectory, 1, nil, []health.Reason{health.SizeLimitEvaded}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := &record.Volume{Properties: &record.Properties{Parameters: volume.Parameters{Backing: test.backing}}}
			require.Equal(t, test.want, reasons(storageFindings(v, test.evadedFor, test.failure)))
		})
	}
}

// TestEventsAffectTheVolumeOfTheirFile: changes and writes of files that are named like a volume.
func TestEventsAffectTheVolumeOfTheirFile(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id, hidden := s.create("volume"), s.create("hidden")
	s.hide(hidden)

	for _, test := range []struct {
		kind health.Kind
		path string
		want []string
	}{
		{health.FileChanged, "/pool/images/" + id + layout.ImageSuffix, []string{id}},
		{health.FileWritten, "/pool/images/" + id + layout.ImageSuffix, []string{id}},
		{health.FileWritten, "/pool/directories/" + id, []string{id}},
		{health.Lost, "/pool/images/" + id + layout.ImageSuffix, nil},
		{health.FileChanged, "/pool/images/" + hidden + layout.ImageSuffix, nil},
		{health.FileChanged, "/pool/images/" + newID(t) + layout.ImageSuffix, nil},
	} {
		require.Equal(t, test.want, s.health.affectedBy(health.Event{Kind: test.kind, Path: test.path}), "%v %s", test.kind, test.path)
	}
}

// TestNewVolumesAreProbed, and those of a suspect pool.
func TestNewVolumesAreProbed(t *testing.T) {
	t.Parallel()

	s := newSite(t, monitored)
	// What is probed after an event is probed a few more times; what is probed by a relist is not.
	other := s.create("other", with("pool", "fast"))
	s.watch()
	require.NotNil(t, s.health.conditionOf(other), "want: the first relist probes it")

	id := s.create("volume")
	require.Eventually(t, func() bool { return s.health.conditionOf(id) != nil }, await.Limit, time.Millisecond, "want: it is probed at once")

	require.NoError(t, os.Remove(s.imagePath(id)))
	require.NoError(t, os.Remove(s.imagePath(other)))
	s.health.SuspectPool("default")
	require.Eventually(t, func() bool { return s.health.conditionOf(id).Has(health.BackingFileMissing) }, await.Limit, time.Millisecond,
		"want: the volumes of the pool are probed")
	require.Empty(t, reasons(s.health.conditionOf(other).Entries), "want: those of another pool are not probed")

	require.NoError(t, s.remove(t.Context(), id))
	require.Nil(t, s.health.conditionOf(id), "want: a deleted volume has no condition")
	require.Equal(t, []string{id}, s.node.deleted, "want: the node forgets it")
}

// TestUnhealthyVolumesAreListed: by all calls that report conditions, page by page, without what is
// deleted.
func TestUnhealthyVolumesAreListed(t *testing.T) {
	t.Parallel()

	s := newSite(t, monitored)
	ids := []string{s.create("a"), s.create("b"), s.create("c"), s.create("d"), s.create("e"), s.create("f")}
	require.NoError(t, s.publish(t.Context(), ids[1], nextNode))
	s.watch()

	unhealthy := func(id string) {
		require.True(t, s.health.Monitor.Set(id, health.Observation{Entries: []health.Entry{health.NewEntry(health.IOErrors, "because")}},
			time.Now().Add(time.Hour)), "want: the condition is stored")
	}
	unhealthy(ids[0])
	unhealthy(ids[2])
	unhealthy(ids[3])
	unhealthy(newID(t)) // it was deleted

	hidden := s.create("hidden")
	unhealthy(hidden)
	s.hide(hidden)

	first, err := s.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{MaxEntries: 2})
	require.NoError(t, err)
	require.Len(t, first.GetEntries(), 2, "want: a page has what was asked for")
	require.Equal(t, ids[0], first.GetEntries()[0].GetVolumeId())
	require.Equal(t, ids[2], first.GetNextToken())

	second, err := s.ControllerListVolumeHealth(t.Context(), &csi.ControllerListVolumeHealthRequest{StartingToken: first.GetNextToken()})
	require.NoError(t, err)
	require.Len(t, second.GetEntries(), 1, "want: the next page has the rest")
	require.Equal(t, ids[3], second.GetEntries()[0].GetVolumeId())
	require.Empty(t, second.GetNextToken(), "want: the list is at its end")

	listed, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), len(ids), "want: all volumes are listed")

	for i, each := range listed.GetEntries() {
		got, err := s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: ids[i]})
		require.NoError(t, err)

		one, err := s.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: ids[i]})
		require.NoError(t, err)

		bad := i == 0 || i == 2 || i == 3
		require.Len(t, wire(t, each.GetVolume()), len(wire(t, got.GetVolume())), "want: both calls describe the volume")
		require.Equal(t, bad, wire(t, each.GetStatus()) != wire(t, healthyStatus(each.GetStatus().GetPublishedNodeIds())),
			"want: only the unhealthy are listed as abnormal")
		require.Equal(t, wire(t, got.GetStatus()), wire(t, each.GetStatus()), "want: both calls say the same")
		require.Equal(t, bad, len(one.GetVolumeHealth().GetHealthStatuses()) > 0, "want: %v", one)
		require.Equal(t, i == 1, len(each.GetStatus().GetPublishedNodeIds()) == 1, "want: one is published")
	}

	_, err = s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: newID(t)})
	rpccode.Require(t, err, codes.NotFound)

	_, err = s.ControllerGetVolumeHealth(t.Context(), &csi.ControllerGetVolumeHealthRequest{VolumeId: newID(t)})
	rpccode.Require(t, err, codes.NotFound)

	behind, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{StartingToken: ids[2]})
	require.NoError(t, err)
	require.Len(t, behind.GetEntries(), 3, "want: the volumes behind the token")
	require.Equal(t, wire(t, listed.GetEntries()[3].GetStatus()), wire(t, behind.GetEntries()[0].GetStatus()))
}

// healthyStatus is the status of a volume without findings.
func healthyStatus(nodeIDs []string) *csi.ListVolumesResponse_VolumeStatus {
	status := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodeIDs}
	health.PutCondition(status, nil)

	return status
}

func wire(t *testing.T, message proto.Message) string {
	t.Helper()

	encoded, err := proto.Marshal(message)
	require.NoError(t, err)

	return string(encoded)
}

// TestConditionsAreAwaited: before the first relist no call reports a volume as healthy.
func TestConditionsAreAwaited(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("volume")
	ended, end := context.WithCancel(t.Context())
	end()

	for name, call := range map[string]func() error{
		"ControllerGetVolume": func() error {
			_, err := s.ControllerGetVolume(ended, &csi.ControllerGetVolumeRequest{VolumeId: id})

			return err
		},
		"ControllerGetVolumeHealth": func() error {
			_, err := s.ControllerGetVolumeHealth(ended, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})

			return err
		},
		"ControllerListVolumeHealth": func() error {
			_, err := s.ControllerListVolumeHealth(ended, &csi.ControllerListVolumeHealthRequest{})

			return err
		},
		"ListVolumes": func() error {
			_, err := s.ListVolumes(ended, &csi.ListVolumesRequest{})

			return err
		},
	} {
		rpccode.Require(t, call(), codes.Canceled, name)
	}

	s.restart(without("VOLUME_CONDITION"))

	listed, err := s.ListVolumes(ended, &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Empty(t, listed.GetEntries()[0].GetStatus().ProtoReflect().GetUnknown(), "want: no condition without the capability")

	got, err := s.ControllerGetVolume(ended, &csi.ControllerGetVolumeRequest{VolumeId: id})
	require.NoError(t, err)
	require.Empty(t, got.GetStatus().ProtoReflect().GetUnknown(), "want: no condition without the capability")
}

// TestReadyVolumesAreReported, and no others.
func TestReadyVolumesAreReported(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	image, directory := s.create("image"), s.create("directory", with("backing", "directory"), with("pool", "fast"))
	raw := s.create("raw", func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()} })
	hidden := s.create("hidden")
	s.hide(hidden)

	s.health.Monitor.Set(image, health.Observation{Entries: []health.Entry{health.NewEntry(health.IOErrors, "because")}}, time.Now())

	require.Equal(t, []string{image, directory, raw}, s.health.monitored())

	reports := s.health.Reports()
	require.Len(t, reports, 3, "want: a report of each volume that is ready")
	require.Equal(t, "ext4", reports[0].FSType)
	require.NotEmpty(t, reports[0].Conditions, "want: its condition is reported")
	require.Empty(t, reports[1].FSType, "want: a directory has none of its own")
	require.Equal(t, "fast", reports[1].Pool)
	require.Empty(t, reports[2].FSType, "want: a raw volume has none")

	registered, ok := s.catalog.Registered(directory)
	require.True(t, ok, "want: the volume is registered")
	require.Equal(t, volume.Registered{Pool: "fast", Backing: volume.BackingDirectory, CapacityBytes: 4 * mib}, registered)

	for _, id := range []string{hidden, newID(t)} {
		registered, ok := s.catalog.Registered(id)
		require.False(t, ok, "want: it does not exist for a node")
		require.Zero(t, registered, "want: nothing is registered")
	}

	snapshotID, group := s.snapshot("snapshot", image), s.group("group", image)

	for kind, want := range map[names.Kind][]names.Object{
		names.Volume:   {{ID: image, Name: "image"}, {ID: directory, Name: "directory"}, {ID: raw, Name: "raw"}},
		names.Snapshot: {{ID: snapshotID, Name: "snapshot"}, {ID: group.GetSnapshots()[0].GetSnapshotId()}},
		names.Group:    {{ID: group.GetGroupSnapshotId(), Name: "group"}},
	} {
		require.Equal(t, want, s.catalog.Names(kind), "%v", kind)
	}
}
