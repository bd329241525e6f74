package staged_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
)

const (
	volumeID = "01890000-0000-7000-8000-000000000001"
	writer   = "SINGLE_NODE_WRITER"
)

// example returns a record that the driver writes: a volume with two publications.
func example() *staged.Volume {
	mounted := volume.Capability{FSType: "ext4", Mode: writer}

	return &staged.Volume{
		VolumeID: volumeID, StagingPath: "/staging", Capability: mounted,
		Parameters: volume.Parameters{
			Pool: "default", Backing: volume.BackingImage, FSType: "ext4", Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
		},
		Publications: []staged.Publication{{TargetPath: "/a", Capability: mounted}, {TargetPath: "/b", Capability: mounted, ReadOnly: true}},
	}
}

func TestCheckRefusesInvalidRecords(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(v *staged.Volume)
		says   string
	}{
		"as the driver writes it":   {func(*staged.Volume) {}, ""},
		"no slot":                   {func(v *staged.Volume) { v.Slot = -1 }, ""},
		"an impossible slot":        {func(v *staged.Volume) { v.Slot = -2 }, "slot -2"},
		"an impossible size":        {func(v *staged.Volume) { v.FilledBytes = -1 }, "filledBytes -1"},
		"published twice at a path": {func(v *staged.Volume) { v.Publications[1].TargetPath = "/a" }, `twice at "/a"`},
		"persistent twice at a path": {func(v *staged.Volume) {
			v.Persistent = []staged.Publication{v.Publications[0], v.Publications[0]}
		}, `twice at "/a"`},
		"persistent, not published": {func(v *staged.Volume) { v.Persistent, v.Publications = v.Publications, nil }, ""},
		"published nowhere":         {func(v *staged.Volume) { v.Publications[0].TargetPath = "" }, "at no path"},
		"a publication of no mode":  {func(v *staged.Volume) { v.Publications[0].Capability.Mode = "" }, "access mode"},
		"an unknown mode":           {func(v *staged.Volume) { v.Capability.Mode = "ALL" }, "access mode ALL"},
		"no mode":                   {func(v *staged.Volume) { v.Capability.Mode = "" }, "access mode"},
		"no pool":                   {func(v *staged.Volume) { v.Parameters.Pool = "" }, "pool"},
		"an id that is a path":      {func(v *staged.Volume) { v.VolumeID = "../x" }, "../x"},
		"an unknown backing":        {func(v *staged.Volume) { v.Parameters.Backing = "tape" }, "tape"},
		"found mounted": {func(v *staged.Volume) {
			v.Capability, v.Publications = volume.Capability{}, nil
			v.Parameters = volume.Parameters{Backing: volume.BackingImage, FSType: "xfs"}
		}, ""},
		"found mounted, of an unknown backing": {func(v *staged.Volume) {
			v.Capability, v.Publications, v.Parameters = volume.Capability{}, nil, volume.Parameters{}
		}, "backing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			v := example()
			test.change(v)

			if test.says == "" {
				require.NoError(t, v.Check())
			} else {
				errtext.Require(t, v.Check(), test.says)
			}
		})
	}
}

func TestPublicationsAreFoundByTheirPath(t *testing.T) {
	t.Parallel()

	v := example()

	found, ok := v.PublicationAt("/b")
	require.True(t, ok, "want: the publication at /b is found")
	require.Equal(t, v.Publications[1], found)

	_, ok = v.PublicationAt("/c")
	require.False(t, ok, "want: no publication at another path")

	without := v.WithoutPublication("/a")
	require.Equal(t, v.Publications[1:], without.Publications)
	require.Equal(t, example(), v, "want: the record stays as it was")
	require.Equal(t, example(), v.WithoutPublication("/c"))
}

func TestDifferencesAreNamed(t *testing.T) {
	t.Parallel()

	v := example()
	existing, wanted := v.Publications[0], v.Publications[0]
	wanted.Capability.FSType = ""
	require.Empty(t, v.Differences(existing, wanted), "want: an open filesystem is the volume's")
	require.Empty(t, v.CapabilityDifferences(wanted.Capability), "want: an open filesystem is the volume's")

	wanted.ReadOnly = true
	require.Equal(t, "readonly false, not true", v.Differences(existing, wanted))

	wanted.Capability.FSType = "xfs"
	require.Equal(t, "fs_type ext4, not xfs", v.CapabilityDifferences(wanted.Capability))
}

// TestKindsDecideTheMount: what is mounted, and what may be written.
func TestKindsDecideTheMount(t *testing.T) {
	t.Parallel()

	type kinds struct{ direct, raw, mountedImage, readOnly, shared bool }

	for name, test := range map[string]struct {
		change func(v *staged.Volume)
		want   kinds
	}{
		"mounted":                      {func(*staged.Volume) {}, kinds{mountedImage: true}},
		"a directory":                  {func(v *staged.Volume) { v.Parameters.Backing = volume.BackingDirectory }, kinds{}},
		"raw block":                    {func(v *staged.Volume) { v.Capability.Block = true }, kinds{raw: true}},
		"direct":                       {func(v *staged.Volume) { v.Parameters.DirectAssign = true }, kinds{direct: true, raw: true}},
		"raw block of a direct volume": {func(v *staged.Volume) { v.Parameters.DirectAssign, v.Capability.Block = true, true }, kinds{raw: true}},
		"attached for reading":         {func(v *staged.Volume) { v.ReadOnly = true }, kinds{mountedImage: true, readOnly: true}},
		"a reader on one node":         {func(v *staged.Volume) { v.Capability.Mode = "SINGLE_NODE_READER_ONLY" }, kinds{mountedImage: true, readOnly: true}},
		"readers on many nodes":        {func(v *staged.Volume) { v.Capability.Mode = "MULTI_NODE_READER_ONLY" }, kinds{mountedImage: true, readOnly: true, shared: true}},
		"writers on many nodes":        {func(v *staged.Volume) { v.Capability.Mode = "MULTI_NODE_MULTI_WRITER" }, kinds{mountedImage: true}},
	} {
		v := example()
		test.change(v)
		require.Equal(t, test.want, kinds{v.IsDirect(), v.ExposesRawDevice(), v.IsMountedImage(), v.IsReadOnly(), v.SharedByReaders()}, name)
	}

	v := example()
	v.Capability.FSType, v.Parameters.FSType = "", "btrfs"
	require.Equal(t, "btrfs", v.FSType(), "the filesystem where the capability leaves it open")
	v.Capability.FSType = "xfs"
	require.Equal(t, "xfs", v.FSType())
}

// TestPersistentPublications are kept by the record of a volume that is not in use, and replaced by a newer one
// of their path. No change is one of the record that it is made of.
func TestPersistentPublications(t *testing.T) {
	t.Parallel()

	v := example()
	v.Device = &staged.Device{Number: 1, Sequence: 2}
	first, again := v.Publications[0], v.Publications[0]
	again.ReadOnly = true

	kept := v.WithPersistent(first).WithPersistent(v.Publications[1]).WithPersistent(again)
	require.Equal(t, []staged.Publication{v.Publications[1], again}, kept.Persistent)
	require.Empty(t, v.Persistent, "want: the record that was changed is as before")
	require.True(t, kept.IsPersistentAt("/a"), "want: the publication is persistent")
	require.False(t, kept.WithoutPersistent("/a").IsPersistentAt("/a"), "want: the publication is not persistent any more")
	require.True(t, kept.IsPersistentAt("/a"), "want: the record that was changed is as before")

	unused := kept.Unused()
	require.Equal(t, []bool{false, true, false}, []bool{kept.IsOnlyPersistent(), unused.IsOnlyPersistent(), v.Unused().IsOnlyPersistent()})
	require.Equal(t, kept.Persistent, unused.Persistent)
	require.Empty(t, unused.Publications, "want: an unused volume is not published")
	require.Nil(t, unused.Device, "want: an unused volume has no device")
	require.NoError(t, unused.Check())
}
