package driver_test

import (
	"context"
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/await"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const (
	gib = 1 << 30
	// payloadBytes is how much the tests of copies compare.
	payloadBytes = 8 * mib
	// many is how many extents a volume has that takes long to copy.
	many = 1 << 13
	// keyCopy is set in the volume_context of a copy.
	keyCopy = "copy"
)

// reflinking gives the driver a pool in which copies are instant.
func reflinking(t *testing.T) harness.Option {
	t.Helper()

	directory := harness.ReflinkPool(t, 8*gib)

	return func(c *driver.Config) { c.Pools = map[string]string{"default": directory} }
}

// copyPools are the two sorts of pools: one whose copies are instant, and one
// where the bytes have to be moved.
func copyPools() map[string]func(*testing.T) harness.Option {
	return map[string]func(*testing.T) harness.Option{
		"reflink": reflinking,
		"plain":   func(*testing.T) harness.Option { return func(*driver.Config) {} },
	}
}

// copyKinds are the sorts of volumes that differ for copies.
func copyKinds() map[string]*csi.CreateVolumeRequest {
	return map[string]*csi.CreateVolumeRequest{
		"ext4":  mountedAs("ext4", 64*mib),
		"xfs":   mountedAs("xfs", 300*mib),
		"btrfs": mountedAs("btrfs", 256*mib),
		"block": {
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, CapacityRange: required(64 * mib),
		},
		"directory": {
			Parameters:         directoryBacked(),
			VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "")}, CapacityRange: required(64 * mib),
		},
	}
}

// copyOf makes a volume like the request, of the source.
func copyOf(t *testing.T, d *harness.Driver, like *csi.CreateVolumeRequest, name string, source *csi.VolumeContentSource,
	capacity *csi.CapacityRange,
) *csiclient.Publication {
	t.Helper()

	request := proto.CloneOf(like)
	request.Name, request.VolumeContentSource, request.CapacityRange = name, source, capacity

	made, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.True(t, proto.Equal(source, made.GetVolume().GetContentSource()),
		"got %v, want %v", made.GetVolume().GetContentSource(), source)
	require.Equal(t, "true", made.GetVolume().GetVolumeContext()[keyCopy])

	again, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.True(t, proto.Equal(made, again), "%v\n%v", made, again)

	found, err := d.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: made.GetVolume().GetVolumeId()})
	require.NoError(t, err)
	require.True(t, proto.Equal(made.GetVolume(), found.GetVolume()), "got %v, want %v", found.GetVolume(), made.GetVolume())

	claim := d.Claim(t, made.GetVolume().GetVolumeId())
	claim.VolumeContext = made.GetVolume().GetVolumeContext()
	claim.Capability = request.GetVolumeCapabilities()[0]

	return claim
}

// fillPayload writes random bytes to where the volume is published, and returns
// their checksum. They need not be on the disk yet.
func fillPayload(t *testing.T, claim *csiclient.Publication) [sha256.Size]byte {
	t.Helper()

	data := random(t, payloadBytes)

	file, err := os.OpenFile(dataPath(claim), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	_, err = file.WriteAt(data, 0)
	require.NoError(t, err)
	require.NoError(t, file.Close())

	return sha256.Sum256(data)
}

func payload(t *testing.T, claim *csiclient.Publication) [sha256.Size]byte {
	t.Helper()

	file, err := os.Open(dataPath(claim))
	require.NoError(t, err)

	defer file.Close()

	data := make([]byte, payloadBytes)
	_, err = io.ReadFull(file, data)
	require.NoError(t, err)

	return sha256.Sum256(data)
}

// TestCopiesHoldTheBytes snapshots a volume of each kind, in use where its pool
// allows that, changes it, clones it, and finds in every copy what it was made
// of, while all of them are in use on one node and when the sources are gone.
func TestCopiesHoldTheBytes(t *testing.T) {
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

	source := newVolume(t, d, proto.CloneOf(request))
	bringUp(t, d, source)

	first := fillPayload(t, source)
	snapshot := snapshotWhile(t, d, source, "s", inUse)
	second := fillPayload(t, source)

	if source.Capability.GetBlock() != nil {
		// Nothing of it is in a cache that only a freeze would write.
		require.Equal(t, second, payload(t, source))
	}

	if !inUse {
		takeDown(t, d, source)
	}

	size := request.GetCapacityRange().GetRequiredBytes()
	clone := copyOf(t, d, request, "clone", ofVolume(source.VolumeID), nil)
	same := copyOf(t, d, request, "same", ofSnapshot(snapshot.GetSnapshotId()), nil)
	larger := copyOf(t, d, request, "larger", ofSnapshot(snapshot.GetSnapshotId()), required(size+64*mib))

	require.Equal(t, size, capacityOf(t, d, same.VolumeID))
	require.Equal(t, size+64*mib, capacityOf(t, d, larger.VolumeID))
	takeDown(t, d, source)
	deleteVolume(t, d, source.VolumeID)

	for _, copied := range []*csiclient.Publication{clone, same, larger} {
		bringUp(t, d, copied)
	}

	require.Equal(t, second, payload(t, clone))
	require.Equal(t, first, payload(t, same))
	require.Equal(t, first, payload(t, larger))

	// They share nothing that one could change for the other.
	third := fillPayload(t, same)

	for _, copied := range []*csiclient.Publication{clone, same, larger} {
		takeDown(t, d, copied)
	}

	last := copyOf(t, d, request, "last", ofSnapshot(snapshot.GetSnapshotId()), nil)
	bringUp(t, d, last)
	require.Equal(t, first, payload(t, last))
	require.NotEqual(t, first, third)
	takeDown(t, d, last)

	deleteSnapshot(t, d, snapshot.GetSnapshotId())

	for _, copied := range []*csiclient.Publication{clone, same, larger, last} {
		deleteVolume(t, d, copied.VolumeID)
	}

	for _, room := range []string{"images", "directories", "snapshots", "scratch", "attributes"} {
		left, err := os.ReadDir(filepath.Join(d.Pool(), room))
		require.NoError(t, err)
		require.Empty(t, left, room)
	}
}

// snapshotWhile makes a snapshot of a published volume: as it is, or after the
// driver has refused that and nobody uses it any more.
func snapshotWhile(t *testing.T, d *harness.Driver, source *csiclient.Publication, name string, inUse bool) *csi.Snapshot {
	t.Helper()

	request := &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source.VolumeID}
	if !inUse {
		_, err := d.CreateSnapshot(t.Context(), request)
		fails(t, err, codes.FailedPrecondition, source.VolumeID, "consistency: none")
		takeDown(t, d, source)
	}

	made, err := d.CreateSnapshotAndWait(t.Context(), request)
	require.NoError(t, err)

	if !inUse {
		bringUp(t, d, source)
	}

	return made.GetSnapshot()
}

func deleteSnapshot(t *testing.T, d *harness.Driver, id string) {
	t.Helper()

	_, err := d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: id})
	require.NoError(t, err)
}

// snapshottedBlock makes a raw block volume that nobody has used, and a snapshot of
// it.
func snapshottedBlock(t *testing.T, d *harness.Driver) (id, snapshotID string) {
	t.Helper()

	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})
	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{
		Name: "of " + claim.VolumeID, SourceVolumeId: claim.VolumeID,
	})
	require.NoError(t, err)

	return claim.VolumeID, made.GetSnapshot().GetSnapshotId()
}

// TestWhatCanBeMadeOfASource asks for volumes of a 64 MiB source with a
// filesystem, by all names that a source can have.
func TestWhatCanBeMadeOfASource(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	source := newVolume(t, d, mountedAs("btrfs", 256*mib))
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
		"no id":                  {of(ofSnapshot("")), codes.InvalidArgument, []string{"id is missing"}},
		"a hostile id":           {of(ofSnapshot("../../etc")), codes.InvalidArgument, nil},
		"a hostile volume":       {of(ofVolume("a/b")), codes.InvalidArgument, nil},
		"an unknown snapshot":    {of(ofSnapshot("none")), codes.NotFound, []string{"snapshot none"}},
		"an unknown volume":      {of(ofVolume("none")), codes.NotFound, []string{"volume none"}},
		"a volume as a snapshot": {of(ofSnapshot(source.VolumeID)), codes.NotFound, nil},
		"raw as btrfs":           {of(ofSnapshot(rawSnapshot)), codes.OK, nil},
		"raw as xfs": {func(r *csi.CreateVolumeRequest) {
			asking(csiclient.MountCapability(writer, "xfs"))(r)
			of(ofSnapshot(rawSnapshot))(r)
		}, codes.OK, nil},
	}

	for name, from := range map[string]*csi.VolumeContentSource{
		"volume": ofVolume(source.VolumeID), "snapshot": ofSnapshot(made.GetSnapshot().GetSnapshotId()),
	} {
		change := func(how func(*csi.CreateVolumeRequest)) func(*csi.CreateVolumeRequest) {
			return func(r *csi.CreateVolumeRequest) { of(from)(r); how(r) }
		}

		for what, each := range map[string]test{
			"no size":             {ranged(nil), codes.OK, nil},
			"less required":       {ranged(required(64 * mib)), codes.OutOfRange, []string{"required_bytes"}},
			"a range around it":   {ranged(between(64*mib, 300*mib)), codes.OK, nil},
			"the same":            {ranged(between(256*mib, 256*mib)), codes.OK, nil},
			"larger":              {ranged(between(300*mib, 300*mib)), codes.OK, nil},
			"a smaller limit":     {ranged(upTo(255 * mib)), codes.OutOfRange, []string{"limit_bytes"}},
			"exactly smaller":     {ranged(between(64*mib, 64*mib)), codes.OutOfRange, []string{"limit_bytes"}},
			"a range upside down": {ranged(between(300*mib, 299*mib)), codes.InvalidArgument, nil},
			"a negative range":    {ranged(required(-1)), codes.InvalidArgument, nil},
			"the same filesystem": {asking(csiclient.MountCapability(writer, "btrfs")), codes.OK, nil},
			"no filesystem named": {asking(csiclient.MountCapability(writer, "")), codes.OK, nil},
			"raw block":           {asking(csiclient.BlockCapability(writer)), codes.OK, nil},
			"thick":               {with("provisioning", "thick"), codes.OK, nil},
			"another filesystem":  {asking(csiclient.MountCapability(writer, "ext4")), codes.InvalidArgument, []string{"btrfs", "ext4"}},
			"another in parameters": {func(r *csi.CreateVolumeRequest) {
				asking(csiclient.MountCapability(writer, ""))(r)
				with("csi.storage.k8s.io/fstype", "xfs")(r)
			}, codes.InvalidArgument, []string{"btrfs", "xfs"}},
			"another backing": {func(r *csi.CreateVolumeRequest) {
				asking(csiclient.MountCapability(writer, ""))(r)
				with("backing", "directory")(r)
			}, codes.InvalidArgument, []string{"backing"}},
			"another blockSize":      {with("blockSize", "512"), codes.InvalidArgument, []string{"blockSize"}},
			"an unreachable place":   {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = topology("rack", "7") }, codes.ResourceExhausted, nil},
			"more than there can be": {ranged(required(1 << 60)), codes.ResourceExhausted, nil},
		} {
			tests[what+" of a "+name] = test{change(each.change), each.want, each.words}
		}
	}

	for name, each := range tests {
		t.Run(name, func(t *testing.T) {
			request := mountedAs("btrfs", 256*mib)
			request.Name = name
			each.change(request)

			before := listAll(t, d)
			made, err := d.CreateVolume(t.Context(), request)
			fails(t, err, each.want, each.words...)

			if err != nil {
				require.Equal(t, before, listAll(t, d))

				return
			}

			require.GreaterOrEqual(t, made.GetVolume().GetCapacityBytes(), int64(64*mib))
			deleteVolume(t, d, made.GetVolume().GetVolumeId())
		})
	}
}

// TestARestoreIsIdempotent retries it as it was and with other arguments, also
// when its source is gone.
func TestARestoreIsIdempotent(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	id, snapshotID := snapshottedBlock(t, d)
	_, otherID := snapshottedBlock(t, harness.Start(t))
	request := &csi.CreateVolumeRequest{
		Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
		VolumeContentSource: ofSnapshot(snapshotID),
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
		require.NoError(t, again(ofSnapshot(snapshotID)))
		fails(t, again(nil), codes.AlreadyExists, made.GetVolume().GetVolumeId(), "nothing")
		fails(t, again(ofVolume(id)), codes.AlreadyExists, id)
		fails(t, again(ofSnapshot(otherID)), codes.AlreadyExists, otherID)
	}

	check()

	// An empty volume is no restored one.
	_, err = d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "block", VolumeCapabilities: request.GetVolumeCapabilities(), VolumeContentSource: ofSnapshot(snapshotID),
	})
	fails(t, err, codes.AlreadyExists)

	deleteSnapshot(t, d, snapshotID)
	deleteVolume(t, d, id)
	check()
	d.Restart(t)
	check()

	listed, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Len(t, listed.GetEntries(), 1)
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
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	id, snapshotID := snapshottedBlock(t, d)

	for name, source := range map[string]*csi.VolumeContentSource{
		"CREATE_DELETE_SNAPSHOT": ofSnapshot(snapshotID), "CLONE_VOLUME": ofVolume(id),
	} {
		d.Restart(t, func(c *driver.Config) { c.Disabled = []string{name} })

		_, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: source,
		})
		fails(t, err, codes.InvalidArgument, name)
	}
}

// TestCopiesAcrossPools restores and clones into another pool.
func TestCopiesAcrossPools(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	instant := harness.ReflinkPool(t, 2*gib)
	d := harness.Start(t, func(c *driver.Config) { c.Pools["instant"] = instant })

	for from, to := range map[string]string{"default": "instant", "instant": "default"} {
		t.Run(from, func(t *testing.T) {
			request := mountedAs("ext4", 64*mib)
			request.Parameters = map[string]string{"pool": from}
			source := newVolume(t, d, request)
			bringUp(t, d, source)

			want := fillPayload(t, source)

			made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: from, SourceVolumeId: source.VolumeID})
			require.NoError(t, err)

			like := proto.CloneOf(request)
			like.Parameters = map[string]string{"pool": to}

			for _, copied := range []*csiclient.Publication{
				copyOf(t, d, like, "restore "+from, ofSnapshot(made.GetSnapshot().GetSnapshotId()), nil),
				copyOf(t, d, like, "clone "+from, ofVolume(source.VolumeID), nil),
			} {
				bringUp(t, d, copied)
				require.Equal(t, want, payload(t, copied))
				require.FileExists(t, filepath.Join(d.Config.Pools[to], "images", copied.VolumeID+".img"))
				takeDown(t, d, copied)
			}
		})
	}
}

// sluggish makes a raw block volume that takes long to copy where blocks can't be
// shared: it consists of very many pieces.
func sluggish(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return inPieces(t, d, name, many)
}

// inPieces makes a raw block volume that consists of so many pieces.
func inPieces(t *testing.T, d *harness.Driver, name string, count int64) string {
	t.Helper()

	const piece = 4096

	claim := newVolume(t, d, &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, CapacityRange: required(2 * piece * count),
	})

	image, err := os.OpenFile(imageOf(d, claim.VolumeID), os.O_WRONLY, 0)
	require.NoError(t, err)

	data := random(t, piece)

	for at := range count {
		_, err := image.WriteAt(data, 2*piece*at)
		require.NoError(t, err)
	}

	require.NoError(t, image.Sync())
	require.NoError(t, image.Close())

	return claim.VolumeID
}

// stalling has the driver's pool where whoever reads a file can be made to wait, so
// that a copy lasts as long as a test needs. No blocks are shared there.
func stalling(t *testing.T) (*faults.Directory, harness.Option) {
	t.Helper()

	served := faults.Serve(t)

	return served, poolAt("default", filepath.Join(served.Path, "pool"))
}

// spaceOfItsOwn has nobody else take or leave space in the pool that is served.
func spaceOfItsOwn(t *testing.T, served *faults.Directory) {
	t.Helper()

	place := filepath.Join(served.Backing, "pool")
	require.NoError(t, os.Mkdir(place, 0o700))
	require.NoError(t, unix.Mount(harness.PlainPool(t, gib), place, "", unix.MS_BIND, ""))
	// Whoever serves it goes later.
	t.Cleanup(func() { require.NoError(t, unix.Unmount(place, unix.MNT_DETACH)) })
}

// stall has whoever copies the image wait from now on; copying returns once
// somebody does.
func stall(t *testing.T, served *faults.Directory, room, id string) (copying func()) {
	t.Helper()
	served.Inject(t, faults.Fault{Name: filepath.Join("pool", room, id+".img"), Ops: faults.Reads, Hang: true})

	return func() {
		t.Helper()
		require.Eventually(t, func() bool { return served.Met(t) > 0 }, time.Minute, time.Millisecond)
	}
}

// oneBlock makes a raw block volume that has a block to copy.
func oneBlock(t *testing.T, d *harness.Driver, name string) string {
	t.Helper()

	return inPieces(t, d, name, 1)
}

// TestWhatIsReadIsNotDeleted deletes a snapshot, and a volume, while it is
// copied.
func TestWhatIsReadIsNotDeleted(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served, there := stalling(t)
	d := harness.Start(t, there)
	id := oneBlock(t, d, "source")
	want := sumOf(t, imageOf(d, id))

	made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	require.NoError(t, err)

	request := &csi.CreateVolumeRequest{
		Name: "restore", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
		VolumeContentSource: ofSnapshot(made.GetSnapshot().GetSnapshotId()),
	}
	answers := make(chan *csi.CreateVolumeResponse, 1)

	create := func(copying func()) {
		go func() {
			answer, err := d.CreateVolume(context.WithoutCancel(t.Context()), request)
			if err != nil {
				t.Errorf("%s: %v", request.GetName(), err)
			}

			answers <- answer
		}()
		copying()
	}

	create(stall(t, served, "snapshots", made.GetSnapshot().GetSnapshotId()))

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: made.GetSnapshot().GetSnapshotId()})
	fails(t, err, codes.Aborted, made.GetSnapshot().GetSnapshotId())
	served.Release(t)

	restored := await.Receive(t, answers, "CreateVolume from a snapshot to return")
	require.Equal(t, want, sumOf(t, imageOf(d, restored.GetVolume().GetVolumeId())))
	deleteSnapshot(t, d, made.GetSnapshot().GetSnapshotId())

	// A volume waits for its turn to go.
	request.Name, request.VolumeContentSource = "clone", ofVolume(id)
	create(stall(t, served, "images", id))

	short, cancel := context.WithTimeout(t.Context(), impatient)
	defer cancel()

	_, err = d.DeleteVolume(short, &csi.DeleteVolumeRequest{VolumeId: id})
	fails(t, err, codes.DeadlineExceeded)
	require.FileExists(t, imageOf(d, id))
	served.Release(t)
	deleteVolume(t, d, id)

	cloned := await.Receive(t, answers, "CreateVolume from a volume to return")
	require.Equal(t, want, sumOf(t, imageOf(d, cloned.GetVolume().GetVolumeId())))
}

// TestImpatientRestore retries a restore and a clone that take longer than their
// deadlines: there is one volume in the end, and it is whole.
func TestImpatientRestore(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	id := sluggish(t, d, "source")
	want := sumOf(t, imageOf(d, id))

	snapshot := &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id}

	var made *csi.CreateSnapshotResponse

	require.NoError(t, retry(t, func(ctx context.Context) (err error) {
		made, err = d.CreateSnapshot(ctx, snapshot)

		return err
	}))

	made, err := d.CreateSnapshotAndWait(t.Context(), snapshot)
	require.NoError(t, err)

	for name, source := range map[string]*csi.VolumeContentSource{
		"restore": ofSnapshot(made.GetSnapshot().GetSnapshotId()), "clone": ofVolume(id),
	} {
		var answer *csi.CreateVolumeResponse

		require.NoError(t, retry(t, func(ctx context.Context) (err error) {
			answer, err = d.CreateVolume(ctx, &csi.CreateVolumeRequest{
				Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: source,
			})

			return err
		}))
		require.Equal(t, want, sumOf(t, imageOf(d, answer.GetVolume().GetVolumeId())), name)
	}

	require.Len(t, listAll(t, d), 3)
}

// TestARestartInTheMiddleOfARestore leaves nothing of it, and the retry makes
// all of it.
func TestARestartInTheMiddleOfARestore(t *testing.T) {
	namespace.NeedRoot(t)

	for _, by := range []string{"restore", "clone"} {
		t.Run(by, func(t *testing.T) {
			served, there := stalling(t)
			d := harness.StartProcess(t, there)
			id := oneBlock(t, d, "source")
			want := sumOf(t, imageOf(d, id))
			source, room, name := ofVolume(id), "images", id

			if by == "restore" {
				made, err := d.CreateSnapshotAndWait(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
				require.NoError(t, err)

				room, name = "snapshots", made.GetSnapshot().GetSnapshotId()
				source = ofSnapshot(name)
			}

			copying := stall(t, served, room, name)
			request := &csi.CreateVolumeRequest{
				Name: by, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, VolumeContentSource: source,
			}
			left := make(chan error, 1)
			client := d.Client

			go func() {
				_, err := client.CreateVolume(context.WithoutCancel(t.Context()), request)
				left <- err
			}()

			copying()
			requireRooms(t, d, map[string]int{"scratch": 1})
			d.Kill(t, func() { served.Release(t) })
			require.Error(t, await.Receive(t, left, "CreateVolume to return"), "CreateVolume whose driver was killed")
			require.Len(t, listAll(t, d), 1)
			requireRooms(t, d, map[string]int{"images": 1, "scratch": 0})

			made, err := d.CreateVolume(t.Context(), request)
			require.NoError(t, err)
			require.Equal(t, want, sumOf(t, imageOf(d, made.GetVolume().GetVolumeId())))
		})
	}
}

// requireRooms counts what is in rooms of the pool.
func requireRooms(t *testing.T, d *harness.Driver, counts map[string]int) {
	t.Helper()

	for room, count := range counts {
		found, err := os.ReadDir(filepath.Join(d.Pool(), room))
		require.NoError(t, err)
		require.Len(t, found, count, room)
	}
}

// TestCopiesAreThin shows that a restore takes no space for what it shares, or
// for holes.
func TestCopiesAreThin(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for sort, options := range copyPools() {
		t.Run(sort, func(t *testing.T) {
			t.Parallel()

			d := harness.Start(t, options(t))
			claim := newVolume(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)}, CapacityRange: required(512 * mib),
			})
			require.NoError(t, os.WriteFile(imageOf(d, claim.VolumeID), random(t, mib), 0))
			require.NoError(t, os.Truncate(imageOf(d, claim.VolumeID), 512*mib))

			clone := copyOf(t, d, &csi.CreateVolumeRequest{VolumeCapabilities: []*csi.VolumeCapability{claim.Capability}},
				"clone", ofVolume(claim.VolumeID), nil)
			require.LessOrEqual(t, allocated(t, imageOf(d, clone.VolumeID)), int64(2*mib))

			thick := copyOf(t, d, &csi.CreateVolumeRequest{
				VolumeCapabilities: []*csi.VolumeCapability{claim.Capability}, Parameters: map[string]string{"provisioning": "thick"},
			}, "thick", ofVolume(claim.VolumeID), nil)
			require.GreaterOrEqual(t, allocated(t, imageOf(d, thick.VolumeID)), int64(512*mib))
			require.Equal(t, sumOf(t, imageOf(d, claim.VolumeID)), sumOf(t, imageOf(d, thick.VolumeID)))
		})
	}
}

// TestDirectoriesKeepWhatFilesHave copies a directory that has all that a file
// can have.
func TestDirectoriesKeepWhatFilesHave(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	source := newVolume(t, d, copyKinds()["directory"])
	bringUp(t, d, source)

	place := source.TargetPath
	require.NoError(t, os.Mkdir(filepath.Join(place, "inner"), 0o710))
	writeFile(t, filepath.Join(place, "inner", "file"), "text")
	require.NoError(t, os.Chown(filepath.Join(place, "inner", "file"), 1000, 2000))
	require.NoError(t, os.Link(filepath.Join(place, "inner", "file"), filepath.Join(place, "linked")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(place, "symlink")))
	require.NoError(t, unix.Mkfifo(filepath.Join(place, "pipe"), 0o640))
	require.NoError(t, unix.Setxattr(filepath.Join(place, "linked"), "user.color", []byte("blue"), 0))

	want := tree(t, place)

	made, err := d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{
		Name: "s", SourceVolumeId: source.VolumeID, Parameters: map[string]string{"consistency": "none"},
	})
	require.NoError(t, err, "nothing is asked of its consistency")

	takeDown(t, d, source)
	deleteVolume(t, d, source.VolumeID)

	copied := copyOf(t, d, copyKinds()["directory"], "copy", ofSnapshot(made.GetSnapshot().GetSnapshotId()), nil)
	bringUp(t, d, copied)

	got := map[string]string{}
	for path, told := range tree(t, copied.TargetPath) {
		got[strings.Replace(path, copied.TargetPath, place, 1)] = told
	}

	require.Equal(t, want, got)

	var linked, file unix.Stat_t

	require.NoError(t, unix.Stat(filepath.Join(copied.TargetPath, "linked"), &linked))
	require.NoError(t, unix.Stat(filepath.Join(copied.TargetPath, "inner", "file"), &file))
	require.Equal(t, linked.Ino, file.Ino)
	require.Equal(t, []uint32{1000, 2000}, []uint32{file.Uid, file.Gid})

	color := make([]byte, 8)
	length, err := unix.Getxattr(filepath.Join(copied.TargetPath, "linked"), "user.color", color)
	require.NoError(t, err)
	require.Equal(t, "blue", string(color[:length]))
}
