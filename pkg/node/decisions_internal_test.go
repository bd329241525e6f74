package node

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

func TestPlain(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/a/b": "/a/b", "/a//b": "/a/b", "/a/b/": "/a/b", "//a///b//": "/a/b", "a//b": "a/b", "/": "/", "": "",
		"/a/../b//": "/a/../b", "/a/./b/": "/a/./b",
	} {
		require.Equal(t, want, plain(path), "path %q", path)
	}
}

func TestCheckSameStaging(t *testing.T) {
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

// TestCheckAnotherTarget has the table of access modes: SINGLE_NODE_WRITER,
// SINGLE_NODE_SINGLE_WRITER and SINGLE_NODE_READER_ONLY allow one target on a node.
func TestCheckAnotherTarget(t *testing.T) {
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
