package controller

import (
	"context"
	"io/fs"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/catalog"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// heldAt runs a call that waits at a point of its operation until happen has returned, and returns its
// error.
func (s *site) heldAt(point operation.Point, run func(context.Context) error, happen func()) error {
	s.t.Helper()

	s.held, s.reached, s.released = point, make(chan struct{}), make(chan struct{})
	answer := make(chan error, 1)

	go func() { answer <- run(s.t.Context()) }()

	await.Receive(s.t, s.reached, "the point "+string(point))
	happen()
	close(s.released)

	return await.Receive(s.t, answer, "the call")
}

// TestAVolumeBeingCreatedIsNotDeleted: its record is there, but no CO has its id; or it has none, and the
// recovery of its pool takes its image for no orphan.
func TestAVolumeBeingCreatedIsNotDeleted(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	thick := func(ctx context.Context) error {
		_, err := s.CreateVolume(ctx, createRequestOf("volume", with("provisioning", "thick")))

		return err
	}

	require.NoError(t, s.heldAt(operation.VolumeAllocated, thick, func() {
		require.NoError(t, s.remove(t.Context(), s.firstVolume()))
	}))
	require.FileExists(t, s.imagePath(s.firstVolume()), "want: the created volume has its image")
	require.NoError(t, s.heldAt(operation.VolumeAllocated, operations()["create an image"](s), func() {
		require.NoError(t, s.RecoverPool(t.Context(), s.served()))
	}))
	s.requireSound()
}

// TestParametersAreValidatedWithoutThePool, which may be unavailable.
func TestParametersAreValidatedWithoutThePool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	request := &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: s.create("volume"), VolumeCapabilities: []*csi.VolumeCapability{mountCapability()},
		Parameters: map[string]string{"backing": "image"},
	}
	s.failPool("default")

	answer, err := s.ValidateVolumeCapabilities(t.Context(), request)
	require.NoError(t, err)
	require.NotNil(t, answer.GetConfirmed(), "want: the parameters are the volume's: %s", answer.GetMessage())
}

// TestConcurrentProvisioningIsCounted: a call whose space was provisioned to others since it was
// admitted is refused, and leaves the records as they were.
func TestConcurrentProvisioningIsCounted(t *testing.T) {
	t.Parallel()

	for name, point := range map[string]operation.Point{
		"create an image": operation.VolumeAllocated, "create a directory": operation.VolumeAllocated,
		"expand": operation.ImageExpanded, "expand a directory": operation.ImageExpanded, "expand after use": operation.ImageExpanded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			run := operations()[name](s)
			records := s.allRecords()

			rpccode.Require(t, s.heldAt(point, run, func() {
				require.Equal(t, records, s.allRecords(), "want: nothing is recorded before")

				s.config.Admission.Capacities["default"] = s.catalog.ProvisionedBytes("default")
			}), codes.ResourceExhausted)
			s.flush()
			require.Equal(t, records, s.allRecords(), "want: the records are as before")
		})
	}
}

// TestVolumesAreHiddenBeforeTheirRecord: also one whose record comes first.
func TestVolumesAreHiddenBeforeTheirRecord(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	run := operations()["create a thick image"](s)

	require.NoError(t, s.heldAt(operation.VolumeAllocated, run, func() {
		require.Len(t, s.allRecords(), 1, "want: its space is reserved")
		require.Empty(t, s.health.monitored(), "want: no volume is ready")

		_, err := s.catalog.FindVolume(s.firstVolume())
		rpccode.Require(t, err, codes.NotFound)
	}))
	require.Len(t, s.health.monitored(), 1, "want: the volume is ready")
	s.requireSound()
}

// TestNodeLimitsCountConcurrentAttachments: an attachment that was allowed may find no slot.
func TestNodeLimitsCountConcurrentAttachments(t *testing.T) {
	t.Parallel()

	s := newSite(t, func(c *Config) { c.MaxVolumesPerNode = 1 })
	run, other := publishing(s), s.create("other")

	rpccode.Require(t, s.heldAt(operation.AttachmentAllowed, run, func() {
		require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error {
			v, _ := s.catalog.Volumes.In(tx).Get(other)
			v = v.Clone()
			v.Attachments = []record.Attachment{{NodeID: ownNode, Capability: v.Capabilities[0]}}

			return s.catalog.Volumes.In(tx).Put(other, v)
		}))
	}), codes.ResourceExhausted)
}

// TestCreationBesideAFailedOne: the name is free when the record of the failed one is removed.
func TestCreationBesideAFailedOne(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("volume")
	s.hide(id)

	_, err := s.CreateVolume(t.Context(), createRequestOf("volume"))
	rpccode.Require(t, err, codes.Aborted)
	require.Contains(t, err.Error(), id)
}

// TestModificationsNeedNoSpace: also where more is provisioned than the pool has.
func TestModificationsNeedNoSpace(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	run := modifying(s)
	s.config.Admission.Capacities["default"] = s.catalog.ProvisionedBytes("default") - 1
	require.NoError(t, run(t.Context()))
	s.requireSound()
}

// TestConcurrentUseKeepsTheVolume: it is checked once more with the record.
func TestConcurrentUseKeepsTheVolume(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("volume")
	s.node.usedFrom = 2
	rpccode.Require(t, s.remove(t.Context(), id), codes.FailedPrecondition)

	s.node.usedFrom = 0
	s.requireSound()
	require.Len(t, s.health.monitored(), 1, "want: the volume stays")
}

// TestCancelledDeletionFails if the snapshot's copy has not ended.
func TestCancelledDeletionFails(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	found, _ := s.catalog.Snapshots.Get(s.snapshot("snapshot", s.create("source")))
	copying, end := s.copies.Running.Start(t.Context(), found.ID, found.Name)

	leaving, leave := context.WithCancelCause(t.Context())
	context.AfterFunc(copying, func() { leave(errBroken) })

	require.ErrorIs(t, s.copies.Remove(leaving, nil, found), errBroken)
	require.ErrorIs(t, context.Cause(copying), catalog.ErrDeleted)
	require.Len(t, s.inPool("default", "snapshots"), 1, "want: nothing is removed while it is copied")
	end()

	require.NoError(t, s.copies.Remove(t.Context(), nil, found))
	s.requireSound()
}

// TestRemovalsFailWithTheirPool, and are repeated: the record stays until the bytes are gone.
func TestRemovalsFailWithTheirPool(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		fail func(s *site)
		want error
	}{
		"closed": {func(s *site) { s.closePool("default") }, fs.ErrClosed},
		"failed": {func(s *site) { s.failPool("default") }, pool.ErrUnavailable},
	} {
		s := newSite(t)
		id := s.create("volume")
		snapshot, _ := s.catalog.Snapshots.Get(s.snapshot("snapshot", id))
		v, err := s.catalog.FindVolume(id)
		require.NoError(t, err)

		records := s.allRecords()
		test.fail(s)

		require.ErrorIs(t, s.remover.Volume(v).Remove(t.Context()), test.want, name)
		require.ErrorIs(t, s.remover.Snapshots(nil, []*record.Snapshot{snapshot}).Remove(t.Context()), test.want, name)

		for what, observe := range map[string]func() error{
			"newSnapshot": func() error { _, err := s.copies.NewSnapshot(t.Context(), v, volume.ConsistencyNone); return err },
			"delete":      func() error { return s.delete(t.Context(), id) },
			"durable": func() error {
				p, err := s.catalog.PoolOf(v)
				if err != nil {
					return err
				}

				return objects.AllocateDurably(v, p)
			},
		} {
			require.ErrorIs(t, observe(), test.want, "%s, %s", what, name)
		}

		s.flush()
		require.Equal(t, records, s.allRecords(), "want: the records stay")
	}
}

// TestIncompleteGroupIsNotFound: it lacks a member, as after a repair of the state. It is deleted,
// and a start removes an unfinished one.
func TestIncompleteGroupIsNotFound(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	first, second := s.create("first"), s.create("second")

	lacking := func() (groupID string, memberIDs []string) {
		made := s.group("group", first, second)
		for _, each := range made.GetSnapshots() {
			memberIDs = append(memberIDs, each.GetSnapshotId())
		}

		require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error { return s.catalog.Snapshots.In(tx).Delete(memberIDs[1]) }))
		require.NoError(t, s.served().Remove(t.Context(), pool.Object{ID: memberIDs[1], Backing: volume.BackingImage, Snapshot: true}))

		return made.GetGroupSnapshotId(), memberIDs
	}

	groupID, memberIDs := lacking()

	_, err := s.groups.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: groupID, SnapshotIds: memberIDs})
	rpccode.Require(t, err, codes.NotFound)

	_, err = s.groups.CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{first, second}})
	rpccode.Require(t, err, codes.NotFound)

	_, err = s.groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: groupID, SnapshotIds: memberIDs})
	require.NoError(t, err)
	s.requireSound()
	require.Len(t, s.allRecords(), 2, "want: only the volumes are recorded")

	groupID, memberIDs = lacking()

	require.NoError(t, s.config.Store.Update(t.Context(), func(tx *state.Tx) error {
		member, _ := s.catalog.Snapshots.In(tx).Get(memberIDs[0])
		require.NoError(t, s.catalog.Snapshots.In(tx).Put(member.ID, member.InPhase(record.PhaseDeleting)))

		group, _ := s.catalog.Groups.In(tx).Get(groupID)

		return s.catalog.Groups.In(tx).Put(groupID, group.InPhase(record.PhaseDeleting))
	}))
	s.restart()
	s.requireSound()
	require.Len(t, s.allRecords(), 2, "want: only the volumes are recorded")
}

// TestEndingDriverResumesNoCopies, and none is resumed beside an operation on its source.
func TestEndingDriverResumesNoCopies(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.snapshot("snapshot", s.create("source"))
	copying := s.setPhase(id, record.PhaseCopying)
	release := s.hold("volume " + copying.SourceVolumeID)

	require.NoError(t, s.copies.Resume(t.Context(), s.served()))
	require.Equal(t, 1, s.ops.Len(), "want: no copy is begun beside it")
	release()
	require.NoError(t, s.ops.Drain(t.Context()))
	require.ErrorIs(t, s.RecoverPool(t.Context(), s.served()), operation.ErrDraining)
}
