package volume_test

import (
	"maps"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
)

// TestAccessModesDecideTheUse: which use each access mode of the spec allows, and which volumes can
// have it: an image, an image of a pool that several nodes reach, a directory of such a pool.
func TestAccessModesDecideTheUse(t *testing.T) {
	t.Parallel()

	type row struct{ singleNode, readerOnly, singleTarget, image, sharedImage, sharedDirectory bool }

	rows := map[csi.VolumeCapability_AccessMode_Mode]row{
		csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        {true, false, true, true, true, true},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   {true, true, true, true, true, true},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: {true, false, true, true, true, true},
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  {true, false, false, true, true, true},
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    {false, true, false, false, true, true},
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:  {false, false, false, false, false, true},
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   {false, false, false, false, false, true},
	}
	require.Len(t, rows, len(csi.VolumeCapability_AccessMode_Mode_name)-1, "all modes but unknown")

	image, directory := volume.Parameters{Backing: volume.BackingImage}, volume.Parameters{Backing: volume.BackingDirectory}

	for mode, want := range rows {
		c, err := volume.ParseCapability(&csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", VolumeMountGroup: "5"}},
		})
		require.NoError(t, err)
		require.Equal(t, volume.Capability{FSType: "xfs", MountGroup: "5", Mode: mode.String()}, c)
		require.Equal(t, mode, c.AccessMode())

		allows := func(p volume.Parameters, shared bool) bool {
			err := p.CheckCapability(c, shared)
			if err != nil {
				require.ErrorIs(t, err, volume.ErrCapability)
			}

			return err == nil
		}
		require.Equal(t, want, row{
			c.SingleNode(), c.ReaderOnly(), c.SingleTarget(), allows(image, false), allows(image, true), allows(directory, true),
		}, "%s", mode)
		require.Equal(t, want.singleNode, allows(directory, false), "%s of a directory that one node reaches", mode)

		c.MountFlags = []string{"noatime", `context="user:role:type:s0:c1,c2"`}
		require.Equal(t, want.image, allows(image, false), "%s of an image with an SELinux context", mode)
		require.ErrorIs(t, directory.CheckCapability(c, true), volume.ErrCapability, "%s of a directory with an SELinux context", mode)

		c.Block, c.FSType, c.MountFlags = true, "", nil
		require.Equal(t, want.image, allows(image, false), "%s of a block volume", mode)
		require.ErrorIs(t, directory.CheckCapability(c, true), volume.ErrCapability, "%s of a directory as a block device", mode)
	}
}

// TestUnsupportedCapabilitiesAreRefused: a part is missing, or unknown.
func TestUnsupportedCapabilitiesAreRefused(t *testing.T) {
	t.Parallel()

	mode := &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	mount := &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "fat"}}

	for name, given := range map[string]*csi.VolumeCapability{
		"none":           nil,
		"no access type": {AccessMode: mode},
		"no access mode": {AccessType: &csi.VolumeCapability_Block{}},
	} {
		_, err := volume.ParseCapability(given)
		require.ErrorIs(t, err, volume.ErrIncomplete, name)
	}

	bind := &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: []string{"bind"}}}

	for name, access := range map[string]*csi.VolumeCapability_Mount{"an unknown filesystem": mount, "a flag that no volume can have": bind} {
		_, err := volume.ParseCapability(&csi.VolumeCapability{AccessMode: mode, AccessType: access})
		require.ErrorIs(t, err, volume.ErrCapability, name)
		require.NotErrorIs(t, err, volume.ErrIncomplete, name)
	}

	require.NotEmpty(t, volume.FSTypes(), "the filesystems that a volume can have")
}

// TestIDsAreValidated: an id that was made is one, and no other text is.
func TestIDsAreValidated(t *testing.T) {
	t.Parallel()

	id := volume.NewID()
	require.True(t, volume.IsID(id), "%s is an id", id)
	require.NoError(t, volume.CheckID(id))

	for _, other := range []string{"", "vol-1", "{" + id + "}", "urn:uuid:" + id, "9b2f0a4e-2c1d-4f6e-8a3b-5c7d9e1f2a3b"} {
		require.False(t, volume.IsID(other), "%q is no id", other)
		require.NoError(t, volume.CheckID(other), "%q does no harm", other)
	}

	for _, harmful := range []string{"a/b", `a\b`, ".", "..", "a..b", "a\nb", "a\x00", "\xff"} {
		require.False(t, volume.IsID(harmful), "%q is no id", harmful)
		require.ErrorIs(t, volume.CheckID(harmful), volume.ErrInvalidID, "%q", harmful)
	}
}

// TestParametersAreParsed with each value of each, and repeated by the volume_context.
func TestParametersAreParsed(t *testing.T) {
	t.Parallel()

	defaults := volume.Parameters{
		Pool: volume.DefaultPool, Backing: volume.BackingImage, FSType: volume.DefaultFSType,
		Provisioning: volume.Thin, BlockSize: volume.DefaultBlockSize,
	}

	for name, test := range map[string]struct {
		given map[string]string
		want  func(p *volume.Parameters)
	}{
		"none":      {nil, func(*volume.Parameters) {}},
		"pool":      {map[string]string{volume.KeyPool: "fast"}, func(p *volume.Parameters) { p.Pool = "fast" }},
		"directory": {map[string]string{volume.KeyBacking: "directory"}, func(p *volume.Parameters) { p.Backing = volume.BackingDirectory }},
		"xfs":       {map[string]string{volume.KeyFSType: "xfs"}, func(p *volume.Parameters) { p.FSType = "xfs" }},
		"thick":     {map[string]string{volume.KeyProvisioning: "thick"}, func(p *volume.Parameters) { p.Provisioning = volume.Thick }},
		"512":       {map[string]string{volume.KeyBlockSize: "512"}, func(p *volume.Parameters) { p.BlockSize = volume.SmallBlockSize }},
		"4096":      {map[string]string{volume.KeyBlockSize: "4096"}, func(*volume.Parameters) {}},
		"mkfs":      {map[string]string{volume.KeyMkfsOptions: "-m 0"}, func(p *volume.Parameters) { p.MkfsOptions = "-m 0" }},
		"direct":    {map[string]string{volume.KeyDirectAssign: "true"}, func(p *volume.Parameters) { p.DirectAssign = true }},
	} {
		want := defaults
		test.want(&want)

		got, err := volume.ParseParameters(test.given)
		require.NoError(t, err, name)
		require.Equal(t, want, got, name)
		require.NoError(t, got.Check(), name)

		again, err := volume.ParseContext(got.Context())
		require.NoError(t, err, name)
		require.Equal(t, want, again, name)
		require.NoError(t, volume.Parameters{Backing: want.Backing, DirectAssign: want.DirectAssign}.CheckFound(), name)
	}

	for name, given := range map[string]map[string]string{
		"an unknown key":            {"colour": "red"},
		"another backing":           {volume.KeyBacking: "tape"},
		"another provisioning":      {volume.KeyProvisioning: "fat"},
		"a thick directory":         {volume.KeyBacking: "directory", volume.KeyProvisioning: "thick"},
		"another filesystem":        {volume.KeyFSType: "fat"},
		"another block size":        {volume.KeyBlockSize: "1024"},
		"a directory, directly":     {volume.KeyBacking: "directory", volume.KeyDirectAssign: "true"},
		"another consistency":       {volume.KeyConsistency: "some"},
		"a consistency in capitals": {volume.KeyConsistency: "None"},
	} {
		_, err := volume.ParseParameters(given)
		require.ErrorIs(t, err, volume.ErrParameter, name)

		_, _, err = volume.ParseEphemeral(given)
		require.ErrorIs(t, err, volume.ErrParameter, name)
	}

	for name, change := range map[string]func(p *volume.Parameters){
		"no pool":               func(p *volume.Parameters) { p.Pool = "" },
		"no backing":            func(p *volume.Parameters) { p.Backing = "" },
		"no provisioning":       func(p *volume.Parameters) { p.Provisioning = "" },
		"no filesystem":         func(p *volume.Parameters) { p.FSType = "" },
		"no block size":         func(p *volume.Parameters) { p.BlockSize = 0 },
		"a directory, directly": func(p *volume.Parameters) { p.Backing, p.DirectAssign = volume.BackingDirectory, true },
	} {
		changed := defaults
		change(&changed)
		require.ErrorIs(t, changed.Check(), volume.ErrParameter, name)
	}

	require.NoError(t, defaults.CheckFSType(volume.Capability{}))
	require.NoError(t, defaults.CheckFSType(volume.Capability{FSType: volume.DefaultFSType}))
	require.ErrorIs(t, defaults.CheckFSType(volume.Capability{FSType: "xfs"}), volume.ErrCapability)
}

// TestEphemeralParametersAreValidated: the size of an inline volume, and what it cannot have.
func TestEphemeralParametersAreValidated(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]int64{
		"": volume.DefaultEphemeralBytes, "64Mi": 64 << 20, "1": 1, "1152921504606846976": 1 << 60,
		"0": 0, "-1": 0, "1152921504606846977": 0, "much": 0, "64Xi": 0,
	} {
		given := map[string]string{volume.KeySize: text, volume.KeyPool: "fast"}
		before := maps.Clone(given)

		parameters, size, err := volume.ParseEphemeral(given)
		if want == 0 {
			require.ErrorIs(t, err, volume.ErrParameter, "size %q", text)
		} else {
			require.NoError(t, err, "size %q", text)
			require.Equal(t, "fast", parameters.Pool)
		}

		require.Equal(t, want, size, "size %q", text)
		require.Equal(t, before, given)
	}

	for _, given := range []map[string]string{{volume.KeyConsistency: "none"}, {volume.KeyDirectAssign: "true"}} {
		_, _, err := volume.ParseEphemeral(given)
		require.ErrorIs(t, err, volume.ErrParameter, "%v", given)
	}

	require.True(t, volume.IsEphemeral(map[string]string{volume.KeyEphemeral: "true"}), "want: it is ephemeral")
	require.False(t, volume.IsEphemeral(map[string]string{volume.KeyEphemeral: "false"}), "want: it is not ephemeral")
}

// TestValuesAreParsed: groups, limits of the size, parameters of snapshots.
func TestValuesAreParsed(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]uint32{"0": 0, "4294967294": 4294967294} {
		group, err := volume.Capability{MountGroup: text}.MountGroupID()
		require.NoError(t, err, text)
		require.Equal(t, want, group)
	}

	for _, text := range []string{"", "-1", "4294967295", "4294967296", "staff"} {
		_, err := volume.Capability{MountGroup: text}.MountGroupID()
		require.ErrorIs(t, err, volume.ErrCapability, "group %q", text)
	}

	require.Equal(t, volume.SizeByQuota, volume.SizeLimitOf(true))
	require.Equal(t, volume.SizeNotLimited, volume.SizeLimitOf(false))

	for limit, good := range map[volume.SizeLimit]bool{"": true, "quota": true, "none": true, "enforced": true, "some": false} {
		require.Equal(t, good, limit.Check() == nil, "limit %q", limit)
	}

	for name, given := range map[string]map[string]string{
		"filesystem": nil, "none": {volume.KeyConsistency: "none", "deletionPolicy": "Delete", volume.ReservedPrefix + "x": "y"},
	} {
		consistency, err := volume.ParseSnapshotParameters(given)
		require.NoError(t, err)
		require.EqualValues(t, name, consistency, "consistency of %v", given)
	}

	for _, given := range []map[string]string{{"colour": "red"}, {volume.KeyConsistency: "some"}} {
		_, err := volume.ParseSnapshotParameters(given)
		require.ErrorIs(t, err, volume.ErrParameter, "%v", given)
	}
}

// TestBackingDecidesWhatAVolumeHas of its own: an image has a device and a filesystem, what is none has neither.
func TestBackingDecidesWhatAVolumeHas(t *testing.T) {
	t.Parallel()

	for backing, want := range map[volume.Backing]struct{ device, filesystem bool }{
		volume.BackingImage: {true, true}, volume.BackingDirectory: {}, "": {},
	} {
		require.Equal(t, want.device, backing.HasDevice(), "want: the device of %q", backing)
		require.Equal(t, want.filesystem, backing.HasFilesystem(), "want: the filesystem of %q", backing)
	}
}
