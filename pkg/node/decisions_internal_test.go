package node

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestPathsAreComparedWithoutExtraSlashes(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/a/b": "/a/b", "/a//b": "/a/b", "/a/b/": "/a/b", "//a///b//": "/a/b", "a//b": "a/b", "/": "/", "": "",
		"/a/../b//": "/a/../b", "/a/./b/": "/a/./b",
	} {
		require.Equal(t, want, plain(path), "path %q", path)
	}
}

func TestAnotherStagingIsAConflict(t *testing.T) {
	t.Parallel()

	existing := staged.Volume{
		StagingPath: "/staging", Capability: volume.Capability{Mode: "SINGLE_NODE_WRITER", FSType: "ext4"},
		Parameters: volume.Parameters{Backing: volume.BackingImage},
	}

	for name, test := range map[string]struct {
		change func(v *staged.Volume)
		want   codes.Code
	}{
		"same":                {func(*staged.Volume) {}, codes.OK},
		"another path":        {func(v *staged.Volume) { v.StagingPath = "/other" }, codes.FailedPrecondition},
		"another filesystem":  {func(v *staged.Volume) { v.Capability.FSType = "xfs" }, codes.AlreadyExists},
		"another access mode": {func(v *staged.Volume) { v.Capability.Mode = "SINGLE_NODE_READER_ONLY" }, codes.AlreadyExists},
		"direct assignment":   {func(v *staged.Volume) { v.Parameters.DirectAssign = true }, codes.AlreadyExists},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			wanted := existing
			test.change(&wanted)
			rpccode.Require(t, rpc.Status(checkSameStaging(&existing, &wanted)), test.want)
		})
	}
}

// TestCheckSELinuxContexts: all mounts of a filesystem have the same contexts.
func TestCheckSELinuxContexts(t *testing.T) {
	t.Parallel()

	const one, two = `context="user:role:type:s0:c1,c2"`, `context="user:role:type:s0:c1,c3"`

	for name, test := range map[string]struct {
		mounted, wanted []string
		want            codes.Code
	}{
		"none":                           {nil, nil, codes.OK},
		"the same":                       {[]string{one}, []string{one}, codes.OK},
		"the same among others":          {[]string{"noatime," + one}, []string{one, "ro"}, codes.OK},
		"several in another order":       {[]string{one, "rootcontext=a"}, []string{"rootcontext=a", one}, codes.OK},
		"flags that are no contexts":     {[]string{"noatime"}, []string{"data=context"}, codes.OK},
		"another":                        {[]string{one}, []string{two}, codes.FailedPrecondition},
		"another of the root alone":      {[]string{one}, []string{one, "rootcontext=a"}, codes.FailedPrecondition},
		"one, of a volume that has none": {nil, []string{one}, codes.FailedPrecondition},
		"none, of a volume that has one": {[]string{one}, nil, codes.FailedPrecondition},
	} {
		mounted := &staged.Volume{Capability: volume.Capability{MountFlags: test.mounted}}
		err := checkSELinuxContexts(mounted, volume.Capability{MountFlags: test.wanted})
		rpccode.Require(t, err, test.want, name)

		if err != nil {
			require.NotContains(t, err.Error(), "s0", "want: no value of a mount flag in a message")
		}
	}
}

// TestAccessModesDecideOnASecondTarget has the table of access modes: SINGLE_NODE_WRITER,
// SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_READER_ONLY allow one target on a node.
func TestAccessModesDecideOnASecondTarget(t *testing.T) {
	t.Parallel()

	several := map[string]bool{
		"SINGLE_NODE_WRITER": false, "SINGLE_NODE_SINGLE_WRITER": false, "SINGLE_NODE_READER_ONLY": false,
		"SINGLE_NODE_MULTI_WRITER": true, "MULTI_NODE_READER_ONLY": true, "MULTI_NODE_MULTI_WRITER": true,
	}

	publication := func(mode string) staged.Publication {
		return staged.Publication{TargetPath: "/target", Capability: volume.Capability{Mode: mode}}
	}

	for first := range several {
		require.NoError(t, checkAnotherTarget(&staged.Volume{}, publication(first)), "the first target, %s", first)

		for second := range several {
			err := checkAnotherTarget(&staged.Volume{Publications: []staged.Publication{publication(first)}}, publication(second))

			want := codes.FailedPrecondition
			if several[first] && several[second] {
				want = codes.OK
			}

			rpccode.Require(t, err, want, "%s, then %s", first, second)
		}
	}
}

// TestRequestsAreParsedBeforeALookup: what is invalid in any state is refused without the volume's record, also
// what NodePublishVolume needs only to stage the volume itself.
func TestRequestsAreParsedBeforeALookup(t *testing.T) {
	t.Parallel()

	_, err := parseExpansion(&csi.NodeExpandVolumeRequest{VolumeId: "unknown", VolumePath: "/path", VolumeCapability: &csi.VolumeCapability{}})
	rpccode.Require(t, err, codes.InvalidArgument)
	errtext.Require(t, err, "volume_capability: ")

	unstaged, err := capability.Without("STAGE_UNSTAGE_VOLUME")
	require.NoError(t, err)

	config := &Common{Capabilities: unstaged}
	request := &csi.NodePublishVolumeRequest{
		VolumeId: "01890000-0000-7000-8000-000000000001", TargetPath: "/target", VolumeContext: map[string]string{volume.KeyBlockSize: "7"},
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}
	_, err = config.parsePublish(request, rpc.CheckAbsolute)
	rpccode.Require(t, err, codes.InvalidArgument)
	errtext.Require(t, err, "volume_context: ")
}
