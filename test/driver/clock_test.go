package driver_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// year is how far a clock is wrong in these tests.
const year = 365 * 24 * time.Hour

// editRecord restarts the driver with another record, as it would have been written
// with another time.
func editRecord(t *testing.T, d *harness.Driver, collection, id string, edit func(record map[string]any)) {
	t.Helper()
	d.Stop()

	store := state.New(d.Config.StateDir, state.Options{Owner: "the test of clocks", Log: slog.New(slog.DiscardHandler)})
	collections := map[string]*state.Collection[json.RawMessage]{}

	for _, name := range []string{
		"volumes", "snapshots", "groups", "uses", "inline", "tuned", "limited", "frozen", "checks", "pools",
	} {
		collections[name] = state.Register[json.RawMessage](store, name)
	}

	require.NoError(t, store.Open(t.Context()))

	encoded, known := collections[collection].Get(id)
	require.True(t, known, "%s %s", collection, id)

	var record map[string]any

	require.NoError(t, json.Unmarshal(encoded, &record))
	edit(record)

	encoded, err := json.Marshal(record)
	require.NoError(t, err)
	require.NoError(t, store.Update(t.Context(), func(tx *state.Tx) error {
		return collections[collection].In(tx).Put(id, encoded)
	}))
	require.NoError(t, store.Close())
	d.Restart(t)
}

// TestDeltaOfSnapshotsWhenTheClockWasSetBack: of two snapshots the order does not depend
// on the clock, but for records that have nothing else.
func TestDeltaOfSnapshotsWhenTheClockWasSetBack(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	block := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})
	first, second := snapshotOf(t, d, block.VolumeID, "first"), snapshotOf(t, d, block.VolumeID, "second")
	delta := func(base, target string) error {
		return lastError(d.ChangedBlocks(t.Context(), &csi.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target}))
	}

	editRecord(t, d, "snapshots", first, func(record map[string]any) { record["createdAt"] = time.Now().Add(year) })
	require.NoError(t, delta(first, second))
	fails(t, delta(second, first), codes.InvalidArgument, "exchange")

	editRecord(t, d, "snapshots", first, func(record map[string]any) { delete(record, "sequence") })
	require.NoError(t, delta(second, first), "a record of an older version has only its time")
	fails(t, delta(first, second), codes.InvalidArgument, "exchange")
}

// TestAnImageIsKeptWhileItsVolumeIsCreated has the pool fail, and be opened again,
// between the making of an image and its record.
func TestAnImageIsKeptWhileItsVolumeIsCreated(t *testing.T) {
	namespace.NeedRoot(t)

	served := faults.Serve(t)
	d := harness.Start(t, relists, func(c *driver.Config) { c.StateDir = filepath.Join(served.Path, "state") })
	journal := faults.Fault{Name: "state/state.jsonl", Ops: faults.Syncs, Hang: true}

	served.Inject(t, journal)

	created := make(chan error, 1)

	var claim *csiclient.Publication

	go func() {
		made, err := d.CreateVolume(t.Context(), inPool("created", "default"))
		if err == nil {
			claim = d.Claim(t, made.GetVolume().GetVolumeId())
		}

		created <- err
	}()

	require.Eventually(t, func() bool { return served.Met(t) > 0 }, soon, often, "the record is not being written")

	images := names(t, filepath.Join(d.Pool(), "images"))
	require.Len(t, images, 1)

	require.NoError(t, unix.Mount("hiding", d.Pool(), "tmpfs", 0, ""))
	unreachablePool(t, d, "")
	unmount(t, d.Pool())
	servedAgain(t, d, "default")
	require.Empty(t, created)
	require.Equal(t, images, names(t, filepath.Join(d.Pool(), "images")), "the pool was opened again")

	served.Release(t)
	require.NoError(t, <-created)
	require.FileExists(t, imageOf(d, claim.VolumeID))
	deleteVolume(t, d, claim.VolumeID)
}

// TestChecksWhenTheClockWasSetBack: a clean check that is recorded in the future hides
// neither that none has succeeded since nor I/O errors.
func TestChecksWhenTheClockWasSetBack(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	inFuture := func(record map[string]any) { record["cleanAt"] = time.Now().Add(year) }

	t.Run("CheckOverdue", func(t *testing.T) {
		t.Parallel()

		d := harness.Start(t, inMode(driver.ModeNode), relists)
		claim := stagedFor(t, d, "ext4")
		populate(t, claim.StagingPath)
		damageInodes(t, "ext4", imageOf(d, claim.VolumeID))
		modifyElsewhere(t, d, claim.VolumeID, shortPeriod.String())
		editRecord(t, d, "checks", claim.VolumeID, inFuture)
		awaitReason(t, d, claim.VolumeID, health.FilesystemCorrupted)
		awaitReason(t, d, claim.VolumeID, health.CheckOverdue)
		require.False(t, reportOf(t, d, claim.VolumeID).Check.CleanAt.After(time.Now()))
	})
	t.Run("IOErrors", func(t *testing.T) {
		t.Parallel()

		// Without checks nothing corrects the record.
		p := (&illness{served: true, options: []harness.Option{func(c *driver.Config) { c.CheckPeriod = 0 }}}).admit(t, relists)
		editRecord(t, p.Driver, "checks", p.claim.VolumeID, inFuture)
		p.awaitLook(t)
		failReads(t, p)
		awaitReason(t, p.Driver, p.claim.VolumeID, health.IOErrors)
		releaseAndRestage(t, p)
		takeDown(t, p.Driver, p.claim)
		require.NoError(t, os.Remove(p.image))
	})
}
