package pool

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

// TestMembersOfAGroupAreImagesOfItsPool that are copied at one point in time.
func TestMembersOfAGroupAreImagesOfItsPool(t *testing.T) {
	t.Parallel()

	p, _ := newQuotaPool(t)
	source := imageOf(quotaID)

	for name, test := range map[string]struct {
		scratch *scratch
		of      imageCopy
		want    string
	}{
		"an image":                            {p.scratch, imageCopy{within: true, reflinks: true}, "its filesystem is not btrfs"},
		"an image of a pool without reflinks": {p.scratch, imageCopy{within: true}, source.String()},
		"an image of another pool":            {p.scratch, imageCopy{reflinks: true}, source.String()},
		"an image to another pool":            {&scratch{}, imageCopy{within: true, reflinks: true}, source.String()},
	} {
		member, isImage := (&Copy{transfer: &transfer{scratch: test.scratch, source: source}, contents: &test.of}).Image()
		require.True(t, isImage, "want: %s", name)

		_, err := p.NewGroupCopy(quotaOtherID, []*ImageCopy{member})
		require.ErrorIs(t, err, ErrNoGroupCopy, name)
		errtext.Require(t, err, test.want, name)
		errtext.Require(t, err, `pool "fake"`, name)
	}

	_, isImage := (&Copy{contents: &treeCopy{snapshots: true}}).Image()
	require.False(t, isImage, "want: the copy of a directory is in no group")
}

// TestAGroupIsCopiedFromTheDirectoryOfItsPool: another one may be mounted there.
func TestAGroupIsCopiedFromTheDirectoryOfItsPool(t *testing.T) {
	t.Parallel()

	p, _ := newQuotaPool(t)
	of := &transfer{scratch: p.scratch, source: imageOf(quotaOtherID)}
	image := &imageCopy{transfer: of}
	g := &GroupCopy{
		id: quotaID, members: []*ImageCopy{{&Copy{transfer: of, contents: image}, image}}, stored: p.Images, images: "images",
	}
	taken := filepath.Join(p.Path(), layout.Scratch, quotaID, "images")

	err := g.CopyData(t.Context())
	require.ErrorIs(t, err, fs.ErrNotExist, "want: there is no snapshot")
	errtext.Require(t, err, `pool "fake"`)

	require.NoError(t, os.MkdirAll(taken, directoryMode))
	err = g.CopyData(t.Context())
	require.ErrorIs(t, err, ErrNoGroupCopy, "want: it is another directory")
	errtext.Require(t, err, "images in the snapshot is another directory")

	// A snapshot has the same inode.
	require.NoError(t, os.Remove(taken))
	require.NoError(t, os.Rename(p.Images.root.Name(), taken))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, g.CopyData(ended), context.Canceled)
	require.ErrorIs(t, g.CopyData(t.Context()), ErrMissing, "want: the image is missing in the snapshot")
}
