package staged

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

const contentID = "01890000-0000-7000-8000-000000000001"

// inline returns a record that the driver writes.
func inline() *Inline {
	return &Inline{
		VolumeID: "csi-1", ContentID: contentID, SizeBytes: 1 << 20,
		Parameters: volume.Parameters{
			Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
		},
		Publication: Publication{TargetPath: "/target", Capability: volume.Capability{Mode: "SINGLE_NODE_WRITER"}},
	}
}

func TestInvalidInlineRecordsAreRefused(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(v *Inline){
		"a content's id that is a path": func(v *Inline) { v.ContentID = "../x" },
		"an impossible size":            func(v *Inline) { v.SizeBytes = -1 },
		"an id that is a path":          func(v *Inline) { v.VolumeID = "../x" },
		"no pool":                       func(v *Inline) { v.Parameters.Pool = "" },
		"no target":                     func(v *Inline) { v.Publication.TargetPath = "" },
	} {
		v := inline()
		require.NoError(t, v.Check())
		change(v)
		require.Error(t, v.Check(), name)
	}

	empty := inline()
	empty.SizeBytes = 0
	require.NoError(t, check("csi-1", empty))
	require.ErrorIs(t, check("csi-2", inline()), ErrRecord, "want: a record of another key is refused")

	v := inline().StagedVolume()
	require.Equal(t, "csi-1", v.VolumeID, "want: the volume has the CO's id")
	require.Equal(t, contentID, v.ObjectID(), "want: the pool's object is named by the content")
	require.Equal(t, NoSlot, v.Slot, "want: a volume without a device has no slot")
	require.True(t, v.Ephemeral, "want: the staged volume is marked as ephemeral")
	require.Equal(t, pool.Object{ID: contentID, Backing: volume.BackingImage}, inline().Object())
}

// TestProvisionedBytes follows the changes of the records.
func TestProvisionedBytes(t *testing.T) {
	t.Parallel()

	one, two := inline(), inline()
	two.VolumeID, two.ContentID, two.Parameters.Pool, two.SizeBytes = "csi-2", "content-2", "fast", 5

	v := &InlineRecords{Records: &Records[*Inline]{newest: map[string]*Inline{"csi-1": one, "csi-2": two}}}

	v.observe("csi-1", nil, one, false, true)
	v.observe("csi-2", nil, two, false, true)
	require.Equal(t, []int64{1 << 20, 5}, []int64{v.ProvisionedBytes("default"), v.ProvisionedBytes("fast")})

	for _, each := range []*Inline{one, two} {
		id, known := v.VolumeOf(each.ContentID)
		require.True(t, known, "want: the content has a volume")
		require.Equal(t, each.VolumeID, id)
	}

	v.observe("csi-1", one, two, true, true)
	v.observe("csi-2", two, nil, true, false)
	require.Equal(t, []int64{0, 5}, []int64{v.ProvisionedBytes("default"), v.ProvisionedBytes("fast")})

	delete(v.newest, "csi-1")

	_, known := v.VolumeOf(one.ContentID)
	require.False(t, known, "want: a content without a record has no volume")
}
