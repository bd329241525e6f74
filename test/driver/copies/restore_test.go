package copies_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/internal/driver"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
	"github.com/touchstone-csi/touchstone/test/testpool"
)

// TestCopiesHaveTheSourcesData: a volume of each kind is snapshotted, in use where its pool allows
// that, changed and cloned, and every copy has what it was made of, while all of them are in use on
// one node and when the sources are gone.
func TestCopiesHaveTheSourcesData(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for sort, options := range copyPools() {
		for name, request := range copyKinds() {
			t.Run(sort+" "+name, func(t *testing.T) {
				t.Parallel()
				copyAndCompare(t, harness.Start(t, options(t)), request, sort == "reflink" && name != "directory" || request.GetVolumeCapabilities()[0].GetMount().GetFsType() != "")
			})
		}
	}
}

func copyAndCompare(t *testing.T, d *harness.Driver, request *csi.CreateVolumeRequest, inUse bool) {
	t.Helper()

	source := harness.NewVolume(t, d, proto.CloneOf(request))
	harness.BringUp(t, d, source)

	first := fillPayload(t, source)
	snapshot := snapshotWhile(t, d, source, "s", inUse)
	second := fillPayload(t, source)

	if source.Capability.GetBlock() != nil {
		// Nothing of it is in a cache that only a freeze would write.
		require.Equal(t, second, payload(t, source))
	}

	if !inUse {
		harness.TakeDown(t, d, source)
	}

	size := request.GetCapacityRange().GetRequiredBytes()
	clone := copyOf(t, d, request, "clone", harness.FromVolume(source.VolumeID), nil)
	same := copyOf(t, d, request, "same", harness.FromSnapshot(snapshot.GetSnapshotId()), nil)
	larger := copyOf(t, d, request, "larger", harness.FromSnapshot(snapshot.GetSnapshotId()), harness.RequiredBytes(size+64*harness.MiB))

	require.Equal(t, size, harness.CapacityOf(t, d, same.VolumeID), "want: the copy has the size of its source")
	require.Equal(t, size+64*harness.MiB, harness.CapacityOf(t, d, larger.VolumeID), "want: the copy has the larger size")
	harness.TakeDown(t, d, source)
	harness.DeleteVolume(t, d, source.VolumeID)

	for _, copied := range []*csiclient.Publication{clone, same, larger} {
		harness.BringUp(t, d, copied)
	}

	require.Equal(t, second, payload(t, clone))
	require.Equal(t, first, payload(t, same))
	require.Equal(t, first, payload(t, larger))
	requireLarger(t, d, larger, same)
	conformance.Shows(t, "NodePublishVolume", "of a volume larger than its source", "has its own size and the source's bytes")

	// They share nothing that one could change for the other.
	third := fillPayload(t, same)

	for _, copied := range []*csiclient.Publication{clone, same, larger} {
		harness.TakeDown(t, d, copied)
	}

	last := copyOf(t, d, request, "last", harness.FromSnapshot(snapshot.GetSnapshotId()), nil)
	harness.BringUp(t, d, last)
	require.Equal(t, first, payload(t, last))
	require.NotEqual(t, first, third, "want: the content has changed in the meantime")

	listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: source.VolumeID})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 1, "the snapshot of the volume that is deleted")
	conformance.Shows(t, "DeleteVolume", "with a snapshot", "the snapshot is listed and restored")
	harness.TakeDown(t, d, last)

	deleteSnapshot(t, d, snapshot.GetSnapshotId())

	for _, copied := range []*csiclient.Publication{clone, same, larger, last} {
		harness.DeleteVolume(t, d, copied.VolumeID)
	}

	for _, room := range []string{"images", "directories", "snapshots", "scratch", "attributes"} {
		left, err := os.ReadDir(filepath.Join(d.Pool(), room))
		require.NoError(t, err)
		require.Empty(t, left, room)
	}
}

// snapshotWhile makes a snapshot of a published volume: as it is, or after the
// driver has refused that and it is no longer used.
func snapshotWhile(t *testing.T, d *harness.Driver, source *csiclient.Publication, name string, inUse bool) *csi.Snapshot {
	t.Helper()

	request := &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source.VolumeID}
	if !inUse {
		_, err := d.CreateSnapshot(t.Context(), request)
		harness.RequireCode(t, err, codes.FailedPrecondition, source.VolumeID, "consistency: none")
		harness.TakeDown(t, d, source)
	}

	made, err := d.CreateSnapshotAndWait(t.Context(), request)
	require.NoError(t, err)

	if !inUse {
		harness.BringUp(t, d, source)
	}

	return made.GetSnapshot()
}

// requireLarger requires that a published volume has the size that it has in the state, and so more than
// the other.
func requireLarger(t *testing.T, d *harness.Driver, larger, same *csiclient.Publication) {
	t.Helper()

	total := func(claim *csiclient.Publication) int64 {
		answer, err := d.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: claim.VolumeID, VolumePath: claim.TargetPath})
		require.NoError(t, err)

		return answer.GetUsage()[0].GetTotal()
	}

	switch {
	case larger.Capability.GetBlock() != nil:
		device, err := os.Open(larger.TargetPath)
		require.NoError(t, err)

		bytes, err := device.Seek(0, io.SeekEnd)
		require.NoError(t, errors.Join(err, device.Close()))
		require.Equal(t, harness.CapacityOf(t, d, larger.VolumeID), bytes, "bytes of the device")
		conformance.Shows(t, "NodePublishVolume", "a block volume", "has the size of capacity_bytes")
	case larger.VolumeContext["backing"] != "directory":
		require.Greater(t, total(larger), total(same), "bytes of the filesystem")
	}
}

func deleteSnapshot(t *testing.T, d *harness.Driver, id string) {
	t.Helper()

	_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	require.NoError(t, err)
}

// snapshottedBlock makes a raw block volume that was never used, and a snapshot of
// it.
func snapshottedBlock(t *testing.T, d *harness.Driver) (id, snapshotID string) {
	t.Helper()

	claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
	})
	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{
		Name: "of " + claim.VolumeID, SourceVolumeId: claim.VolumeID,
	})
	require.NoError(t, err)

	return claim.VolumeID, made.GetSnapshot().GetSnapshotId()
}

// TestRequestsWithASourceAreValidated: they ask for volumes of a 64 MiB source with a filesystem,
// by all names that a source can have.
func TestRequestsWithASourceAreValidated(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	source := harness.NewVolume(t, d, harness.MountRequest("btrfs", 256*harness.MiB))
	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: source.VolumeID})
	require.NoError(t, err)

	_, rawSnapshot := snapshottedBlock(t, d)

	type test struct {
		change func(*csi.CreateVolumeRequest)
		want   codes.Code
		words  []string
	}

	of := func(source *csi.VolumeContentSource) func(*csi.CreateVolumeRequest) {
		return func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = source }
	}
	ranged := func(capacity *csi.CapacityRange) func(*csi.CreateVolumeRequest) {
		return func(r *csi.CreateVolumeRequest) { r.CapacityRange = capacity }
	}

	tests := map[string]test{
		"nothing":                {of(&csi.VolumeContentSource{}), codes.InvalidArgument, []string{"volume_content_source"}},
		"no id":                  {of(harness.FromSnapshot("")), codes.InvalidArgument, []string{"id is missing"}},
		"no volume id":           {of(harness.FromVolume("")), codes.InvalidArgument, []string{"id is missing"}},
		"a hostile id":           {of(harness.FromSnapshot("../../etc")), codes.InvalidArgument, nil},
		"a hostile volume":       {of(harness.FromVolume("a/b")), codes.InvalidArgument, nil},
		"an unknown snapshot":    {of(harness.FromSnapshot("none")), codes.NotFound, []string{"snapshot none"}},
		"an unknown volume":      {of(harness.FromVolume("none")), codes.NotFound, []string{"volume none"}},
		"a volume as a snapshot": {of(harness.FromSnapshot(source.VolumeID)), codes.NotFound, nil},
		"raw as btrfs":           {of(harness.FromSnapshot(rawSnapshot)), codes.OK, nil},
		"raw as xfs": {func(r *csi.CreateVolumeRequest) {
			harness.AskFor(csiclient.MountCapability(harness.Writer, "xfs"))(r)
			of(harness.FromSnapshot(rawSnapshot))(r)
		}, codes.OK, nil},
	}

	for name, from := range map[string]*csi.VolumeContentSource{
		"volume": harness.FromVolume(source.VolumeID), "snapshot": harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()),
	} {
		change := func(how func(*csi.CreateVolumeRequest)) func(*csi.CreateVolumeRequest) {
			return func(r *csi.CreateVolumeRequest) { of(from)(r); how(r) }
		}

		for what, each := range map[string]test{
			"no size":             {ranged(nil), codes.OK, nil},
			"less required":       {ranged(harness.RequiredBytes(64 * harness.MiB)), codes.OutOfRange, []string{"required_bytes"}},
			"a range around it":   {ranged(harness.Between(64*harness.MiB, 300*harness.MiB)), codes.OK, nil},
			"the same":            {ranged(harness.Between(256*harness.MiB, 256*harness.MiB)), codes.OK, nil},
			"larger":              {ranged(harness.Between(300*harness.MiB, 300*harness.MiB)), codes.OK, nil},
			"a smaller limit":     {ranged(harness.UpTo(255 * harness.MiB)), codes.OutOfRange, []string{"limit_bytes"}},
			"exactly smaller":     {ranged(harness.Between(64*harness.MiB, 64*harness.MiB)), codes.OutOfRange, []string{"limit_bytes"}},
			"a range upside down": {ranged(harness.Between(300*harness.MiB, 299*harness.MiB)), codes.InvalidArgument, nil},
			"a negative range":    {ranged(harness.RequiredBytes(-1)), codes.InvalidArgument, nil},
			"the same filesystem": {harness.AskFor(csiclient.MountCapability(harness.Writer, "btrfs")), codes.OK, nil},
			"no filesystem named": {harness.AskFor(csiclient.MountCapability(harness.Writer, "")), codes.OK, nil},
			"raw block":           {harness.AskFor(csiclient.BlockCapability(harness.Writer)), codes.OK, nil},
			"thick":               {harness.WithParameter("provisioning", "thick"), codes.OK, nil},
			"another filesystem":  {harness.AskFor(csiclient.MountCapability(harness.Writer, "ext4")), codes.InvalidArgument, []string{"btrfs", "ext4"}},
			"another in parameters": {func(r *csi.CreateVolumeRequest) {
				harness.AskFor(csiclient.MountCapability(harness.Writer, ""))(r)
				harness.WithParameter("csi.storage.k8s.io/fstype", "xfs")(r)
			}, codes.InvalidArgument, []string{"btrfs", "xfs"}},
			"another backing": {func(r *csi.CreateVolumeRequest) {
				harness.AskFor(csiclient.MountCapability(harness.Writer, ""))(r)
				harness.WithParameter("backing", "directory")(r)
			}, codes.InvalidArgument, []string{"backing"}},
			"another blockSize":       {harness.WithParameter("blockSize", "512"), codes.InvalidArgument, []string{"blockSize"}},
			"an unreachable topology": {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = harness.Topology("rack", "7") }, codes.ResourceExhausted, nil},
			"more than there can be":  {ranged(harness.RequiredBytes(1 << 60)), codes.ResourceExhausted, nil},
		} {
			tests[what+" of a "+name] = test{change(each.change), each.want, each.words}
		}
	}

	for name, each := range tests {
		t.Run(name, func(t *testing.T) {
			request := harness.MountRequest("btrfs", 256*harness.MiB)
			request.Name = name
			each.change(request)

			before := harness.ListAll(t, d)
			made, err := d.CreateVolume(t.Context(), request)
			harness.RequireCode(t, err, each.want, each.words...)

			if err != nil {
				require.Equal(t, before, harness.ListAll(t, d))

				return
			}

			require.GreaterOrEqual(t, made.GetVolume().GetCapacityBytes(), int64(64*harness.MiB), "want: the copy is as large as its source")
			harness.DeleteVolume(t, d, made.GetVolume().GetVolumeId())
		})
	}
}

// TestARestoreIsIdempotent retries it as it was and with other arguments, also
// when its source is gone.
func TestARestoreIsIdempotent(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	id, snapshotID := snapshottedBlock(t, d)
	_, otherID := snapshottedBlock(t, harness.Start(t))
	request := &csi.CreateVolumeRequest{
		Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)},
		VolumeContentSource: harness.FromSnapshot(snapshotID),
	}

	made, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)

	again := func(source *csi.VolumeContentSource) error {
		changed := proto.CloneOf(request)
		changed.VolumeContentSource = source

		answer, err := d.CreateVolume(t.Context(), changed)
		if err == nil {
			require.True(t, proto.Equal(made, answer), "got %v, want %v", answer, made)
		}

		return err
	}

	check := func() {
		require.NoError(t, again(harness.FromSnapshot(snapshotID)))
		harness.RequireCode(t, again(nil), codes.AlreadyExists, made.GetVolume().GetVolumeId(), "nothing")
		harness.RequireCode(t, again(harness.FromVolume(id)), codes.AlreadyExists, id)
		harness.RequireCode(t, again(harness.FromSnapshot(otherID)), codes.AlreadyExists, otherID)
	}

	check()

	// An empty volume is no restored one.
	_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: request.GetVolumeCapabilities(), VolumeContentSource: harness.FromSnapshot(snapshotID),
	})
	harness.RequireCode(t, err, codes.AlreadyExists)

	deleteSnapshot(t, d, snapshotID)
	harness.DeleteVolume(t, d, id)
	check()
	d.Restart(t)
	check()

	listed, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 1, "want: the retries make one volume")
	require.True(t, proto.Equal(made.GetVolume(), listed.GetEntries()[0].GetVolume()), "%v\n%v", made, listed)

	// The CO hands the context back.
	validated, err := d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: made.GetVolume().GetVolumeId(), VolumeContext: made.GetVolume().GetVolumeContext(),
		VolumeCapabilities: request.GetVolumeCapabilities(),
	})
	require.NoError(t, err)
	require.NotNil(t, validated.GetConfirmed(), "ValidateVolumeCapabilities refuses what the volume has: %s", validated.GetMessage())

	others := made.GetVolume().GetVolumeContext()
	delete(others, keyCopy)

	validated, err = d.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: made.GetVolume().GetVolumeId(), VolumeContext: others, VolumeCapabilities: request.GetVolumeCapabilities(),
	})
	require.NoError(t, err)
	require.Nil(t, validated.GetConfirmed(), "ValidateVolumeCapabilities confirms what the volume has not: %s", validated.GetMessage())
}

// TestSourcesNeedTheirCapability asks for copies of a driver that does not
// advertise them.
func TestSourcesNeedTheirCapability(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	id, snapshotID := snapshottedBlock(t, d)

	for name, source := range map[string]*csi.VolumeContentSource{
		"CREATE_DELETE_SNAPSHOT": harness.FromSnapshot(snapshotID), "CLONE_VOLUME": harness.FromVolume(id),
	} {
		d.Restart(t, func(c *driver.Config) { c.Disabled = []string{name} })

		_, err := d.Capabilities(t.Context())
		require.NoError(t, err)

		_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, VolumeContentSource: source,
		})
		harness.RequireCode(t, err, codes.InvalidArgument, name)
	}
}

// TestCopiesAreMadeAcrossPools: restores and clones.
func TestCopiesAreMadeAcrossPools(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	instant := testpool.Reflink(t, 2*harness.GiB)
	d := harness.Start(t, func(c *driver.Config) { c.Pools["instant"] = instant })

	for from, to := range map[string]string{"default": "instant", "instant": "default"} {
		t.Run(from, func(t *testing.T) {
			request := harness.MountRequest("ext4", 64*harness.MiB)
			request.Parameters = map[string]string{"pool": from}
			source := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, source)

			want := fillPayload(t, source)

			made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: from, SourceVolumeId: source.VolumeID})
			require.NoError(t, err)

			like := proto.CloneOf(request)
			like.Parameters = map[string]string{"pool": to}

			for _, copied := range []*csiclient.Publication{
				copyOf(t, d, like, "restore "+from, harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()), nil),
				copyOf(t, d, like, "clone "+from, harness.FromVolume(source.VolumeID), nil),
			} {
				harness.BringUp(t, d, copied)
				require.Equal(t, want, payload(t, copied))
				require.FileExists(t, filepath.Join(d.Config.Pools[to], "images", copied.VolumeID+".img"))
				harness.TakeDown(t, d, copied)
			}
		})
	}
}

// TestCopiesAreThin shows that a restore takes no space for what it shares, or
// for holes.
func TestCopiesAreThin(t *testing.T) {
	t.Parallel()

	for sort, options := range copyPools() {
		t.Run(sort, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, options(t))
			claim := harness.NewVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(harness.Writer)}, CapacityRange: harness.RequiredBytes(512 * harness.MiB),
			})
			require.NoError(t, os.WriteFile(harness.ImageOf(d, claim.VolumeID), harness.Random(t, harness.MiB), 0))
			require.NoError(t, os.Truncate(harness.ImageOf(d, claim.VolumeID), 512*harness.MiB))

			clone := copyOf(t, d, &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{claim.Capability}},
				"clone", harness.FromVolume(claim.VolumeID), nil)
			require.LessOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, clone.VolumeID)), int64(2*harness.MiB), "want: a thin copy allocates nothing of its own")

			thick := copyOf(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{claim.Capability}, Parameters: map[string]string{"provisioning": "thick"},
			}, "thick", harness.FromVolume(claim.VolumeID), nil)
			require.GreaterOrEqual(t, harness.AllocatedBytes(t, harness.ImageOf(d, thick.VolumeID)), int64(512*harness.MiB), "want: a thick copy has all of its blocks")
			require.Equal(t, harness.ImageSum(t, harness.ImageOf(d, claim.VolumeID)), harness.ImageSum(t, harness.ImageOf(d, thick.VolumeID)))
		})
	}
}

// TestDirectoryCopiesKeepAllAttributes that a file can have.
func TestDirectoryCopiesKeepAllAttributes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	source := harness.NewVolume(t, d, copyKinds()["directory"])
	harness.BringUp(t, d, source)

	place := source.TargetPath
	require.NoError(t, os.Mkdir(filepath.Join(place, "inner"), 0o710))
	harness.WriteFile(t, filepath.Join(place, "inner", "file"), "text")
	require.NoError(t, os.Chown(filepath.Join(place, "inner", "file"), 1000, 2000))
	require.NoError(t, os.Link(filepath.Join(place, "inner", "file"), filepath.Join(place, "linked")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(place, "symlink")))
	require.NoError(t, unix.Mkfifo(filepath.Join(place, "pipe"), 0o640))
	require.NoError(t, unix.Setxattr(filepath.Join(place, "linked"), "user.color", []byte("blue"), 0))

	want := harness.Tree(t, place)

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: source.VolumeID, Parameters: map[string]string{"consistency": "none"},
	})
	require.NoError(t, err, "nothing is asked of its consistency")

	harness.TakeDown(t, d, source)
	harness.DeleteVolume(t, d, source.VolumeID)

	copied := copyOf(t, d, copyKinds()["directory"], "copy", harness.FromSnapshot(made.GetSnapshot().GetSnapshotId()), nil)
	harness.BringUp(t, d, copied)

	got := map[string]string{}
	for path, reported := range harness.Tree(t, copied.TargetPath) {
		got[strings.Replace(path, copied.TargetPath, place, 1)] = reported
	}

	require.Equal(t, want, got)

	var linked, file unix.Stat_t

	require.NoError(t, unix.Stat(filepath.Join(copied.TargetPath, "linked"), &linked))
	require.NoError(t, unix.Stat(filepath.Join(copied.TargetPath, "inner", "file"), &file))
	require.Equal(t, linked.Ino, file.Ino, "want: the hard links are one file")
	require.Equal(t, []uint32{1000, 2000}, []uint32{file.Uid, file.Gid})

	color := make([]byte, 8)
	length, err := unix.Getxattr(filepath.Join(copied.TargetPath, "linked"), "user.color", color)
	require.NoError(t, err)
	require.Equal(t, "blue", string(color[:length]))
}
