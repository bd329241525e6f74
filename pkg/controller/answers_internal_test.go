package controller

import (
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/objects"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const zoneKey = "zone"

// inZone has the controller be in a zone.
func inZone(c *Config) { c.Segments = map[string]string{zoneKey: "a"} }

func capabilityWith(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
	}
}

func TestOnlyWhatAVolumeSupportsIsConfirmed(t *testing.T) {
	t.Parallel()

	const (
		single  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		writers = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	)

	s := newSite(t)
	id := s.create("volume", withMutable, func(r *csi.CreateVolumeRequest) {
		r.VolumeCapabilities = []*csi.VolumeCapability{capabilityWith(single, "xfs")}
		r.CapacityRange.RequiredBytes = 512 * mib
	})
	v, err := s.catalog.FindVolume(id)
	require.NoError(t, err)

	type request = csi.ValidateVolumeCapabilitiesRequest

	for name, test := range map[string]struct {
		change    func(r *request)
		confirmed bool
		want      codes.Code
	}{
		"its filesystem":       {func(*request) {}, true, codes.OK},
		"no capability":        {func(r *request) { r.VolumeCapabilities = nil }, false, codes.InvalidArgument},
		"no volume":            {func(r *request) { r.VolumeId = newID(t) }, false, codes.NotFound},
		"an incomplete one":    {func(r *request) { r.VolumeCapabilities[0].AccessType = nil }, false, codes.InvalidArgument},
		"another filesystem":   {func(r *request) { r.VolumeCapabilities[0].GetMount().FsType = "ext4" }, false, codes.OK},
		"several nodes":        {func(r *request) { r.VolumeCapabilities[0].AccessMode.Mode = writers }, false, codes.OK},
		"a flag that moves":    {func(r *request) { r.VolumeCapabilities[0].GetMount().MountFlags = []string{"bind"} }, false, codes.OK},
		"its parameters":       {func(r *request) { r.Parameters = map[string]string{"backing": "image"} }, true, codes.OK},
		"other parameters":     {func(r *request) { r.Parameters = map[string]string{"blockSize": "512"} }, false, codes.OK},
		"another default":      {func(r *request) { r.Parameters = map[string]string{volume.KeyFSType: "ext4"} }, false, codes.OK},
		"unknown parameters":   {func(r *request) { r.Parameters = map[string]string{"colour": "red"} }, false, codes.OK},
		"its context":          {func(r *request) { r.VolumeContext = v.Context() }, true, codes.OK},
		"another context":      {func(r *request) { r.VolumeContext = map[string]string{"pool": "fast"} }, false, codes.OK},
		"its limits":           {func(r *request) { r.MutableParameters = map[string]string{"readIOPS": "100"} }, true, codes.OK},
		"other limits":         {func(r *request) { r.MutableParameters = map[string]string{"readIOPS": "1"} }, false, codes.OK},
		"limits without form":  {func(r *request) { r.MutableParameters = map[string]string{"readIOPS": "x"} }, false, codes.OK},
		"a second, other one":  {func(r *request) { r.VolumeCapabilities = append(r.VolumeCapabilities, blockCapability()) }, true, codes.OK},
		"a second, not usable": {func(r *request) { r.VolumeCapabilities = append(r.VolumeCapabilities, capabilityWith(writers, "")) }, false, codes.OK},
	} {
		given := &request{VolumeId: id, VolumeCapabilities: []*csi.VolumeCapability{capabilityWith(single, "xfs")}}
		test.change(given)

		answer, err := s.ValidateVolumeCapabilities(t.Context(), given)
		rpccode.Require(t, err, test.want, "%s", name)
		require.Equal(t, test.confirmed, answer.GetConfirmed() != nil, "want: %s, %v", name, answer)
		require.Equal(t, test.want == codes.OK && !test.confirmed, answer.GetMessage() != "", "want: %s has a message", name)

		if test.confirmed {
			require.Equal(t, given.GetParameters(), answer.GetConfirmed().GetParameters())
			require.Equal(t, given.GetVolumeContext(), answer.GetConfirmed().GetVolumeContext())
			require.Equal(t, given.GetMutableParameters(), answer.GetConfirmed().GetMutableParameters())
			require.Len(t, answer.GetConfirmed().GetVolumeCapabilities(), len(given.GetVolumeCapabilities()), "want: they are repeated")
		}
	}
}

func TestEachCapacityRangeHasItsSize(t *testing.T) {
	t.Parallel()

	ranged := func(required, limit int64) *csi.CapacityRange {
		return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
	}

	for name, test := range map[string]struct {
		asked             *csi.CapacityRange
		smallest, largest int64
		want              int64
		code              codes.Code
	}{
		"none":                      {nil, RoundBytes, 0, DefaultBytes, codes.OK},
		"none, and a maximum":       {nil, RoundBytes, mib + 1, mib, codes.OK},
		"none, and a large maximum": {nil, RoundBytes, DefaultBytes * 2, DefaultBytes, codes.OK},
		"one byte":                  {ranged(1, 0), RoundBytes, 0, RoundBytes, codes.OK},
		"one block":                 {ranged(RoundBytes, 0), RoundBytes, 0, RoundBytes, codes.OK},
		"a byte more":               {ranged(RoundBytes+1, 0), RoundBytes, 0, 2 * RoundBytes, codes.OK},
		"less than the smallest":    {ranged(1, 0), mib, 0, mib, codes.OK},
		"a limit only":              {ranged(0, 2*RoundBytes+1), RoundBytes, 0, 2 * RoundBytes, codes.OK},
		"a large limit only":        {ranged(0, DefaultBytes*2), RoundBytes, 0, DefaultBytes, codes.OK},
		"a limit above the maximum": {ranged(0, DefaultBytes), RoundBytes, mib + 1, mib, codes.OK},
		"a limit below the maximum": {ranged(0, mib), RoundBytes, 2 * mib, mib, codes.OK},
		"exactly the limit":         {ranged(RoundBytes, RoundBytes), RoundBytes, 0, RoundBytes, codes.OK},
		"rounded above the limit":   {ranged(RoundBytes+1, RoundBytes+2), RoundBytes, 0, 0, codes.OutOfRange},
		"a limit below a block":     {ranged(0, RoundBytes-1), RoundBytes, 0, 0, codes.OutOfRange},
		"exactly the maximum":       {ranged(mib, 0), RoundBytes, mib, mib, codes.OK},
		"above the maximum":         {ranged(mib+1, 0), RoundBytes, mib, 0, codes.OutOfRange},
		"the largest number":        {ranged(math.MaxInt64, 0), RoundBytes, 0, 0, codes.OutOfRange},
		"the largest size":          {ranged(math.MaxInt64-RoundBytes, 0), RoundBytes, 0, math.MaxInt64 - RoundBytes + 1, codes.OK},
		"a byte above that":         {ranged(math.MaxInt64-RoundBytes+1, 0), RoundBytes, 0, 0, codes.OutOfRange},
		"negative":                  {ranged(-1, 0), RoundBytes, 0, 0, codes.InvalidArgument},
	} {
		s := &parser{config: Config{MaxVolumeBytes: test.largest}}

		got, err := s.sizeFor(test.asked, test.smallest)
		rpccode.Require(t, err, test.code, "%s", name)
		require.Equal(t, test.want, got, name)
	}
}

// TestMinimumBytes: the smallest volume of all capabilities.
func TestMinimumBytes(t *testing.T) {
	t.Parallel()

	image, directory := volume.Parameters{Backing: volume.BackingImage, FSType: "xfs"}, volume.Parameters{Backing: volume.BackingDirectory, FSType: "xfs"}
	block, plain, ext4 := volume.Capability{Block: true}, volume.Capability{}, volume.Capability{FSType: "ext4"}

	require.EqualValues(t, RoundBytes, minimumBytes(image, nil), "without a capability")
	require.EqualValues(t, RoundBytes, minimumBytes(image, []volume.Capability{block}), "block access")
	require.EqualValues(t, RoundBytes, minimumBytes(directory, []volume.Capability{plain}), "a directory")

	for _, each := range volume.FSTypes() {
		smallest := minimumBytes(image, []volume.Capability{{FSType: each}})
		require.Greater(t, smallest, int64(RoundBytes), "want: %s has a minimum", each)
		require.Zero(t, smallest%RoundBytes, "want: that of %s is a multiple of the block", each)
	}

	xfs := minimumBytes(image, []volume.Capability{plain})
	require.Equal(t, xfs, minimumBytes(image, []volume.Capability{block, plain, ext4}), "the largest minimum counts")
	require.Less(t, minimumBytes(image, []volume.Capability{ext4}), xfs, "want: the named filesystem counts")
	require.Equal(t, "xfs", fsTypeOf(image, plain))
	require.Equal(t, "ext4", fsTypeOf(image, ext4))
}

// TestGetCapacityIsWhatMayBeProvisioned of a pool, of which volumes, and from where.
func TestGetCapacityIsWhatMayBeProvisioned(t *testing.T) {
	t.Parallel()

	const limit = 64*mib + 1

	s := newSite(t, inZone, func(c *Config) {
		c.Admission.Capacities["default"], c.Admission.Capacities["fast"] = limit, 2*limit
		c.MaxVolumeBytes = 32*mib + 1
	})
	s.create("volume", with("backing", "directory"))

	multi := capabilityWith(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")

	for name, test := range map[string]struct {
		request *csi.GetCapacityRequest
		want    int64
		code    codes.Code
	}{
		"the default pool":    {&csi.GetCapacityRequest{}, 60 * mib, codes.OK},
		"another pool":        {&csi.GetCapacityRequest{Parameters: map[string]string{"pool": "fast"}}, 128 * mib, codes.OK},
		"thick":               {&csi.GetCapacityRequest{Parameters: map[string]string{"provisioning": "thick"}}, 60 * mib, codes.OK},
		"no pool":             {&csi.GetCapacityRequest{Parameters: map[string]string{"pool": "x"}}, 0, codes.InvalidArgument},
		"unknown parameter":   {&csi.GetCapacityRequest{Parameters: map[string]string{"colour": "red"}}, 0, codes.InvalidArgument},
		"this zone":           {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{zoneKey: "a"}}}, 60 * mib, codes.OK},
		"an empty topology":   {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}}, 60 * mib, codes.OK},
		"another zone":        {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{zoneKey: "b"}}}, 0, codes.OK},
		"a zone twice":        {&csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{"zone": "a", "Zone": "a"}}}, 0, codes.InvalidArgument},
		"a capability":        {&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{mountCapability()}}, 60 * mib, codes.OK},
		"an impossible one":   {&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{multi}}, 0, codes.OK},
		"an incomplete one":   {&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{{}}}, 0, codes.InvalidArgument},
		"two filesystems":     {&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{capabilityWith(1, "xfs"), capabilityWith(1, "ext4")}}, 0, codes.OK},
		"the same two times":  {&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{capabilityWith(1, "ext4"), mountCapability()}}, 60 * mib, codes.OK},
		"a filesystem, block": {&csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{capabilityWith(1, "xfs"), blockCapability()}}, 60 * mib, codes.OK},
	} {
		answer, err := s.GetCapacity(t.Context(), test.request)
		rpccode.Require(t, err, test.code, "%s", name)
		require.Equal(t, test.want, answer.GetAvailableCapacity(), name)

		if test.want > 0 {
			require.EqualValues(t, 32*mib, answer.GetMaximumVolumeSize().GetValue(), "%s: the largest volume", name)
			require.GreaterOrEqual(t, answer.GetMinimumVolumeSize().GetValue(), int64(RoundBytes), "want: %s has a smallest volume", name)
		}
	}

	s.config.MaxVolumeBytes = 0
	answer, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 60*mib, answer.GetMaximumVolumeSize().GetValue(), "want: a volume may have all of it")

	s.config.Admission.Capacities["default"] = 1 << 60

	for provisioning, all := range map[string]bool{"thin": true, "thick": false} {
		answer, err := s.GetCapacity(t.Context(), &csi.GetCapacityRequest{Parameters: map[string]string{"provisioning": provisioning}})
		require.NoError(t, err)
		require.Equal(t, all, answer.GetAvailableCapacity() == 1<<60-4*mib, "want: only a thick volume needs the bytes that are free")
	}

	s.closePool("default")

	_, err = s.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	rpccode.Require(t, err, codes.Unavailable)

	everywhere := newSite(t)

	_, err = everywhere.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{}})
	require.NoError(t, err, "want: an empty topology is none")

	_, err = everywhere.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: &csi.Topology{Segments: map[string]string{zoneKey: "a"}}})
	rpccode.Require(t, err, codes.InvalidArgument)
	everywhere.failPool("default")

	_, err = everywhere.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	rpccode.Require(t, err, codes.Unavailable)
}

func TestVolumesAndSnapshotsCountForTheirPool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	allocated := func(name string) int64 {
		var sum pool.Allocation

		require.NoError(t, s.catalog.AddAllocated(t.Context(), name, &sum))

		return sum.Bytes()
	}

	require.Zero(t, allocated("default"), "want: nothing is allocated")

	id, second := s.create("volume"), s.create("second")
	s.writeAll()
	require.EqualValues(t, 2*mib, allocated("default"), "want: what the volumes have allocated")

	snapshots := []string{s.snapshot("snapshot", id), s.snapshot("second", second)}
	require.EqualValues(t, 4*mib, allocated("default"), "want: the snapshots, too")
	require.Zero(t, allocated("fast"), "want: nothing is in the other pool")
	require.Equal(t, int64(8*mib)+s.allocatedBy(snapshots[0])+s.allocatedBy(snapshots[1]), s.catalog.ProvisionedBytes("default"),
		"want: all are provisioned")

	require.ErrorIs(t, s.catalog.AddAllocated(t.Context(), "x", &pool.Allocation{}), pool.ErrUnknown)

	_, err := s.catalog.Pool("x", "volume y")
	errtext.Require(t, err, `pool "x" is not configured (--pool)`)

	// Either of them fails the sum.
	require.NoError(t, s.remove(t.Context(), id))
	require.NoError(t, s.remove(t.Context(), second))
	s.flush()
	s.create("in the other", with("pool", "fast"))

	for _, name := range []string{"default", "fast"} {
		s.closePool(name)
		require.ErrorIs(t, s.catalog.AddAllocated(t.Context(), name, &pool.Allocation{}), fs.ErrClosed)
	}
}

// closePool closes a pool while it is served, as happens to the calls of one that fails.
func (s *site) closePool(name string) {
	s.t.Helper()

	p, err := s.catalog.Pool(name, "test")
	require.NoError(s.t, err)
	require.NoError(s.t, p.Close())
	s.t.Cleanup(func() { _ = s.config.Pools.Fail(name, errBroken) }) // it closes the pool again
}

func (s *site) allocatedBy(snapshotID string) int64 {
	found, _ := s.catalog.Snapshots.Get(snapshotID)

	return found.AllocatedBytes
}

// TestNamesAndContextsAreLimited: which characters and sizes the spec bans.
func TestNamesAndContextsAreLimited(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]bool{
		"pvc": true, "": false, "a\x00": false, "a\x7f": false, "a\u0085": false, "tab\there": true, "line\nbreak\r": true, "ü/..": true,
	} {
		require.Equal(t, want, checkName(name) == nil, "want: the name %q", name)
	}

	parameters := volume.Parameters{Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin}
	bytes := 0

	for key, value := range (&record.Volume{Properties: &record.Properties{Parameters: parameters}}).Context() {
		bytes += len(key) + len(value)
	}

	left := maxMapBytes - bytes + len("fs") // a volume without a capability is raw, and names no filesystem
	left -= len("fs") + len(volume.KeyMkfsOptions)
	parameters.MkfsOptions = strings.Repeat("x", left)
	require.NoError(t, checkContext(parameters, record.Source{}), "want: the limit itself is allowed")

	parameters.MkfsOptions += "x"
	rpccode.Require(t, rpc.Status(checkContext(parameters, record.Source{})), codes.InvalidArgument)
}

func TestNewObjectsAreWhereTheControllerIs(t *testing.T) {
	t.Parallel()

	s := newSite(t, inZone)
	inB := &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{zoneKey: "b"}}}}

	made, err := s.CreateVolume(t.Context(), createRequestOf("volume"))
	require.NoError(t, err)
	require.Equal(t, "a", made.GetVolume().GetAccessibleTopology()[0].GetSegments()[zoneKey])

	taken, err := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: made.GetVolume().GetVolumeId()})
	require.NoError(t, err)
	require.Equal(t, "a", taken.GetSnapshot().GetAccessibleTopology()[0].GetSegments()[zoneKey])

	_, err = s.CreateVolume(t.Context(), createRequestOf("other", func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = inB }))
	rpccode.Require(t, err, codes.ResourceExhausted)

	for name, want := range map[string]codes.Code{"other": codes.ResourceExhausted, "snapshot": codes.AlreadyExists} {
		_, err = s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
			Name: name, SourceVolumeId: made.GetVolume().GetVolumeId(), AccessibilityRequirements: inB,
		})
		rpccode.Require(t, err, want)
	}

	require.NoError(t, s.publish(t.Context(), made.GetVolume().GetVolumeId(), ownNode))

	s.restart(func(c *Config) { c.Segments = map[string]string{zoneKey: "b"} })

	_, err = s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "moved", SourceVolumeId: made.GetVolume().GetVolumeId(), AccessibilityRequirements: inB,
	})
	rpccode.Require(t, err, codes.ResourceExhausted, "want: a snapshot is where its volume is")

	_, err = s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "moved", SourceVolumeId: made.GetVolume().GetVolumeId(), AccessibilityRequirements: zone("a"),
	})
	rpccode.Require(t, err, codes.ResourceExhausted, "want: it is taken where the controller is")

	s.restart(inZone, without("TOPOLOGY"))

	again, err := s.CreateVolume(t.Context(), createRequestOf("volume"))
	require.NoError(t, err)
	require.Empty(t, again.GetVolume().GetAccessibleTopology(), "want: no topology without the capability")

	found, err := s.GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: taken.GetSnapshot().GetSnapshotId()})
	require.NoError(t, err)
	require.Empty(t, found.GetSnapshot().GetAccessibleTopology(), "want: no topology without the capability")

	v, err := s.catalog.FindVolume(made.GetVolume().GetVolumeId())
	require.NoError(t, err)
	require.Len(t, s.advertised(v).Attachments, 1, "want: the nodes are shown")
	require.NotEmpty(t, v.Segments, "want: the record is as it was")

	s.restart(without("LIST_VOLUMES_PUBLISHED_NODES"))

	v, err = s.catalog.FindVolume(v.ID)
	require.NoError(t, err)
	require.Empty(t, s.advertised(v).Attachments, "want: no nodes without the capability")
	require.NotEmpty(t, s.advertised(v).Segments, "want: the topology is shown")
	require.Len(t, v.Attachments, 1, "want: the record is as it was")
}

// TestUnknownMountsKeepAVolume: what cannot be resolved may have mounts. Nothing is mounted in an image, or in
// what is not there.
func TestUnknownMountsKeepAVolume(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	p, directory := s.served(), pool.Object{ID: s.create("directory", with("backing", "directory")), Backing: volume.BackingDirectory}

	snapshotID := s.snapshot("snapshot", directory.ID)

	require.NoError(t, objects.CheckMounts(p, directory))
	require.NoError(t, objects.CheckMounts(p, pool.Object{ID: directory.ID, Backing: volume.BackingImage}), "nothing is mounted in an image")
	require.NoError(t, os.Remove(p.ObjectPath(directory)))
	require.NoError(t, objects.CheckMounts(p, directory), "nothing is mounted in what is gone")

	// What is mounted below a path that cannot be resolved is unknown.
	require.NoError(t, os.Symlink(directory.ID, p.ObjectPath(directory)))
	errtext.Require(t, objects.CheckMounts(p, directory), "too many links")
	rpccode.Require(t, s.remove(t.Context(), directory.ID), codes.Internal)
	require.NoError(t, os.Remove(p.ObjectPath(directory)))

	taken, _ := s.catalog.Snapshots.Get(snapshotID)
	require.NoError(t, os.Remove(p.ObjectPath(taken.Object())))
	require.NoError(t, os.Symlink(taken.ID, p.ObjectPath(taken.Object())))
	errtext.Require(t, s.copies.Remove(t.Context(), nil, taken), "too many links")
	require.NoError(t, os.Remove(p.ObjectPath(taken.Object())))

	found, err := s.catalog.FindSnapshot(snapshotID)
	require.NoError(t, err, "want: it is not deleted")
	require.NoError(t, s.copies.Remove(t.Context(), nil, found))
	require.NoError(t, s.remove(t.Context(), directory.ID))
}

// TestAnAttachedImageIsKept: also if no node that is known uses its volume.
func TestAnAttachedImageIsKept(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("volume")
	image, err := os.Open(s.imagePath(id))
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(image.Fd()), unix.LOCK_SH))

	err = s.remove(t.Context(), id)
	rpccode.Require(t, err, codes.FailedPrecondition)
	errtext.Require(t, err, s.node.DescribeHolders(id))
	s.requireSound()

	require.NoError(t, s.publish(t.Context(), id, ownNode))
	errtext.Require(t, s.remove(t.Context(), id), "unpublish it there first")
	require.NoError(t, s.unpublish(t.Context(), id, ownNode))
	require.NoError(t, image.Close())
	require.NoError(t, s.remove(t.Context(), id))
	s.requireSound()
}

// TestAnExpansionMayFillThePool: it needs the bytes that are added, which are all that is left.
func TestAnExpansionMayFillThePool(t *testing.T) {
	t.Parallel()

	s := newSite(t)
	id := s.create("a")
	size := s.catalog.ProvisionedBytes("default")
	s.config.Admission.Capacities["default"] = 2 * size

	require.NoError(t, s.expand(t.Context(), id, 2*size), "want: the volume takes the rest of the pool")
	rpccode.Require(t, s.expand(t.Context(), id, 2*size+RoundBytes), codes.ResourceExhausted, "want: there is no more")
}

// TestEachVolumeIsListedWithItsSizeLimit, which volumes of one class need not share.
func TestEachVolumeIsListedWithItsSizeLimit(t *testing.T) {
	t.Parallel()

	s := newSite(t, monitored)

	for _, limit := range []volume.SizeLimit{"", volume.SizeLimitOf(false), volume.SizeLimitOf(true)} {
		_, err := s.catalog.UpdateVolume(t.Context(), s.create("limit "+string(limit), with("backing", "directory")),
			func(v *record.Volume) error {
				v.SizeLimit = limit

				return nil
			})
		require.NoError(t, err)
	}

	s.watch()

	listed, err := s.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)

	for _, each := range listed.GetEntries() {
		encoded, shown := wire(t, each.GetVolume()), &csi.Volume{}
		require.NoError(t, proto.Unmarshal([]byte(encoded), shown))

		got, err := s.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: shown.GetVolumeId()})
		require.NoError(t, err)
		require.Equal(t, got.GetVolume().GetVolumeContext(), shown.GetVolumeContext(), "want: both calls report the same")

		for _, other := range listed.GetEntries() {
			v, err := s.catalog.FindVolume(other.GetVolume().GetVolumeId())
			require.NoError(t, err)
			require.Equal(t, v.ID == shown.GetVolumeId(), v.HasContext(shown.GetVolumeContext()), "want: only its own size limit is confirmed")
		}
	}
}
