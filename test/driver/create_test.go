package driver_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
	"github.com/touchstone-csi/touchstone/pkg/driver"
	"github.com/touchstone-csi/touchstone/test/faults"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

const nodeSegment = "topology.touchstone.dev/node"

func topology(key, value string) *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{key: value}}}}
}

func TestCreateIsIdempotentByName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	first := &csi.CreateVolumeRequest{
		Name:                      "pvc",
		CapacityRange:             &csi.CapacityRange{RequiredBytes: 64 * mib, LimitBytes: 512 * mib},
		VolumeCapabilities:        []*csi.VolumeCapability{csiclient.MountCapability(writer, "ext4", "noatime", "nodev")},
		AccessibilityRequirements: topology(nodeSegment, harness.NodeID),
	}
	made, err := d.CreateVolume(t.Context(), first)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		want   codes.Code
	}{
		"same":                     {func(*csi.CreateVolumeRequest) {}, codes.OK},
		"a range that it lies in":  {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes = 1 }, codes.OK},
		"defaults spelled out":     {with("backing", "image"), codes.OK},
		"the provisioner's keys":   {with("csi.storage.k8s.io/pvc/name", "x"), codes.OK},
		"flags in another order":   {asking(csiclient.MountCapability(writer, "ext4", "nodev", "noatime")), codes.OK},
		"the same filesystem":      {asking(csiclient.MountCapability(writer, "ext4", "nodev", "noatime")), codes.OK},
		"no topology":              {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = nil }, codes.OK},
		"larger":                   {func(r *csi.CreateVolumeRequest) { r.CapacityRange.RequiredBytes++ }, codes.AlreadyExists},
		"smaller":                  {func(r *csi.CreateVolumeRequest) { r.CapacityRange = upTo(32 * mib) }, codes.AlreadyExists},
		"another access mode":      {asking(csiclient.MountCapability(multiWriter, "ext4", "noatime", "nodev")), codes.AlreadyExists},
		"other flags":              {asking(csiclient.MountCapability(writer, "ext4", "noatime")), codes.AlreadyExists},
		"block":                    {asking(csiclient.BlockCapability(writer)), codes.AlreadyExists},
		"another filesystem":       {asking(csiclient.MountCapability(writer, "btrfs", "noatime", "nodev")), codes.AlreadyExists},
		"one more capability":      {alsoAsking(csiclient.BlockCapability(writer)), codes.AlreadyExists},
		"another blockSize":        {with("blockSize", "512"), codes.AlreadyExists},
		"thick":                    {with("provisioning", "thick"), codes.AlreadyExists},
		"another backing":          {with("backing", "directory"), codes.AlreadyExists},
		"other mkfsOptions":        {with("mkfsOptions", "-m 1"), codes.AlreadyExists},
		"another node's topology":  {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = topology(nodeSegment, "x") }, codes.AlreadyExists},
		"an unknown topology":      {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = topology("rack", "7") }, codes.AlreadyExists},
		"invalid stays so":         {func(r *csi.CreateVolumeRequest) { r.CapacityRange.LimitBytes = -1 }, codes.InvalidArgument},
		"unknown parameter, again": {with("color", "blue"), codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			request := proto.CloneOf(first)
			test.change(request)

			again, err := d.CreateVolume(t.Context(), request)
			fails(t, err, test.want)

			if test.want == codes.OK {
				require.True(t, proto.Equal(made, again), "%v\n%v", made, again)
			}

			require.Len(t, listAll(t, d), 1)
		})
	}

	other := proto.CloneOf(first)
	other.Name = "another"
	second, err := d.CreateVolume(t.Context(), other)
	require.NoError(t, err)
	require.NotEqual(t, made.GetVolume().GetVolumeId(), second.GetVolume().GetVolumeId())

	d.Restart(t)

	again, err := d.CreateVolume(t.Context(), first)
	require.NoError(t, err)
	require.True(t, proto.Equal(made, again), "got %v, want %v", again, made)
}

func with(key, value string) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.Parameters = map[string]string{key: value} }
}

func asking(capability *csi.VolumeCapability) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = []*csi.VolumeCapability{capability} }
}

func alsoAsking(capability *csi.VolumeCapability) func(*csi.CreateVolumeRequest) {
	return func(r *csi.CreateVolumeRequest) { r.VolumeCapabilities = append(r.VolumeCapabilities, capability) }
}

func upTo(limit int64) *csi.CapacityRange { return &csi.CapacityRange{LimitBytes: limit} }

func TestCreateOfTheSameNameAtOnceMakesOneVolume(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	ids := make([]string, 16)

	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "pvc", VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
			})
			if err == nil {
				ids[i] = made.GetVolume().GetVolumeId()
			}
		})
	}

	group.Wait()

	slices.Sort(ids)
	require.Equal(t, listAll(t, d), slices.Compact(ids))
}

func TestCreateAfterExpansion(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	request := &csi.CreateVolumeRequest{Name: "pvc"}
	claim := newVolume(t, d, request)

	_, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: claim.VolumeID, CapacityRange: &csi.CapacityRange{RequiredBytes: 100 * mib},
	})
	require.NoError(t, err)

	again, err := d.CreateVolume(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, claim.VolumeID, again.GetVolume().GetVolumeId())
	require.EqualValues(t, 100*mib, again.GetVolume().GetCapacityBytes())
}

func TestSizes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 512 * mib })
	block := csiclient.BlockCapability(writer)
	xfs, btrfs, ext4 := csiclient.MountCapability(writer, "xfs"), csiclient.MountCapability(writer, "btrfs"), csiclient.MountCapability(writer, "ext4")

	for name, test := range map[string]struct {
		asked      *csi.CapacityRange
		capability *csi.VolumeCapability
		parameters map[string]string
		want       int64
		code       codes.Code
	}{
		"none asked, the default is more than the limit": {capability: block, want: 512 * mib},
		"rounded up":                       {asked: required(4097), capability: block, want: 8192},
		"exact":                            {asked: required(8192), capability: block, want: 8192},
		"one byte":                         {asked: required(1), capability: block, want: 4096},
		"rounded up to the limit":          {asked: between(5000, 8192), capability: block, want: 8192},
		"rounded above the limit":          {asked: between(5000, 8191), capability: block, code: codes.OutOfRange},
		"required and limit alike and odd": {asked: between(5000, 5000), capability: block, code: codes.OutOfRange},
		"limit only":                       {asked: upTo(10000), capability: block, want: 8192},
		"limit only, below all":            {asked: upTo(4095), capability: block, code: codes.OutOfRange},
		"limit below required":             {asked: between(8192, 4096), capability: block, code: codes.InvalidArgument},
		"negative required":                {asked: required(-1), capability: block, code: codes.InvalidArgument},
		"negative limit":                   {asked: between(1, -1), capability: block, code: codes.InvalidArgument},
		"smallest of all numbers":          {asked: required(math.MinInt64), capability: block, code: codes.InvalidArgument},
		"the largest volume":               {asked: required(512 * mib), capability: block, want: 512 * mib},
		"more than --max-volume-size":      {asked: required(512*mib + 1), capability: block, code: codes.OutOfRange},
		"overflows when rounded":           {asked: required(math.MaxInt64), capability: block, code: codes.OutOfRange},
		"just below that":                  {asked: required(math.MaxInt64 - 4095), capability: block, code: codes.OutOfRange},
		"ext4 has a minimum":               {asked: required(1), capability: ext4, want: 256 << 10},
		"xfs has one":                      {asked: required(mib), capability: xfs, want: 300 * mib},
		"so has btrfs":                     {asked: required(mib), capability: btrfs, want: 256 * mib},
		"xfs below its limit":              {asked: between(mib, 300*mib-1), capability: xfs, code: codes.OutOfRange},
		"a directory has no filesystem": {
			asked: required(1), capability: csiclient.MountCapability(writer, ""), want: 4096,
			parameters: directoryBacked(),
		},
		"fstype by parameter": {
			asked: required(1), capability: csiclient.MountCapability(writer, ""), want: 300 * mib,
			parameters: map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: nameOf(t), CapacityRange: test.asked, Parameters: test.parameters,
				VolumeCapabilities: []*csi.VolumeCapability{test.capability},
			})
			fails(t, err, test.code)

			if test.code != codes.OK {
				return
			}

			require.Equal(t, test.want, made.GetVolume().GetCapacityBytes())

			if test.parameters["backing"] != "directory" {
				info, err := os.Stat(imageOf(d, made.GetVolume().GetVolumeId()))
				require.NoError(t, err)
				require.Equal(t, test.want, info.Size())
			}

			if test.capability.GetMount() == nil {
				return
			}

			// The smallest size is one that really holds the filesystem.
			claim := d.Claim(t, made.GetVolume().GetVolumeId())
			claim.Capability, claim.VolumeContext = test.capability, made.GetVolume().GetVolumeContext()
			bringUp(t, d, claim)
			takeDown(t, d, claim)
		})
	}
}

func required(bytes int64) *csi.CapacityRange { return &csi.CapacityRange{RequiredBytes: bytes} }

func between(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

func TestExpansionSizes(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t, func(c *driver.Config) { c.MaxVolumeBytes = 512 * mib })
	claim := newVolume(t, d, &csi.CreateVolumeRequest{CapacityRange: required(64 * mib)})

	for _, test := range []struct {
		name  string
		asked *csi.CapacityRange
		want  int64
		code  codes.Code
	}{
		{"an empty range", &csi.CapacityRange{}, 0, codes.InvalidArgument},
		{"negative", required(-1), 0, codes.InvalidArgument},
		{"limit below required", between(8192, 4096), 0, codes.InvalidArgument},
		{"a smaller one is what it has already", required(mib), 64 * mib, codes.OK},
		{"a limit that it keeps", upTo(100 * mib), 64 * mib, codes.OK},
		{"never shrinks", between(mib, 32*mib), 0, codes.OutOfRange},
		{"not by a limit alone", upTo(32 * mib), 0, codes.OutOfRange},
		{"rounded up", required(64*mib + 1), 64*mib + 4096, codes.OK},
		{"rounded above the limit", between(65*mib+1, 65*mib+2), 0, codes.OutOfRange},
		{"more than --max-volume-size", required(513 * mib), 0, codes.OutOfRange},
		{"overflow", required(math.MaxInt64), 0, codes.OutOfRange},
		{"again", required(64*mib + 1), 64*mib + 4096, codes.OK},
	} {
		answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: claim.VolumeID, CapacityRange: test.asked,
		})
		require.Equal(t, test.code.String(), status.Code(err).String(), "%s: %v", test.name, err)
		require.Equal(t, test.want, answer.GetCapacityBytes(), test.name)
	}

	info, err := os.Stat(imageOf(d, claim.VolumeID))
	require.NoError(t, err)
	require.EqualValues(t, 64*mib+4096, info.Size())
}

func TestCreateRefuses(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	before := everything(t, d)

	for name, test := range map[string]struct {
		change func(*csi.CreateVolumeRequest)
		code   codes.Code
		words  []string
	}{
		"unknown parameter": {with("color", "blue"), codes.InvalidArgument, []string{
			`"color"`, "backing", "blockSize", "csi.storage.k8s.io/fstype", "mkfsOptions", "pool", "provisioning",
		}},
		"backing":                     {with("backing", "tape"), codes.InvalidArgument, []string{"tape", "image or directory"}},
		"provisioning":                {with("provisioning", "fat"), codes.InvalidArgument, []string{"thin or thick"}},
		"blockSize":                   {with("blockSize", "1024"), codes.InvalidArgument, []string{"4096 or 512"}},
		"fstype":                      {with("csi.storage.k8s.io/fstype", "ntfs"), codes.InvalidArgument, []string{"ext4, xfs, btrfs"}},
		"pool":                        {with("pool", "../x"), codes.InvalidArgument, []string{"default"}},
		"mkfsOptions naming a file":   {with("mkfsOptions", "-d /etc"), codes.InvalidArgument, []string{"-d"}},
		"mkfsOptions with an operand": {with("mkfsOptions", "/dev/sda"), codes.InvalidArgument, []string{"/dev/sda"}},
		"thick directory": {func(r *csi.CreateVolumeRequest) {
			r.Parameters = map[string]string{"backing": "directory", "provisioning": "thick"}
		}, codes.InvalidArgument, []string{"directory"}},
		"block on a directory": {func(r *csi.CreateVolumeRequest) {
			r.Parameters, r.VolumeCapabilities = directoryBacked(), []*csi.VolumeCapability{csiclient.BlockCapability(writer)}
		}, codes.InvalidArgument, []string{"backing=image"}},
		"two filesystems":      {alsoAsking(csiclient.MountCapability(writer, "xfs")), codes.InvalidArgument, []string{"ext4", "xfs"}},
		"unknown filesystem":   {asking(csiclient.MountCapability(writer, "zfs")), codes.InvalidArgument, []string{"zfs", "ext4"}},
		"refused mount flag":   {asking(csiclient.MountCapability(writer, "", "remount")), codes.InvalidArgument, []string{"remount"}},
		"unknown access mode":  {asking(csiclient.MountCapability(99, "")), codes.InvalidArgument, []string{"99"}},
		"no topology fits":     {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = topology(nodeSegment, "x") }, codes.ResourceExhausted, []string{nodeSegment}},
		"an unknown key":       {func(r *csi.CreateVolumeRequest) { r.AccessibilityRequirements = topology("rack", "7") }, codes.ResourceExhausted, nil},
		"a long name":          {func(r *csi.CreateVolumeRequest) { r.Name = string(make([]rune, 129)) }, codes.InvalidArgument, nil},
		"an escape in a name":  {func(r *csi.CreateVolumeRequest) { r.Name = "a\x1bb" }, codes.InvalidArgument, []string{"name"}},
		"C1 control in a name": {func(r *csi.CreateVolumeRequest) { r.Name = "a\u0085b" }, codes.InvalidArgument, []string{"name"}},
		"a content source of no kind": {func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{}
		}, codes.InvalidArgument, []string{"volume_content_source"}},
		"unknown mutable parameter": {func(r *csi.CreateVolumeRequest) {
			r.MutableParameters = map[string]string{"color": "blue"}
		}, codes.InvalidArgument, []string{"color"}},
	} {
		t.Run(name, func(t *testing.T) {
			request := &csi.CreateVolumeRequest{
				Name: nameOf(t), CapacityRange: required(64 * mib),
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, "ext4")},
			}
			test.change(request)

			_, err := d.CreateVolume(t.Context(), request)
			fails(t, err, test.code, test.words...)
		})
	}

	require.Equal(t, before, everything(t, d))
}

// TestCreateTakesAnyName shows that a name is only a name: it may look like a
// path, and any character is good that the spec does not ban.
func TestCreateTakesAnyName(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	ids := map[string]bool{}

	for _, name := range []string{"../../etc", "/etc/passwd", "..", "a\tb\n", "éñ–☃", " ", "%s", "a=b,c"} {
		made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
			CapacityRange: required(mib),
		})
		require.NoError(t, err, "%q", name)

		parsed, err := uuid.Parse(made.GetVolume().GetVolumeId())
		require.NoError(t, err)
		require.EqualValues(t, 7, parsed.Version())
		require.Equal(t, parsed.String(), made.GetVolume().GetVolumeId())
		require.FileExists(t, imageOf(d, parsed.String()))

		ids[parsed.String()] = true
	}

	require.Len(t, ids, 8)
	require.Len(t, listAll(t, d), 8)

	// What is deleted and made again is not what it was.
	for id := range ids {
		deleteVolume(t, d, id)
	}

	made := newVolume(t, d, &csi.CreateVolumeRequest{Name: "éñ–☃"})
	require.NotContains(t, ids, made.VolumeID)
}

func TestTopology(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	rack := &csi.Topology{Segments: map[string]string{"rack": "7"}}
	other := &csi.Topology{Segments: map[string]string{"rack": "8"}}
	node := &csi.Topology{Segments: map[string]string{nodeSegment: harness.NodeID, "rack": "7"}}
	d := harness.Start(t, func(c *driver.Config) { c.Topology = map[string]string{"rack": "7"} })

	info, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	require.NoError(t, err)
	require.True(t, proto.Equal(node, info.GetAccessibleTopology()), "got %v, want %v", info.GetAccessibleTopology(), node)

	for name, test := range map[string]struct {
		asked *csi.TopologyRequirement
		code  codes.Code
	}{
		"none":                    {nil, codes.OK},
		"empty":                   {&csi.TopologyRequirement{}, codes.OK},
		"one of two":              {&csi.TopologyRequirement{Requisite: []*csi.Topology{other, rack}}, codes.OK},
		"all segments":            {&csi.TopologyRequirement{Requisite: []*csi.Topology{node}}, codes.OK},
		"preferred only":          {&csi.TopologyRequirement{Preferred: []*csi.Topology{rack}}, codes.OK},
		"another preferred":       {&csi.TopologyRequirement{Preferred: []*csi.Topology{other}}, codes.OK},
		"both, another preferred": {&csi.TopologyRequirement{Requisite: []*csi.Topology{rack, other}, Preferred: []*csi.Topology{other}}, codes.OK},
		"another":                 {&csi.TopologyRequirement{Requisite: []*csi.Topology{other}}, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: nameOf(t), AccessibilityRequirements: test.asked, CapacityRange: required(mib),
				VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
			})
			fails(t, err, test.code)

			if test.code == codes.OK {
				require.Len(t, made.GetVolume().GetAccessibleTopology(), 1)
				require.True(t, proto.Equal(node, made.GetVolume().GetAccessibleTopology()[0]))
			}
		})
	}

	for topology, some := range map[*csi.Topology]bool{rack: true, node: true, other: false, nil: true} {
		capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{AccessibleTopology: topology})
		require.NoError(t, err)
		require.Equal(t, some, capacity.GetAvailableCapacity() > 0, "%v", topology)
	}
}

// smallPool is a pool of its own filesystem, of so many bytes.
func smallPool(t *testing.T, bytes int64, more ...harness.Option) *harness.Driver {
	t.Helper()

	pool := t.TempDir()
	require.NoError(t, unix.Mount("none", pool, "tmpfs", 0, "size="+strconv.FormatInt(bytes+identityBytes, 10)))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(pool, unix.MNT_DETACH)) })

	d := harness.Start(t, append(more, func(c *driver.Config) { c.Pools = map[string]string{"default": pool} })...)
	eraseName(t, d)

	return d
}

// eraseName takes a block back that the tests need not count: the driver's name
// in its pool.
func eraseName(t *testing.T, d *harness.Driver) {
	t.Helper()
	require.NoError(t, os.Truncate(filepath.Join(d.Pool(), "controller.lock"), 0))
}

func createBlock(t *testing.T, d *harness.Driver, name string, bytes int64, provisioning string) (string, error) {
	t.Helper()

	made, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: required(bytes), Parameters: map[string]string{"provisioning": provisioning},
		VolumeCapabilities: []*csi.VolumeCapability{csiclient.BlockCapability(writer)},
	})

	return made.GetVolume().GetVolumeId(), err
}

func available(t *testing.T, d *harness.Driver) int64 {
	t.Helper()

	capacity, err := d.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
	require.NoError(t, err)

	return capacity.GetAvailableCapacity()
}

func TestPoolIsNotPromisedTwice(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, provisioning := range []string{"thin", "thick"} {
		t.Run(provisioning, func(t *testing.T) {
			t.Parallel()

			d := smallPool(t, 64*mib)
			require.InDelta(t, 64*mib, available(t, d), identityBytes)

			first, err := createBlock(t, d, "first", 40*mib, provisioning)
			require.NoError(t, err)
			require.InDelta(t, 24*mib, available(t, d), identityBytes)

			before := everything(t, d)
			_, err = createBlock(t, d, "second", 24*mib+2*identityBytes, provisioning)
			fails(t, err, codes.ResourceExhausted, "default")

			_, err = d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: first, CapacityRange: required(65 * mib),
			})
			fails(t, err, codes.ResourceExhausted, "default")
			require.Equal(t, before, everything(t, d))

			d.Restart(t)
			eraseName(t, d)
			require.InDelta(t, 24*mib, available(t, d), identityBytes)

			// To the last page.
			_, err = createBlock(t, d, "third", 24*mib, provisioning)
			require.NoError(t, err)
			require.LessOrEqual(t, available(t, d), int64(identityBytes))

			deleteVolume(t, d, first)
			require.InDelta(t, 40*mib, available(t, d), identityBytes)
		})
	}
}

func TestThickExpansionUsesTheWholePool(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := smallPool(t, 64*mib)
	id, err := createBlock(t, d, "pvc", 4*mib, "thick")
	require.NoError(t, err)

	answer, err := d.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: required(60 * mib),
	})
	require.NoError(t, err)
	require.EqualValues(t, 60*mib, answer.GetCapacityBytes())
	require.EqualValues(t, 60*mib, allocated(t, imageOf(d, id)))
	require.EqualValues(t, 4*mib, available(t, d))
}

// identityBytes is what the identity of a pool takes of its filesystem.
const identityBytes = 4096

func TestOvercommit(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := smallPool(t, 64*mib, func(c *driver.Config) { c.Overcommit = 2 })
	require.EqualValues(t, 128*mib, available(t, d))

	_, err := createBlock(t, d, "thin", 64*mib, "thin")
	require.NoError(t, err)
	_, err = createBlock(t, d, "thick", 60*mib, "thick")
	require.NoError(t, err)

	// Promised as often as is allowed, and yet the space is not there.
	_, err = createBlock(t, d, "no", 8*mib, "thin")
	fails(t, err, codes.ResourceExhausted)

	_, err = createBlock(t, d, "full", 4*mib+4096, "thick")
	fails(t, err, codes.ResourceExhausted)
	require.Len(t, listAll(t, d), 2)

	images, err := os.ReadDir(filepath.Join(d.Pool(), "images"))
	require.NoError(t, err)
	require.Len(t, images, 2)
}

func TestPoolIsNotPromisedTwiceAtOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for _, provisioning := range []string{"thin", "thick"} {
		t.Run(provisioning, func(t *testing.T) {
			t.Parallel()

			d := smallPool(t, 64*mib)
			errs := make([]error, 24)

			var group sync.WaitGroup
			for i := range errs {
				group.Go(func() {
					_, errs[i] = createBlock(t, d, strconv.Itoa(i), 10*mib, provisioning)
				})
			}

			group.Wait()

			made := 0

			for _, err := range errs {
				if err == nil {
					made++

					continue
				}

				fails(t, err, codes.ResourceExhausted)
			}

			require.LessOrEqual(t, made, 6)
			require.Positive(t, made)
			require.Len(t, listAll(t, d), made)
			require.InDelta(t, 64*mib-made*10*mib, available(t, d), identityBytes)

			if provisioning == "thin" {
				require.Equal(t, 6, made)
			}
		})
	}
}

// TestSlowCallsProvisionThePoolOnce has the images of concurrent calls be made
// slowly, between the first check of the pool's capacity and the record.
func TestSlowCallsProvisionThePoolOnce(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	served := faults.Serve(t)
	d := harness.Start(t, poolAt("default", filepath.Join(served.Path, "pool")))
	size := available(t, d) * 2 / 5 / mib * mib

	served.Inject(t, faults.Fault{Ops: faults.Names, Delay: 100 * time.Millisecond})

	var (
		group sync.WaitGroup
		errs  [4]error
	)

	for i := range errs {
		group.Go(func() { _, errs[i] = createBlock(t, d, strconv.Itoa(i), size, "thin") })
	}

	group.Wait()
	require.Positive(t, served.Met(t), "slow requests")
	served.Release(t)

	for _, err := range errs {
		if err != nil {
			fails(t, err, codes.ResourceExhausted)
		}
	}

	require.Len(t, listAll(t, d), 2, "volumes of two fifths of the pool each")
}

func TestThinAndThick(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)

	for fsType, size := range map[string]int64{"ext4": 64 * mib, "xfs": 300 * mib, "btrfs": 256 * mib} {
		t.Run(fsType, func(t *testing.T) {
			ask := func(provisioning string) *csiclient.Publication {
				return newVolume(t, d, &csi.CreateVolumeRequest{
					Name: nameOf(t) + provisioning, CapacityRange: required(size),
					Parameters:         map[string]string{"provisioning": provisioning},
					VolumeCapabilities: []*csi.VolumeCapability{csiclient.MountCapability(writer, fsType)},
				})
			}

			thin, thick := ask("thin"), ask("thick")
			require.Zero(t, allocated(t, imageOf(d, thin.VolumeID)))
			require.GreaterOrEqual(t, allocated(t, imageOf(d, thick.VolumeID)), size)

			for _, claim := range []*csiclient.Publication{thin, thick} {
				bringUp(t, d, claim)
				takeDown(t, d, claim)
			}

			// The format neither fills the one nor empties the other.
			require.Less(t, allocated(t, imageOf(d, thin.VolumeID)), size/3)
			require.GreaterOrEqual(t, allocated(t, imageOf(d, thick.VolumeID)), size)

			for _, claim := range []*csiclient.Publication{thin, thick} {
				deleteVolume(t, d, claim.VolumeID)
			}
		})
	}
}

// TestWhatIsAdvertisedIsServed calls nothing that other tests call; it compares
// the capabilities with UNIMPLEMENTED.
func TestWhatIsAdvertisedIsServed(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	all, err := d.Capabilities(t.Context())
	require.NoError(t, err)

	ctx := t.Context()

	for capability, calls := range map[csi.ControllerServiceCapability_RPC_Type][]func() error{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME: {
			func() error { _, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{}); return err },
			func() error { _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME: {
			func() error {
				_, err := d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{})
				return err
			},
			func() error {
				_, err := d.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{})
				return err
			},
		},
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES: {
			func() error { _, err := d.ListVolumes(ctx, &csi.ListVolumesRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_GET_CAPACITY: {
			func() error { _, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_GET_VOLUME: {
			func() error {
				_, err := d.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{})
				return err
			},
		},
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME: {
			func() error {
				_, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{})
				return err
			},
		},
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT: {
			func() error { _, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{}); return err },
			func() error { _, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS: {
			func() error { _, err := d.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}); return err },
		},
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME: {
			func() error {
				_, err := d.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{})
				return err
			},
		},
	} {
		for _, call := range calls {
			served := status.Code(call()) != codes.Unimplemented
			require.Equal(t, all.HasControllerRPC(capability), served, "%s: %v", capability, call())
		}
	}

	for capability, calls := range map[csi.NodeServiceCapability_RPC_Type][]func() error{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: {
			func() error { _, err := d.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{}); return err },
			func() error { _, err := d.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{}); return err },
		},
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS: {
			func() error { _, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{}); return err },
		},
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME: {
			func() error { _, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{}); return err },
		},
	} {
		for _, call := range calls {
			served := status.Code(call()) != codes.Unimplemented
			require.Equal(t, all.HasNodeRPC(capability), served, "%s: %v", capability, call())
		}
	}
}
