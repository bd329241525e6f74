package objects

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/controller/record"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

const (
	ownNode  = "node-1"
	nextNode = "node-2"
)

var errBroken = errors.New("broken")

// node says which nodes are the local one; it has the volume "used" in use, and does not know of "unknown".
type node map[string]bool

func (n node) Serves(id string) bool { return n[id] }

func (n node) InUse(id string) (path string, used bool, err error) {
	if id == "unknown" {
		return "", false, errBroken
	}

	return "/target", id == "used", nil
}

// TestUsedVolumesAreFound: by their attachments, if there are calls that end them, and by the local node.
func TestUsedVolumesAreFound(t *testing.T) {
	t.Parallel()

	attached := []record.Attachment{{NodeID: nextNode}}

	for name, test := range map[string]struct {
		attaches   bool
		v          record.Volume
		none, here codes.Code
	}{
		"idle":                        {true, record.Volume{ID: "idle"}, codes.OK, codes.OK},
		"attached":                    {true, record.Volume{ID: "idle", Attachments: attached}, codes.FailedPrecondition, codes.OK},
		"attached by an earlier mode": {false, record.Volume{ID: "idle", Attachments: attached}, codes.OK, codes.OK},
		"used":                        {true, record.Volume{ID: "used"}, codes.FailedPrecondition, codes.FailedPrecondition},
		"unknown":                     {true, record.Volume{ID: "unknown"}, codes.Internal, codes.Internal},
	} {
		use := &Use{Node: node{}, Attaches: test.attaches}
		rpccode.Require(t, use.CheckNone(&test.v), test.none, "%s", name)
		rpccode.Require(t, use.CheckNoneHere(&test.v), test.here, "%s, here", name)
	}
}

// TestOtherWritersAreFound: which attachments may write to a volume while it is copied.
func TestOtherWritersAreFound(t *testing.T) {
	t.Parallel()

	attached := func(nodeID string, change ...func(a *record.Attachment)) record.Attachment {
		a := record.Attachment{NodeID: nodeID, Capability: volume.Capability{Mode: "MULTI_NODE_MULTI_WRITER"}}
		for _, each := range change {
			each(&a)
		}

		return a
	}
	readOnly := func(a *record.Attachment) { a.ReadOnly = true }
	reader := func(a *record.Attachment) { a.Capability.Mode = "MULTI_NODE_READER_ONLY" }

	for name, test := range map[string]struct {
		attachments []record.Attachment
		want        bool
	}{
		"nowhere":              {nil, false},
		"here":                 {[]record.Attachment{attached(ownNode)}, false},
		"on another node":      {[]record.Attachment{attached(nextNode)}, true},
		"readonly there":       {[]record.Attachment{attached(nextNode, readOnly)}, false},
		"for readers there":    {[]record.Attachment{attached(nextNode, reader)}, false},
		"here and there":       {[]record.Attachment{attached(ownNode), attached(nextNode)}, true},
		"readers and a writer": {[]record.Attachment{attached(nextNode, reader), attached("x", readOnly), attached("y")}, true},
	} {
		use := &Use{Node: node{ownNode: true}, NodeID: ownNode, Attaches: true}
		require.Equal(t, test.want, use.WrittenElsewhere(&record.Volume{Attachments: test.attachments}) != "", "want: %s", name)
	}

	for name, test := range map[string]struct {
		shared, served, want bool
	}{
		"this node alone":           {false, true, false},
		"a pool of several nodes":   {true, true, true},
		"a controller without node": {false, false, true},
		"both":                      {true, false, true},
	} {
		use := &Use{Node: node{ownNode: test.served}, NodeID: ownNode, Shared: test.shared}
		require.Equal(t, test.want, use.WrittenElsewhere(&record.Volume{}) != "", "want: %s", name)
	}
}

// TestGrowthIsCheckedOfImages that no guest has, unless they are missing, which is reported later.
func TestGrowthIsCheckedOfImages(t *testing.T) {
	t.Parallel()

	p, err := pool.Open("default", t.TempDir(), pool.Options{})
	require.NoError(t, err)

	check := func(v record.Volume, parameters volume.Parameters) error {
		v.ID, v.Properties = volume.NewID(), &record.Properties{Parameters: parameters}

		return (&Use{Node: node{}, Attaches: true}).CheckGrowth(p, &v, 1<<20)
	}
	attached := record.Volume{Attachments: []record.Attachment{{NodeID: nextNode}}}
	image := volume.Parameters{Backing: volume.BackingImage}
	guest := volume.Parameters{Backing: volume.BackingImage, DirectAssign: true}

	require.NoError(t, check(attached, image), "want: it is missing")
	require.NoError(t, p.Close())
	require.ErrorIs(t, check(attached, image), fs.ErrClosed)
	require.ErrorIs(t, check(record.Volume{}, guest), fs.ErrClosed)
	require.NoError(t, check(attached, guest), "want: a guest may have it")
	require.NoError(t, check(attached, volume.Parameters{Backing: volume.BackingDirectory}), "want: a directory has no limit of its own")
}
