package controller

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

func newID(t *testing.T) string {
	t.Helper()

	id := volume.NewID()

	return id
}

// imagePath returns the path of a volume's image.
func (s *site) imagePath(id string) string {
	s.t.Helper()

	v, ok := s.catalog.Volumes.Get(id)
	require.True(s.t, ok, "want: the volume is recorded")

	return filepath.Join(s.pool(v.Parameters.Pool), "images", id+".img")
}

// served returns the default pool.
func (s *site) served() *pool.Pool {
	s.t.Helper()

	p, err := s.catalog.Pool("default", "test")
	require.NoError(s.t, err)

	return p
}

// stage writes into the image of a volume, as NodeStageVolume does.
func (s *site) stage(id string) {
	s.t.Helper()

	image, err := os.OpenFile(s.imagePath(id), os.O_WRONLY, 0)
	require.NoError(s.t, err)

	_, err = image.WriteAt([]byte("a filesystem"), 0)
	require.NoError(s.t, errors.Join(err, image.Sync(), image.Close()))
}

// TestUnsyncedImagesAreMadeAgain: of volumes that are attached and were never staged, at the first start of
// another boot; if they are detached before that, they are pristine again.
func TestUnsyncedImagesAreMadeAgain(t *testing.T) {
	t.Parallel()

	s := newSite(t, func(c *Config) { c.BootID = "boot 1" })
	lost, short, staged, other := s.create("lost"), s.create("short"), s.create("staged"), s.create("other", with("pool", "fast"))
	detached := s.create("detached")

	for _, id := range []string{lost, short, staged, other, detached} {
		require.NoError(t, s.publish(t.Context(), id, ownNode))
	}

	s.stage(staged)
	require.NoError(t, s.unpublish(t.Context(), detached, ownNode))

	require.NoError(t, os.Remove(s.imagePath(lost)))
	require.NoError(t, os.Remove(s.imagePath(other)))
	require.NoError(t, os.Truncate(s.imagePath(short), 0))
	require.NoError(t, os.Truncate(s.imagePath(staged), 1))
	require.NoError(t, s.allocateDurably(t.Context(), s.served()))
	require.NoFileExists(t, s.imagePath(lost), "no power failure has taken it")

	s.config.BootID = "boot 2"
	require.NoError(t, s.allocateDurably(t.Context(), s.served()))

	for id, want := range map[string]bool{lost: true, short: true, staged: false} {
		v, err := s.catalog.FindVolume(id)
		require.NoError(t, err)
		info, err := os.Stat(s.imagePath(id))
		require.NoError(t, err)
		require.Equal(t, want, info.Size() == v.CapacityBytes, "want: only an image without content is made again")
	}

	require.NoFileExists(t, s.imagePath(other), "it is in another pool")

	require.NoError(t, os.Remove(s.imagePath(lost)))

	s.config.BootID = "boot 3"
	require.NoError(t, s.allocateDurably(t.Context(), s.served()))
	require.NoFileExists(t, s.imagePath(lost), "it was durable: no power failure has taken it")

	unreachable := s.create("unreachable", with("pool", "fast"))
	require.NoError(t, s.publish(t.Context(), unreachable, ownNode))
	s.failPool("fast")

	for id, want := range map[string]bool{detached: true, short: false, staged: false, other: false, unreachable: false} {
		require.NoError(t, s.unpublish(t.Context(), id, ownNode))

		v, err := s.catalog.FindVolume(id)
		require.NoError(t, err)
		require.Equal(t, want, v.Pristine, "want: %s is pristine if it is known to have no content", v.Name)
	}

	unknown := newSite(t)
	id := unknown.create("volume")
	require.NoError(t, unknown.publish(t.Context(), id, ownNode))

	v, err := unknown.catalog.FindVolume(id)
	require.NoError(t, err)
	require.Empty(t, v.UnsyncedIn(), "want: the image is synced if a power failure would not be noticed")

	raw := s.create("raw", func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()} })
	_, err = s.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: raw, NodeId: ownNode, VolumeCapability: blockCapability(),
	})
	require.NoError(t, err)

	v, err = s.catalog.FindVolume(raw)
	require.NoError(t, err)
	require.Empty(t, v.UnsyncedIn(), "want: an image is synced that is not replaced at staging")

	require.NoError(t, s.publish(t.Context(), detached, ownNode))

	s.config.BootID = "boot 4"

	require.NoError(t, os.RemoveAll(filepath.Join(s.pool("default"), "images")))
	require.Error(t, s.allocateDurably(t.Context(), s.served()), "want: an image that cannot be made fails the recovery")

	p := s.served()
	s.closePool("default")
	require.ErrorIs(t, allocateUnsynced(t.Context(), v, p), fs.ErrClosed, "want: an image that cannot be read is not made again")
}

// TestImagesLostByAPowerFailureAreMadeAgain: of the volumes of a pool that were never attached, and only
// where no attachment will do it.
func TestImagesLostByAPowerFailureAreMadeAgain(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	lost, other, used := s.create("lost"), s.create("other", with("pool", "fast")), s.create("used")
	require.NoError(t, s.publish(t.Context(), used, ownNode))
	s.stage(used)
	require.NoError(t, s.unpublish(t.Context(), used, ownNode))

	copied, err := s.catalog.FindVolume(s.create("copied", ofVolume(used)))
	require.NoError(t, err)
	require.False(t, copied.Pristine, "want: a copy has content")

	paths := []string{s.imagePath(lost), s.imagePath(other), s.imagePath(used)}
	for _, each := range paths {
		require.NoError(t, os.Remove(each))
	}

	require.NoError(t, s.allocateDurably(t.Context(), s.served()))
	require.NoFileExists(t, paths[0], "the attachment will make it")

	set := &Config{}
	without("PUBLISH_UNPUBLISH_VOLUME")(set)
	s.config.Capabilities = set.Capabilities

	require.NoError(t, s.allocateDurably(t.Context(), s.served()))
	require.FileExists(t, paths[0])
	require.NoFileExists(t, paths[1], "it is in another pool")
	require.NoFileExists(t, paths[2], "its data is lost")

	for id, want := range map[string]bool{lost: false, other: true, used: false} {
		v, err := s.catalog.FindVolume(id)
		require.NoError(t, err)
		require.Equal(t, want, v.Pristine, "want: it is recorded that the image of %s is durable", v.Name)
	}

	// Each image that cannot be made fails the recovery, also if a later one can.
	s.create("later", with("pool", "fast"))

	fast, err := s.catalog.Pool("fast", "test")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(paths[1], 0o700))
	require.Error(t, s.allocateDurably(t.Context(), fast), "want: a directory cannot be the image")

	require.NoError(t, os.RemoveAll(filepath.Join(s.pool("fast"), "images")))
	require.Error(t, s.allocateDurably(t.Context(), fast), "want: an image that cannot be made fails the recovery")
}

// TestOrphansAreCollected: empty images without a record go, all else stays.
func TestOrphansAreCollected(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	known, p := s.create("known"), s.served()
	empty, full, creating, unknown := newID(t), newID(t), newID(t), newID(t)

	for _, id := range []string{empty, full, creating} {
		require.NoError(t, p.Images.Create(id, mib, false))
	}

	require.NoError(t, os.WriteFile(p.ObjectPath(pool.Object{ID: full, Backing: volume.BackingImage}), []byte("content"), 0o600))
	require.NoError(t, os.WriteFile(p.ObjectPath(pool.Object{ID: unknown, Backing: volume.BackingImage, Snapshot: true}), nil, 0o600))
	require.NoError(t, p.SetMutable(unknown, volume.Mutable{volume.KeyIOScheduler: "none"}))
	s.creating.Store(creating, nil)

	require.NoError(t, s.RecoverPool(t.Context(), p))

	for id, want := range map[string]bool{known: true, empty: false, full: true, creating: true} {
		_, err := os.Stat(p.ObjectPath(pool.Object{ID: id, Backing: volume.BackingImage}))
		require.Equal(t, want, err == nil, "%v", err)
	}

	require.FileExists(t, p.ObjectPath(pool.Object{ID: unknown, Backing: volume.BackingImage, Snapshot: true}))
	require.Empty(t, s.inPool("default", "attributes"), "want: no parameters of a volume that is gone")
	require.True(t, s.existsOrCreating(known), "want: it is recorded")
	require.False(t, s.existsOrCreating(empty), "want: it is not recorded")

	for _, directory := range []string{"snapshots", "images"} {
		require.NoError(t, os.RemoveAll(filepath.Join(s.pool("default"), directory)))
		require.NoError(t, os.WriteFile(filepath.Join(s.pool("default"), directory), nil, 0o600))

		err := s.collectOrphans(t.Context(), p)
		errtext.Require(t, err, "look for orphans")
		errtext.Require(t, err, directory)
	}
}

// TestThePoolGetsTheParametersOfItsRecords: of the volumes that are in it and ready.
func TestThePoolGetsTheParametersOfItsRecords(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	limited, plain, other := s.create("limited", withMutable), s.create("plain"), s.create("other", withMutable, with("pool", "fast"))
	deleting := s.create("deleting", withMutable)
	found, err := s.catalog.FindVolume(deleting)
	require.NoError(t, err)

	gone := found.Clone()
	gone.Phase = record.PhaseDeleting

	require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error { return s.catalog.Volumes.In(tx).Put(deleting, gone) }))

	for _, name := range s.config.Pools.Names() {
		for _, each := range s.inPool(name, "attributes") {
			require.NoError(t, os.Remove(filepath.Join(s.pool(name), "attributes", each)))
		}
	}

	s.node.applyErr = errBroken // one node must not keep the pool from being served

	require.NoError(t, s.RecoverPool(t.Context(), s.served()))
	require.Equal(t, []string{limited + ".json"}, s.inPool("default", "attributes"), "want: neither those of %s nor of %s", plain, deleting)
	require.Empty(t, s.inPool("fast", "attributes"), "want: %s is left alone", other)
}

// TestInterruptedCopiesAreResumed: the copies of acknowledged snapshots of the pool, unless their group
// is not ready or an operation on them runs.
func TestInterruptedCopiesAreResumed(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	sourceID := s.create("source")
	interrupted, busy := s.snapshot("interrupted", sourceID), s.snapshot("busy", s.create("busy"))
	other := s.snapshot("other", s.create("other", with("pool", "fast")))
	orphan := s.snapshot("orphan", s.create("gone"))
	ready := s.snapshot("ready", sourceID)
	members := s.group("group", sourceID).GetSnapshots()
	groupID := members[0].GetGroupSnapshotId()
	s.removeSource(orphan)

	require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error {
		for _, id := range []string{interrupted, busy, other, orphan, members[0].GetSnapshotId()} {
			found, _ := s.catalog.Snapshots.In(tx).Get(id)
			require.NoError(t, s.catalog.Snapshots.In(tx).Put(id, found.InPhase(record.PhaseCopying)))
		}

		group, _ := s.catalog.Groups.In(tx).Get(groupID)

		return s.catalog.Groups.In(tx).Put(groupID, group.InPhase(record.PhaseDeleting))
	}))

	for _, name := range []string{"default", "fast"} {
		for _, each := range s.inPool(name, "snapshots") {
			require.NoError(t, os.Remove(filepath.Join(s.pool(name), "snapshots", each)))
		}
	}

	release := s.hold("snapshot " + busy)

	require.NoError(t, s.copies.Resume(t.Context(), s.served()))
	require.Eventually(t, func() bool { return s.ops.Len() == 1 }, await.Limit, time.Millisecond, "want: the copies end")
	release()

	for id, want := range map[string]record.Phase{
		interrupted: record.PhaseReady, busy: record.PhaseCopying, other: record.PhaseCopying, orphan: record.PhaseFailed,
		ready: record.PhaseReady, members[0].GetSnapshotId(): record.PhaseCopying,
	} {
		found, ok := s.catalog.Snapshots.Get(id)
		require.True(t, ok, "want: the snapshot is recorded")
		require.Equal(t, want, found.Phase, "the snapshot %q", found.Name)
	}

	require.Equal(t, []string{interrupted + ".img"}, s.inPool("default", "snapshots"))
}

// removeSource deletes the source of a snapshot.
func (s *site) removeSource(snapshotID string) {
	s.t.Helper()

	found, ok := s.catalog.Snapshots.Get(snapshotID)
	require.True(s.t, ok, "want: the snapshot is recorded")
	require.NoError(s.t, s.remove(s.t.Context(), found.SourceVolumeID))
}

// TestUnfinishedObjectsAreRemoved: what a crash has left of volumes, snapshots and groups is removed, and
// what is finished stays.
func TestUnfinishedObjectsAreRemoved(t *testing.T) {
	t.Parallel()

	for _, phase := range []record.Phase{record.PhaseCreating, record.PhaseDeleting} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			kept, half := s.create("kept"), s.create("half")
			keptSnapshot, halfSnapshot := s.snapshot("kept", kept), s.snapshot("half", kept)
			keptGroup, halfGroup := s.group("kept", kept), s.group("half", kept)

			require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error {
				v, _ := s.catalog.Volumes.In(tx).Get(half)
				v = v.Clone()
				v.Phase = phase
				require.NoError(t, s.catalog.Volumes.In(tx).Put(half, v))

				for _, id := range []string{halfSnapshot, halfGroup.GetSnapshots()[0].GetSnapshotId()} {
					found, _ := s.catalog.Snapshots.In(tx).Get(id)
					require.NoError(t, s.catalog.Snapshots.In(tx).Put(id, found.InPhase(phase)))
				}

				group, _ := s.catalog.Groups.In(tx).Get(halfGroup.GetGroupSnapshotId())

				return s.catalog.Groups.In(tx).Put(group.ID, group.InPhase(phase))
			}))

			s.restart()
			s.settle()
			s.flush()

			require.Equal(t, []string{kept + ".img"}, s.inPool("default", "images"))
			require.ElementsMatch(t, []string{keptSnapshot + ".img", keptGroup.GetSnapshots()[0].GetSnapshotId() + ".img"},
				s.inPool("default", "snapshots"))
			require.Len(t, s.allRecords(), 4, "want: the volume, its snapshot, its group and the member are kept")
			s.requireSound()

			// The names are free.
			s.create("half")
			s.snapshot("half", kept)
			s.group("half", kept)
		})
	}
}
