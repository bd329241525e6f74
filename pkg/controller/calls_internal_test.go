package controller

import (
	"context"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestAnAttachmentIsRepeatedOrRefused: which attachments are made, repeated and refused.
func TestAnAttachmentIsRepeatedOrRefused(t *testing.T) {
	t.Parallel()

	type request = csi.ControllerPublishVolumeRequest

	readers := capabilityWith(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")

	for name, test := range map[string]struct {
		change func(r *request)
		want   codes.Code
		// next are the codes of the same request for another node.
		next codes.Code
	}{
		"mounted":               {func(*request) {}, codes.OK, codes.FailedPrecondition},
		"read by several nodes": {func(r *request) { r.VolumeCapability = readers }, codes.OK, codes.OK},
		"readonly":              {func(r *request) { r.Readonly = true }, codes.OK, codes.FailedPrecondition},
		"no node":               {func(r *request) { r.NodeId = "" }, codes.InvalidArgument, codes.FailedPrecondition},
		"an unknown node":       {func(r *request) { r.NodeId = "x" }, codes.NotFound, codes.OK},
		"no volume":             {func(r *request) { r.VolumeId = "" }, codes.InvalidArgument, codes.InvalidArgument},
		"an unknown volume":     {func(r *request) { r.VolumeId = newID(t) }, codes.NotFound, codes.NotFound},
		"no capability":         {func(r *request) { r.VolumeCapability = nil }, codes.InvalidArgument, codes.InvalidArgument},
		"neither":               {func(r *request) { r.VolumeId, r.VolumeCapability = newID(t), nil }, codes.InvalidArgument, codes.InvalidArgument},
		"an unusable one":       {func(r *request) { r.VolumeCapability = capabilityWith(1, "xfs") }, codes.InvalidArgument, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t, func(c *Config) { c.Shared = true })
			given := &request{VolumeId: s.create("volume"), NodeId: ownNode, VolumeCapability: mountCapability()}
			test.change(given)

			answer, err := s.ControllerPublishVolume(t.Context(), given)
			rpccode.Require(t, err, test.want)

			if err != nil {
				return
			}

			require.Equal(t, map[string]string{volume.KeySlot: "0", volume.KeyReadOnly: map[bool]string{true: "true", false: "false"}[given.GetReadonly()]},
				answer.GetPublishContext())

			again, err := s.ControllerPublishVolume(t.Context(), given)
			require.NoError(t, err)
			require.Equal(t, answer.GetPublishContext(), again.GetPublishContext())

			other := &request{VolumeId: given.GetVolumeId(), NodeId: nextNode, VolumeCapability: given.GetVolumeCapability(), Readonly: given.GetReadonly()}
			_, err = s.ControllerPublishVolume(t.Context(), other)
			rpccode.Require(t, err, test.next)

			given.Readonly = !given.GetReadonly()
			_, err = s.ControllerPublishVolume(t.Context(), given)
			rpccode.Require(t, err, codes.AlreadyExists)
		})
	}
}

// TestAttachmentsHaveTheLowestFreeSlot, up to the limit.
func TestAttachmentsHaveTheLowestFreeSlot(t *testing.T) {
	t.Parallel()

	s := newSite(t, func(c *Config) { c.MaxVolumesPerNode = 2 })
	ids := []string{s.create("a"), s.create("b"), s.create("c")}

	slot := func(id string) int {
		v, err := s.catalog.FindVolume(id)
		require.NoError(t, err)

		return v.Attachments[0].Slot
	}

	require.NoError(t, s.publish(t.Context(), ids[0], ownNode))
	require.NoError(t, s.publish(t.Context(), ids[1], ownNode))
	require.Equal(t, []int{0, 1}, []int{slot(ids[0]), slot(ids[1])})
	rpccode.Require(t, s.publish(t.Context(), ids[2], ownNode), codes.ResourceExhausted)
	require.NoError(t, s.publish(t.Context(), ids[0], ownNode), "an attachment that is there needs no slot")
	require.NoError(t, s.publish(t.Context(), ids[2], nextNode), "another node has slots of its own")
	require.NoError(t, s.unpublish(t.Context(), ids[2], ""), "without a node it leaves all")
	require.NoError(t, s.unpublish(t.Context(), ids[0], nextNode), "it is not attached there")
	rpccode.Require(t, s.publish(t.Context(), ids[2], ownNode), codes.ResourceExhausted)
	require.NoError(t, s.unpublish(t.Context(), ids[0], ownNode))
	require.NoError(t, s.publish(t.Context(), ids[2], ownNode))
	require.Equal(t, 0, slot(ids[2]), "want: the free slot")
	require.NoError(t, s.unpublish(t.Context(), newID(t), ownNode), "an unknown volume is attached nowhere")
	rpccode.Require(t, s.unpublish(t.Context(), "", ownNode), codes.InvalidArgument)
}

// TestUseOnThisNodeKeepsItsAttachment, and no attachment to another node.
func TestUseOnThisNodeKeepsItsAttachment(t *testing.T) {
	t.Parallel()

	readers := &csi.ControllerPublishVolumeRequest{VolumeCapability: capabilityWith(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")}

	for nodeID, want := range map[string]codes.Code{ownNode: codes.FailedPrecondition, "": codes.FailedPrecondition, nextNode: codes.OK} {
		s := newSite(t, func(c *Config) { c.Shared = true })
		id := s.create("volume")

		for _, each := range []string{ownNode, nextNode} {
			readers.VolumeId, readers.NodeId = id, each

			_, err := s.ControllerPublishVolume(t.Context(), readers)
			require.NoError(t, err)
		}

		s.node.used[id] = "/target"
		rpccode.Require(t, s.unpublish(t.Context(), id, nodeID), want, "from %q", nodeID)
		rpccode.Require(t, s.remove(t.Context(), id), codes.FailedPrecondition)
	}
}

// TestExpansionsOnlyEnlarge: what becomes larger, and what is refused.
func TestExpansionsOnlyEnlarge(t *testing.T) {
	t.Parallel()

	type request = csi.ControllerExpandVolumeRequest

	ranged := func(required, limit int64) *csi.CapacityRange {
		return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
	}

	s := newSite(t, func(c *Config) { c.MaxVolumeBytes = 64 * mib })

	for name, test := range map[string]struct {
		change func(r *request)
		want   int64
		code   codes.Code
	}{
		"larger":                  {func(*request) {}, 8 * mib, codes.OK},
		"as large":                {func(r *request) { r.CapacityRange = ranged(4*mib, 4*mib) }, 4 * mib, codes.OK},
		"smaller":                 {func(r *request) { r.CapacityRange = ranged(1, 0) }, 4 * mib, codes.OK},
		"a byte larger":           {func(r *request) { r.CapacityRange = ranged(4*mib+1, 0) }, 4*mib + RoundBytes, codes.OK},
		"not above a limit":       {func(r *request) { r.CapacityRange = ranged(0, 5*mib) }, 4 * mib, codes.OK},
		"above the limit already": {func(r *request) { r.CapacityRange = ranged(0, 3*mib) }, 0, codes.OutOfRange},
		"above the maximum":       {func(r *request) { r.CapacityRange = ranged(65*mib, 0) }, 0, codes.OutOfRange},
		"no range":                {func(r *request) { r.CapacityRange = nil }, 0, codes.InvalidArgument},
		"an empty range":          {func(r *request) { r.CapacityRange = ranged(0, 0) }, 0, codes.InvalidArgument},
		"no volume":               {func(r *request) { r.VolumeId = newID(t) }, 0, codes.NotFound},
		"its capability":          {func(r *request) { r.VolumeCapability = capabilityWith(1, "ext4") }, 8 * mib, codes.OK},
		"another capability":      {func(r *request) { r.VolumeCapability = capabilityWith(1, "xfs") }, 0, codes.InvalidArgument},
	} {
		for backing, onNode := range map[string]bool{"image": true, "directory": false} {
			given := &request{VolumeId: s.create(name+backing, with("backing", backing)), CapacityRange: ranged(8*mib, 0)}
			test.change(given)

			answer, err := s.ControllerExpandVolume(t.Context(), given)
			rpccode.Require(t, err, test.code, "%s", name)
			require.Equal(t, test.want, answer.GetCapacityBytes(), name)
			require.Equal(t, onNode && test.code == codes.OK, answer.GetNodeExpansionRequired(), "want: the node expands an image, %s", name)
		}
	}

	s.requireSound()

	id, free := s.create("used"), s.create("free")
	require.NoError(t, s.publish(t.Context(), id, ownNode))
	s.restart(without("ONLINE"))
	rpccode.Require(t, s.expand(t.Context(), id, 8*mib), codes.FailedPrecondition)
	require.NoError(t, s.expand(t.Context(), id, 4*mib), "it is as large already")
	require.NoError(t, s.expand(t.Context(), free, 8*mib))

	s.restart(func(c *Config) { c.MaxVolumeBytes = mib })
	require.NoError(t, s.expand(t.Context(), free, 8*mib), "want: a maximum that was lowered does not refuse a retry")
	rpccode.Require(t, s.expand(t.Context(), free, 9*mib), codes.OutOfRange)
	require.Equal(t, free, s.create("free"), "want: nor one of a creation")
	s.restart(without("node:EXPAND_VOLUME"), func(c *Config) { c.MaxVolumeBytes = 64 * mib })

	answer, err := s.ControllerExpandVolume(t.Context(), &request{VolumeId: free, CapacityRange: ranged(9*mib, 0)})
	require.NoError(t, err)
	require.False(t, answer.GetNodeExpansionRequired(), "want: the next staging expands")
}

// TestOnlyMutableParametersAreModified: what is changed, and what is refused.
func TestOnlyMutableParametersAreModified(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id, directory := s.create("volume"), s.create("directory", with("backing", "directory"))

	for _, test := range []struct {
		id, key, value string
		want           codes.Code
	}{
		{id, "readIOPS", "100", codes.OK},
		{id, "readIOPS", "100", codes.OK},
		{id, "readIOPS", "x", codes.InvalidArgument},
		{id, "colour", "red", codes.InvalidArgument},
		{newID(t), "readIOPS", "100", codes.NotFound},
		{directory, "readIOPS", "100", codes.InvalidArgument},
		{directory, "readIOPS", "0", codes.OK},
	} {
		rpccode.Require(t, s.modify(t.Context(), test.id, test.key, test.value), test.want, "%s=%s", test.key, test.value)
	}

	_, err := s.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: id})
	rpccode.Require(t, err, codes.InvalidArgument)
	s.requireSound()

	s.restart(without("MODIFY_VOLUME"))

	_, err = s.CreateVolume(t.Context(), createRequestOf("limited", withMutable))
	rpccode.Require(t, err, codes.InvalidArgument)
	s.create("plain")
}

// TestInvalidGroupRequestsAreRefused, before anything is held.
func TestInvalidGroupRequestsAreRefused(t *testing.T) {
	t.Parallel()

	type request = csi.CreateVolumeGroupSnapshotRequest

	s := newSite(t)
	first, second := s.create("first"), s.create("second")

	for name, test := range map[string]struct {
		request *request
		want    codes.Code
	}{
		"no name":           {&request{SourceVolumeIds: []string{first}}, codes.InvalidArgument},
		"no volumes":        {&request{Name: "x"}, codes.InvalidArgument},
		"an impossible id":  {&request{Name: "x", SourceVolumeIds: []string{first, "a/b"}}, codes.InvalidArgument},
		"a volume twice":    {&request{Name: "x", SourceVolumeIds: []string{first, second, first}}, codes.InvalidArgument},
		"unknown parameter": {&request{Name: "x", SourceVolumeIds: []string{first}, Parameters: map[string]string{"colour": "red"}}, codes.InvalidArgument},
		"an unknown volume": {&request{Name: "x", SourceVolumeIds: []string{first, newID(t)}}, codes.NotFound},
		"two":               {&request{Name: "group", SourceVolumeIds: []string{second, first}}, codes.OK},
		"its order":         {&request{Name: "group", SourceVolumeIds: []string{first, second}}, codes.OK},
	} {
		_, err := s.groups.CreateVolumeGroupSnapshot(t.Context(), test.request)
		rpccode.Require(t, err, test.want, "%s", name)
	}

	release := s.hold("volume " + first)
	limited, cancel := context.WithTimeout(t.Context(), await.Limit)
	_, err := s.groups.CreateVolumeGroupSnapshot(limited, &request{Name: "x", SourceVolumeIds: []string{first, newID(t)}})
	rpccode.Require(t, err, codes.NotFound, "want: what is missing is found before the others are waited for")
	cancel()
	release()

	for name, each := range map[string]*request{
		"other volumes":     {Name: "group", SourceVolumeIds: []string{first}},
		"other consistency": {Name: "group", SourceVolumeIds: []string{first, second}, Parameters: map[string]string{volume.KeyConsistency: "none"}},
	} {
		_, err := s.groups.CreateVolumeGroupSnapshot(t.Context(), each)
		rpccode.Require(t, err, codes.AlreadyExists, "%s", name)
	}

	made := s.group("group", first, second)
	members := []string{made.GetSnapshots()[0].GetSnapshotId(), made.GetSnapshots()[1].GetSnapshotId()}
	require.Equal(t, []string{first, second}, []string{made.GetSnapshots()[0].GetSourceVolumeId(), made.GetSnapshots()[1].GetSourceVolumeId()})

	for name, test := range map[string]struct {
		id      string
		members []string
		want    codes.Code
		deleted codes.Code
	}{
		"no id":          {"", members, codes.InvalidArgument, codes.InvalidArgument},
		"an unknown one": {newID(t), members, codes.NotFound, codes.OK},
		"a member less":  {made.GetGroupSnapshotId(), members[:1], codes.InvalidArgument, codes.InvalidArgument},
		"all":            {made.GetGroupSnapshotId(), members, codes.OK, codes.OK},
	} {
		answer, err := s.groups.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: test.id, SnapshotIds: test.members})
		rpccode.Require(t, err, test.want, "%s", name)

		if test.want == codes.OK {
			require.Equal(t, made.String(), answer.GetGroupSnapshot().String())

			continue
		}

		_, err = s.groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: test.id, SnapshotIds: test.members})
		rpccode.Require(t, err, test.deleted, "%s", name)
	}

	_, err = s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: members[0]})
	rpccode.Require(t, err, codes.InvalidArgument)
	s.requireSound()

	_, err = s.groups.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: made.GetGroupSnapshotId(), SnapshotIds: members,
	})
	require.NoError(t, err)
	s.requireSound()
	require.Empty(t, s.inPool("default", "snapshots"), "want: the members are gone")

	_, err = s.groups.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: made.GetGroupSnapshotId(), SnapshotIds: members})
	rpccode.Require(t, err, codes.NotFound)
}

// TestAnnotatedClaimsAreAssignedDirectly: once, when the volume is made, and only where nothing
// else does.
func TestAnnotatedClaimsAreAssignedDirectly(t *testing.T) {
	t.Parallel()

	claimed := func(r *csi.CreateVolumeRequest) {
		r.Parameters[volume.KeyClaimNamespace], r.Parameters[volume.KeyClaimName] = "space", "claim"
	}
	block := func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()} }

	for name, test := range map[string]struct {
		asks   bool
		err    error
		change []func(*csi.CreateVolumeRequest)
		asked  int
		direct bool
		want   codes.Code
	}{
		"it asks":               {true, nil, []func(*csi.CreateVolumeRequest){claimed}, 1, true, codes.OK},
		"it does not":           {false, nil, []func(*csi.CreateVolumeRequest){claimed}, 1, false, codes.OK},
		"the class asks":        {false, nil, []func(*csi.CreateVolumeRequest){claimed, with(volume.KeyDirectAssign, "true")}, 0, true, codes.OK},
		"no claim":              {true, nil, nil, 0, false, codes.OK},
		"no name":               {true, nil, []func(*csi.CreateVolumeRequest){with(volume.KeyClaimNamespace, "space")}, 0, false, codes.OK},
		"no namespace":          {true, nil, []func(*csi.CreateVolumeRequest){with(volume.KeyClaimName, "claim")}, 0, false, codes.OK},
		"it can't be read":      {true, volume.ErrClaimUnavailable, []func(*csi.CreateVolumeRequest){claimed}, 1, false, codes.Unavailable},
		"for a directory":       {true, nil, []func(*csi.CreateVolumeRequest){claimed, with("backing", "directory")}, 1, false, codes.InvalidArgument},
		"for block access":      {true, nil, []func(*csi.CreateVolumeRequest){claimed, block}, 1, false, codes.InvalidArgument},
		"no, for block access":  {false, nil, []func(*csi.CreateVolumeRequest){claimed, block}, 1, false, codes.OK},
		"no, for a directory":   {false, nil, []func(*csi.CreateVolumeRequest){claimed, with("backing", "directory")}, 1, false, codes.OK},
		"the class of a volume": {true, nil, []func(*csi.CreateVolumeRequest){with(volume.KeyDirectAssign, "true")}, 0, true, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			asked := 0
			s := newSite(t, func(c *Config) {
				c.DirectByClaim = func(_ context.Context, namespace, name string) (bool, error) {
					asked++

					require.Equal(t, "space claim", namespace+" "+name)

					return test.asks, test.err
				}
			})

			for range 2 {
				made, err := s.CreateVolume(t.Context(), createRequestOf("volume", test.change...))
				rpccode.Require(t, err, test.want)
				require.Equal(t, test.direct, made.GetVolume().GetVolumeContext()[volume.KeyDirectAssign] == "true", "want: %s", name)

				if err != nil {
					require.Empty(t, s.allRecords(), "want: nothing is made")

					return
				}
			}

			require.Equal(t, test.asked, asked, "want: the claim is asked once")
		})
	}
}

// TestCopiesInheritFromTheSource: a copy has what its source has, and no less.
func TestCopiesInheritFromTheSource(t *testing.T) {
	t.Parallel()

	source := volume.Parameters{Pool: "default", Backing: volume.BackingImage, FSType: "xfs", BlockSize: 4096}
	directory := volume.Parameters{Pool: "default", Backing: volume.BackingDirectory, FSType: "ext4", BlockSize: 4096}
	ranged := func(required, limit int64) *csi.CapacityRange {
		return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
	}

	type wanted = createRequest

	for name, test := range map[string]struct {
		from   origin
		change func(w *wanted)
		size   int64
		fsType string
		want   codes.Code
	}{
		"nothing named":             {origin{}, func(*wanted) {}, mib, "xfs", codes.OK},
		"its filesystem":            {origin{}, func(w *wanted) { w.fsNamed, w.parameters.FSType = true, "xfs" }, mib, "xfs", codes.OK},
		"another filesystem":        {origin{}, func(w *wanted) { w.fsNamed, w.parameters.FSType = true, "btrfs" }, 0, "", codes.InvalidArgument},
		"another, of raw bytes":     {origin{raw: true}, func(w *wanted) { w.fsNamed, w.parameters.FSType = true, "ext4" }, mib, "ext4", codes.OK},
		"another block size":        {origin{}, func(w *wanted) { w.parameters.BlockSize = 512 }, 0, "", codes.InvalidArgument},
		"another backing":           {origin{}, func(w *wanted) { w.parameters.Backing = volume.BackingDirectory }, 0, "", codes.InvalidArgument},
		"options of a filesystem":   {origin{}, func(w *wanted) { w.parameters.MkfsOptions = "-T x" }, 0, "", codes.InvalidArgument},
		"of a directory":            {origin{parameters: directory}, func(w *wanted) { w.parameters = directory }, mib, "ext4", codes.OK},
		"a directory, other blocks": {origin{parameters: directory}, func(w *wanted) { w.parameters = directory; w.parameters.BlockSize = 512 }, mib, "ext4", codes.OK},
		"larger":                    {origin{}, func(w *wanted) { w.asked = ranged(2*mib, 0) }, 2 * mib, "xfs", codes.OK},
		"as large":                  {origin{}, func(w *wanted) { w.asked = ranged(mib, 0) }, mib, "xfs", codes.OK},
		"a byte smaller":            {origin{}, func(w *wanted) { w.asked = ranged(mib-1, 0) }, 0, "", codes.OutOfRange},
		"up to its size":            {origin{}, func(w *wanted) { w.asked = ranged(0, mib) }, mib, "xfs", codes.OK},
		"up to a byte less":         {origin{}, func(w *wanted) { w.asked = ranged(0, mib-1) }, 0, "", codes.OutOfRange},
		"more than any volume has":  {origin{}, func(w *wanted) { w.asked = ranged(math.MaxInt64, 0) }, 0, "", codes.OutOfRange},
		"less or more":              {origin{}, func(w *wanted) { w.asked = ranged(1, 2*mib) }, mib, "xfs", codes.OK},
	} {
		if test.from.parameters == (volume.Parameters{}) {
			test.from.parameters = source
		}

		test.from.sizeBytes = mib
		given := &wanted{parameters: volume.Parameters{Backing: volume.BackingImage, FSType: "ext4", BlockSize: 4096}}
		test.change(given)

		parameters, size, err := (&parser{}).inherit(given, given.parameters, test.from)
		rpccode.Require(t, err, test.want, "%s", name)

		if test.want == codes.OK {
			require.Equal(t, test.size, size, name)
			require.Equal(t, test.fsType, parameters.FSType, name)
		}
	}

	for growing, want := range map[[2]int64]bool{{1, 1}: false, {2, 1}: true, {1, 2}: false} {
		mounted := &wanted{capabilities: []volume.Capability{{Block: true}, {}}}
		raw := &wanted{capabilities: []volume.Capability{{Block: true}}}
		require.Equal(t, want, mounted.growsCopy(growing[1], growing[0]), "want: %d of %d bytes", growing[0], growing[1])
		require.False(t, raw.growsCopy(growing[1], growing[0]), "want: the driver leaves the filesystem of a raw copy alone")
	}
}

// TestFilesystemsThatCannotGrowAreRefused: before a larger copy is made, or an expansion. What is in raw
// volumes does not matter.
func TestFilesystemsThatCannotGrowAreRefused(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	block := func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{blockCapability()} }
	larger := func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 8 * mib }
	id, raw := s.create("volume"), s.create("raw", block)

	for _, each := range []string{id, raw} {
		image, err := os.OpenFile(s.imagePath(each), os.O_WRONLY, 0)
		require.NoError(t, err)

		// The superblock of an ext4 has nothing but its magic number.
		_, err = image.WriteAt([]byte{0x53, 0xef}, 1080)
		require.NoError(t, errors.Join(err, image.Close()))
	}

	snapshotID := s.snapshot("snapshot", id)
	records := s.allRecords()

	for _, of := range []func(*csi.CreateVolumeRequest){ofVolume(id), ofSnapshot(snapshotID)} {
		_, err := s.CreateVolume(t.Context(), createRequestOf("copy", of, larger))
		require.ErrorIs(t, err, filesystem.ErrNoSuperblock)
		require.Equal(t, records, s.allRecords(), "want: nothing is recorded")
	}

	require.ErrorIs(t, s.expand(t.Context(), id, 8*mib), filesystem.ErrNoSuperblock)
	require.NoError(t, s.expand(t.Context(), raw, 8*mib))
	s.create("as large", ofVolume(id))
	s.create("raw copy", ofVolume(raw), block, func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 16 * mib })
	s.requireSound()
}
