package ephemeral

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	contentID = "01890000-0000-7000-8000-000000000001"
	mebibyte  = 1 << 20
)

// volumes returns volumes that parse requests; what touches a device would panic.
func volumes(t *testing.T) *Volumes {
	t.Helper()

	all, err := capability.Without("VOLUME_MOUNT_GROUP", "SINGLE_NODE_MULTI_WRITER")
	require.NoError(t, err)

	return &Volumes{config: Config{
		Config:       access.Config{Config: device.Config{Pools: staged.Pools{Volumes: pool.NewSet(map[string]string{"default": "/default", "fast": "/fast"})}}},
		Capabilities: all, MaxVolumeBytes: 1 << 40,
	}}
}

// request returns a NodePublishVolume with this volume_context.
func request(context map[string]string) *csi.NodePublishVolumeRequest {
	context[volume.KeyEphemeral] = "true"

	return &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: "/target", VolumeContext: context,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
}

func TestInlineVolumesHaveDefaults(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		context map[string]string
		pool    string
		fsType  string
		bytes   int64
	}{
		"nothing is named":       {map[string]string{}, "default", "ext4", volume.DefaultEphemeralBytes},
		"a pool and a size":      {map[string]string{volume.KeyPool: "fast", volume.KeySize: "64Mi"}, "fast", "ext4", 64 * mebibyte},
		"a size is rounded up":   {map[string]string{volume.KeySize: "67108865"}, "default", "ext4", 64*mebibyte + sizeStep},
		"a size below the least": {map[string]string{volume.KeyFSType: "xfs", volume.KeySize: "1Mi"}, "default", "xfs", 300 * mebibyte},
		"the largest size":       {map[string]string{volume.KeySize: "1Ti"}, "default", "ext4", 1 << 40},
		"a directory has no least": {
			map[string]string{volume.KeyBacking: "directory", volume.KeySize: "1"}, "default", volume.DefaultFSType, sizeStep,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			wanted, err := volumes(t).Parse(request(test.context), "/normalized")
			require.NoError(t, err)

			wanted.ContentID = contentID
			require.NoError(t, wanted.Check(), "want: a record that a start accepts")
			require.Equal(t, "/normalized", wanted.Publication.TargetPath)
			require.Equal(t, test.pool, wanted.Parameters.Pool)
			require.Equal(t, test.fsType, wanted.Parameters.FSType)
			require.Equal(t, wanted.SizeBytes, test.bytes, "want: the size is the one of the context")
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()

	context := func(key, value string) func(*csi.NodePublishVolumeRequest) {
		return func(r *csi.NodePublishVolumeRequest) { r.VolumeContext[key] = value }
	}
	mode := func(mode csi.VolumeCapability_AccessMode_Mode) func(*csi.NodePublishVolumeRequest) {
		return func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessMode.Mode = mode }
	}

	for says, test := range map[string]struct {
		change func(r *csi.NodePublishVolumeRequest)
		code   codes.Code
	}{
		"volume_capability: ":   {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, codes.InvalidArgument},
		"it is no block device": {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{} }, codes.InvalidArgument},
		"on one node only":      {mode(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY), codes.InvalidArgument},
		"errors=panic": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.GetMount().MountFlags = []string{"errors=panic"}
		}, codes.InvalidArgument},
		"VOLUME_MOUNT_GROUP":             {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = "1" }, codes.InvalidArgument},
		`pool "none" does not exist`:     {context(volume.KeyPool, "none"), codes.InvalidArgument},
		"a size such as 64Mi":            {context(volume.KeySize, "big"), codes.InvalidArgument},
		"SINGLE_NODE_MULTI_WRITER":       {mode(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER), codes.InvalidArgument},
		"ntfs":                           {context(volume.KeyFSType, "ntfs"), codes.InvalidArgument},
		"--ephemeral-mkfs-options=false": {context(volume.KeyMkfsOptions, "-K"), codes.InvalidArgument},
		"always mounted on the host":     {context(volume.KeyDirectAssign, "true"), codes.InvalidArgument},
		`unknown parameter "unknown"`:    {context("unknown", "x"), codes.InvalidArgument},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()

			r := request(map[string]string{})
			test.change(r)

			_, err := volumes(t).Parse(r, "/target")
			errtext.Require(t, err, says)
			rpccode.Require(t, err, test.code)
		})
	}
}

// TestParseWithoutLimits allows any size, and the mkfs options of the filesystem.
func TestParseWithoutLimits(t *testing.T) {
	t.Parallel()

	v := volumes(t)
	v.config.MaxVolumeBytes, v.config.MkfsOptions = 0, true

	_, err := v.Parse(request(map[string]string{volume.KeySize: "2Ti", volume.KeyMkfsOptions: "-O ^metadata_csum"}), "/target")
	require.NoError(t, err)
	require.NoError(t, v.checkLargest(&staged.Inline{SizeBytes: 2 << 40}))

	_, err = v.Parse(request(map[string]string{volume.KeyMkfsOptions: "-d /etc"}), "/target")
	errtext.Require(t, err, "volume_context: mkfsOptions: ")
	rpccode.Require(t, err, codes.InvalidArgument)
}

func TestAnInlineVolumeAboveTheMaximumIsRefused(t *testing.T) {
	t.Parallel()

	require.NoError(t, volumes(t).checkLargest(&staged.Inline{SizeBytes: 1 << 40}))

	err := volumes(t).checkLargest(&staged.Inline{SizeBytes: 1<<40 + 1})
	errtext.Require(t, err, "--max-volume-size")
	rpccode.Require(t, err, codes.OutOfRange)
}

// example returns a record that the driver writes.
func example() *staged.Inline {
	return &staged.Inline{
		VolumeID: "csi-1", ContentID: contentID, SizeBytes: mebibyte,
		Parameters: volume.Parameters{
			Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
		},
		Publication: staged.Publication{TargetPath: "/target", Capability: volume.Capability{Mode: "SINGLE_NODE_WRITER"}},
	}
}

func TestAnotherInlineVolumeIsAConflict(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(wanted *staged.Inline)
		code   codes.Code
	}{
		"another content":         {func(w *staged.Inline) { w.ContentID, w.Publication.Made = "", true }, codes.OK},
		"its filesystem is named": {func(w *staged.Inline) { w.Publication.Capability.FSType = "ext4" }, codes.OK},
		"another target":          {func(w *staged.Inline) { w.Publication.TargetPath = "/other" }, codes.FailedPrecondition},
		"another size":            {func(w *staged.Inline) { w.SizeBytes++ }, codes.AlreadyExists},
		"another pool":            {func(w *staged.Inline) { w.Parameters.Pool = "fast" }, codes.AlreadyExists},
		"read-only":               {func(w *staged.Inline) { w.Publication.ReadOnly = true }, codes.AlreadyExists},
		"another filesystem":      {func(w *staged.Inline) { w.Publication.Capability.FSType = "xfs" }, codes.AlreadyExists},
	} {
		wanted := example()
		test.change(wanted)
		rpccode.Require(t, rpc.Status(checkCompatible(example(), wanted)), test.code, name)
	}
}
