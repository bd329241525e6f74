package controller

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/pkg/state"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// requireSound compares the records with the pools: each volume and snapshot has its object, with its
// size, and no object is without a record. Nothing is half-done.
func (s *site) requireSound() {
	s.t.Helper()
	s.settle()
	s.flush()

	objects := map[string]bool{}

	for id, v := range s.catalog.Volumes.Ascend("") {
		require.Equal(s.t, record.PhaseReady, v.Phase, "volume %s", v.Name)

		p, err := s.catalog.PoolOf(v)
		require.NoError(s.t, err)

		size, err := p.Size(v.Object())
		require.NoError(s.t, err, "volume %s", v.Name)

		if v.Parameters.Backing == volume.BackingImage {
			require.GreaterOrEqual(s.t, size, v.CapacityBytes, "want: the image of %s has its size", v.Name)
		}

		attributes, err := p.Mutable(id)
		require.NoError(s.t, err)
		require.True(s.t, attributes.Equal(v.Mutable), "want: the pool has the parameters of %s", v.Name)

		objects[strings.TrimSuffix(id, ".img")] = true
	}

	for id, each := range s.catalog.Snapshots.Ascend("") {
		require.Equal(s.t, record.PhaseReady, each.Phase, "snapshot %s", each.Name)

		p, err := s.catalog.Pool(each.Parameters.Pool, "snapshot")
		require.NoError(s.t, err)

		_, err = p.Size(each.Object())
		require.NoError(s.t, err, "snapshot %s", each.Name)

		objects[id] = true
	}

	for _, name := range s.config.Pools.Names() {
		for _, directory := range []string{"images", "directories", "snapshots"} {
			for _, each := range s.inPool(name, directory) {
				require.True(s.t, objects[strings.TrimSuffix(each, ".img")], "want: no %s without a record, not %s", directory, each)
			}
		}

		require.Empty(s.t, s.inPool(name, "scratch"), "want: no copy is half-done")
	}

	s.requireNothingHeld()
}

// requireNothingHeld: no call has left a lock, a slot, or a volume that is being made, and the sums are
// those of the records.
func (s *site) requireNothingHeld() {
	s.t.Helper()

	provisioned := map[string]int64{}

	for id, v := range s.catalog.Volumes.Ascend("") {
		provisioned[v.Parameters.Pool] += v.CapacityBytes

		_, making := s.creating.Load(id)
		require.False(s.t, making, "want: volume %s is made", v.Name)
	}

	for id, each := range s.catalog.Snapshots.Ascend("") {
		provisioned[each.Parameters.Pool] += each.AllocatedBytes

		require.False(s.t, s.copies.Running.Has(id), "want: the copy of snapshot %s has ended", each.Name)

		unlock, err := s.copies.Locks.TryLock(id)
		require.NoError(s.t, err, "want: snapshot %s is neither read nor deleted", each.Name)
		unlock()
	}

	for _, name := range s.config.Pools.Names() {
		require.Equal(s.t, provisioned[name], s.catalog.ProvisionedBytes(name), "want: the sum of the records of pool %s", name)
		s.requireNoProbe(name)
	}
}

// requireNoProbe requires that as many probes as may run at once in a pool can begin.
func (s *site) requireNoProbe(poolName string) {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), await.Limit)
	defer cancel()

	for range pool.MaxInPool {
		release, err := s.health.probes.Acquire(ctx, poolName)
		require.NoError(s.t, err, "want: no probe runs in pool %s", poolName)

		defer release() //nolint:gocritic // all are taken at once
	}
}

// TestEachFailedStateChangeFailsItsCall has each change of the state fail that a call makes. The call
// fails, and its repetition after a restart completes it.
func TestEachFailedStateChangeFailsItsCall(t *testing.T) {
	t.Parallel()

	for name, prepare := range operations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			for nth := 1; ; nth++ {
				s := newSite(t)
				run := prepare(s)
				s.disk.failAt(nth)

				err := run(t.Context())
				if !s.disk.hasFailed() {
					require.NoError(t, err)
					require.Greater(t, nth, 1, "want: the call changes the state")
					s.disk.failAt(0)
					s.requireSound()

					return
				}

				rpccode.Require(t, err, codes.Unavailable, "change %d of the state fails", nth)
				s.restart()
				require.NoError(t, run(t.Context()), "want: the repetition succeeds after change %d has failed", nth)
				s.requireSound()
				require.NoError(t, run(t.Context()), "want: the call is idempotent")
			}
		})
	}
}

// TestCallsFailWhileTheirPoolDoes: a call that needs a pool is UNAVAILABLE while it is, and changes
// nothing.
func TestCallsFailWhileTheirPoolDoes(t *testing.T) {
	t.Parallel()

	for name, prepare := range operations() {
		if name == "unpublish" {
			continue // it needs no pool
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			run := prepare(s)

			for _, each := range s.config.Pools.Names() {
				s.failPool(each)
			}

			records := s.allRecords()
			rpccode.Require(t, run(t.Context()), codes.Unavailable)
			require.Equal(t, records, s.allRecords(), "want: the records are as before")

			s.restart()
			require.NoError(t, run(t.Context()))
			s.requireSound()
		})
	}
}

// allRecords describes all records.
func (s *site) allRecords() []string {
	var all []string

	for _, v := range s.catalog.Volumes.Ascend("") {
		all = append(all, fmt.Sprintf("%+v %+v", *v, *v.Properties))
	}

	for _, each := range s.catalog.Snapshots.Ascend("") {
		all = append(all, fmt.Sprintf("%+v", *each))
	}

	for _, each := range s.catalog.Groups.Ascend("") {
		all = append(all, fmt.Sprintf("%+v", *each))
	}

	return all
}

// TestCallsFailWithoutTheirPoolDirectory removes a directory of the pool: a call that needs it fails,
// leaves nothing, and can be repeated.
func TestCallsFailWithoutTheirPoolDirectory(t *testing.T) {
	t.Parallel()

	for name, directory := range map[string]string{
		"create an image": "images", "create a thick image": "images", "create a directory": "directories", "create with limits": "attributes",
		"restore": "snapshots", "restore with limits": "attributes", "clone": "scratch", "clone a thick image": "images",
		"publish": "images", "publish a directory": "directories", "expand": "images", "expand after use": "images", "modify": "attributes",
		"expand a directory": "directories", "snapshot": "snapshots", "snapshot a directory": "scratch", "group snapshot": "snapshots",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			run := operations()[name](s)
			before := len(s.allRecords())
			restore := s.spoil("default", directory)

			err := run(t.Context())
			require.Error(t, err, "want: the call fails without %s", directory)
			require.NotEqual(t, codes.Unavailable.String(), status.Code(err).String())
			restore()
			s.settle()
			s.flush()
			require.Len(t, s.allRecords(), before, "want: the failure leaves no record")
			require.NoError(t, run(t.Context()), "want: the repetition succeeds")
			s.requireSound()
		})
	}
}

// flush makes visible what is recorded lazily.
func (s *site) flush() {
	s.t.Helper()
	require.NoError(s.t, s.config.Store.Update(s.t.Context(), func(*state.Tx) error { return nil }))
}

// TestCallsFailAtTheirPoints: an error at a point of an operation fails its call, whose repetition
// succeeds.
func TestCallsFailAtTheirPoints(t *testing.T) {
	t.Parallel()

	for point, names := range map[operation.Point][]string{
		operation.VolumeAllocated:    {"create an image", "create a thick image", "create a directory"},
		operation.VolumeRecorded:     {"create an image", "restore", "clone"},
		operation.VolumeRemoved:      {"delete"},
		operation.AttachmentAllowed:  {"publish"},
		operation.AttachmentRecorded: {"publish"},
		operation.ImageExpanded:      {"expand", "expand a directory", "expand after use"},
		operation.SnapshotCopied:     {"snapshot", "group snapshot"},
		operation.SnapshotRecorded:   {"snapshot", "group snapshot"},
	} {
		for _, name := range names {
			t.Run(string(point)+" "+name, func(t *testing.T) {
				t.Parallel()

				s := newSite(t)
				run := operations()[name](s)

				s.failing = point

				rpccode.Require(t, run(t.Context()), codes.OutOfRange)
				require.NoError(t, run(t.Context()))
				s.requireSound()
			})
		}
	}
}

// TestCallsWithoutCapacity: what would provision more than the pool has is refused before anything is
// made.
func TestCallsWithoutCapacity(t *testing.T) {
	t.Parallel()

	for name, prepare := range operations() {
		if strings.HasPrefix(name, "delete") || strings.Contains(name, "publish") || name == "modify" {
			continue // they provision nothing
		}

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			run := prepare(s)

			// A snapshot provisions what its source has allocated.
			s.writeAll()

			for _, each := range s.config.Pools.Names() {
				s.config.Admission.Capacities[each] = s.catalog.ProvisionedBytes(each)
			}

			records := s.allRecords()
			images := s.modified("images", "directories")

			rpccode.Require(t, run(t.Context()), codes.ResourceExhausted)
			s.flush()
			s.settle()
			require.Equal(t, records, s.allRecords(), "want: the records are as before")

			if strings.HasPrefix(name, "create") {
				require.Equal(t, images, s.modified("images", "directories"), "want: no object was made")
			}

			clear(s.config.Admission.Capacities)
			require.NoError(t, run(t.Context()))
			s.requireSound()
		})
	}
}

// writeAll writes to all volumes.
func (s *site) writeAll() {
	s.t.Helper()

	for _, name := range s.config.Pools.Names() {
		for _, each := range s.inPool(name, "images") {
			image, err := os.OpenFile(filepath.Join(s.pool(name), "images", each), os.O_WRONLY, 0)
			require.NoError(s.t, err)

			_, err = image.Write(make([]byte, mib))
			require.NoError(s.t, err)
			require.NoError(s.t, image.Close())
		}

		for _, each := range s.inPool(name, "directories") {
			path := filepath.Join(s.pool(name), "directories", each, "file")
			require.NoError(s.t, os.WriteFile(path, make([]byte, mib), 0o600))
		}
	}
}

// modified describes when directories of the pools were changed last.
func (s *site) modified(directories ...string) []string {
	s.t.Helper()

	var times []string

	for _, name := range s.config.Pools.Names() {
		for _, directory := range directories {
			info, err := os.Stat(filepath.Join(s.pool(name), directory))
			require.NoError(s.t, err)

			times = append(times, info.ModTime().String())
		}
	}

	return times
}

// TestCallsFailWithTheNode: what the local node answers with an error, or refuses, fails the call.
func TestCallsFailWithTheNode(t *testing.T) {
	t.Parallel()

	useErr := func(n *scriptedNode) { n.useErr = errBroken }
	inUse := func(n *scriptedNode) { n.inUse() }
	notFreezable := func(n *scriptedNode) { n.inUse(); n.canFreeze = false }
	freezeErr := func(n *scriptedNode) { n.inUse(); n.freezeErr = errBroken }
	unsupported := func(n *scriptedNode) { n.supportErr = errBroken }
	applyErr := func(n *scriptedNode) { n.applyErr = errBroken }

	for _, test := range []struct {
		name, call string
		script     func(*scriptedNode)
		want       codes.Code
	}{
		{"use is unknown", "delete", useErr, codes.Internal},
		{"use is unknown", "delete a directory", useErr, codes.Internal},
		{"use is unknown", "unpublish", useErr, codes.Internal},
		{"use is unknown", "snapshot", useErr, codes.Internal},
		{"use is unknown", "clone", useErr, codes.Internal},
		{"use is unknown", "group snapshot", useErr, codes.Internal},
		{"in use", "delete", inUse, codes.FailedPrecondition},
		{"in use", "unpublish", inUse, codes.FailedPrecondition},
		{"in use", "expand", inUse, codes.OK},
		{"in use", "snapshot", inUse, codes.OK},
		{"in use", "clone", inUse, codes.OK},
		{"in use", "group snapshot", inUse, codes.OK},
		{"can't be frozen", "snapshot", notFreezable, codes.FailedPrecondition},
		{"can't be frozen", "clone", notFreezable, codes.FailedPrecondition},
		{"can't be frozen", "group snapshot", notFreezable, codes.FailedPrecondition},
		{"freezing fails", "snapshot", freezeErr, codes.Internal},
		{"freezing fails", "clone", freezeErr, codes.Internal},
		{"freezing fails", "group snapshot", freezeErr, codes.Internal},
		{"not supported", "modify", unsupported, codes.InvalidArgument},
		{"not supported", "create with limits", unsupported, codes.InvalidArgument},
		{"not supported", "restore with limits", unsupported, codes.InvalidArgument},
		{"not supported", "create an image", unsupported, codes.OK},
		{"not applied", "modify", applyErr, codes.Internal},
		{"not applied", "expand", applyErr, codes.OK},
	} {
		t.Run(test.name+" "+test.call, func(t *testing.T) {
			t.Parallel()

			s := newSite(t)
			run := operations()[test.call](s)

			for id := range s.catalog.Volumes.Ascend("") {
				s.node.known = append(s.node.known, id)
			}

			test.script(s.node)
			rpccode.Require(t, run(t.Context()), test.want)

			s.node.useErr, s.node.supportErr, s.node.applyErr, s.node.freezeErr, s.node.canFreeze = nil, nil, nil, nil, true
			clear(s.node.used)
			s.flush()
			require.NoError(t, run(t.Context()))
			s.requireSound()
		})
	}
}
