package staging_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/csiclient"
	"github.com/touchstone-csi/touchstone/test/conformance"
	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/namespace"
)

// TestMountFlagsTakeEffect has flags of the mount and of the filesystem, the same for
// staging and publication as Kubernetes passes them.
func TestMountFlagsTakeEffect(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	for name, test := range map[string]struct {
		flags []string
		shows string
	}{
		"of the mount":              {[]string{"noatime", "nodev"}, "noatime"},
		"of the filesystem":         {[]string{"commit=17"}, "commit=17"},
		"several in one":            {[]string{"nosuid,data=ordered,commit=18"}, "commit=18"},
		"options of mount(8) alone": {[]string{"defaults", "x-systemd.automount", "_netdev"}, "rw"},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			request := harness.MountRequest("ext4", 64*harness.MiB)
			request.VolumeCapabilities[0] = csiclient.MountCapability(harness.Writer, "ext4", test.flags...)
			claim := harness.NewVolume(t, d, request)
			harness.BringUp(t, d, claim)
			require.Contains(t, harness.MountOptions(t, claim.TargetPath), test.shows)
			conformance.Shows(t, "NodePublishVolume", "volume_capability.mount.mount_flags given", "the mount has the flags")
			harness.TakeDown(t, d, claim)
		})
	}

	for name, test := range map[string]struct {
		fsType string
		flag   string
	}{
		"unknown":                {"ext4", "nosuchflag"},
		"unknown with value":     {"ext4", "nosuchflag=hunter2"},
		"a bad value":            {"ext4", "commit=hunter2"},
		"another filesystem's":   {"xfs", "commit=5"},
		"another device for it":  {"ext4", "journal_path=/dev/hunter2"},
		"btrfs with other disks": {"btrfs", "device=/dev/hunter2"},
	} {
		t.Run(name, func(t *testing.T) {
			d := harness.Start(t)
			claim := harness.NewVolume(t, d, harness.MountRequest(test.fsType, 300*harness.MiB))
			good := claim.Capability
			claim.Capability = csiclient.MountCapability(harness.Writer, test.fsType, test.flag)

			err := d.Stage(t.Context(), claim)
			harness.RequireCode(t, err, codes.InvalidArgument, strings.Split(test.flag, "=")[0])
			require.NotContains(t, err.Error(), "hunter2")
			harness.RequireUnstaged(t, d, claim)

			// Nothing is left that would keep the right flags from being used.
			claim.Capability = good
			require.NoError(t, d.Stage(t.Context(), claim))
			require.NoError(t, d.Unstage(t.Context(), claim))
			harness.DeleteVolume(t, d, claim.VolumeID)
		})
	}
}

func TestMkfsOptionsTakeEffect(t *testing.T) {
	namespace.NeedRoot(t)
	t.Parallel()

	d := harness.Start(t)
	request := harness.MountRequest("ext4", 64*harness.MiB)
	request.Parameters = map[string]string{"mkfsOptions": "-L touchstone -m 7 -N 64"}
	claim := harness.NewVolume(t, d, request)
	harness.BringUp(t, d, claim)

	var stat unix.Statfs_t

	require.NoError(t, unix.Statfs(claim.TargetPath, &stat))
	require.LessOrEqual(t, stat.Files, uint64(1024), "want: the filesystem has the few inodes of its options")
	require.Greater(t, stat.Bfree-stat.Bavail, stat.Blocks/20, "want: the filesystem has the reserved blocks of its options")

	label := make([]byte, len("touchstone"))
	image, err := os.Open(harness.ImageOf(d, claim.VolumeID))
	require.NoError(t, err)
	_, err = image.ReadAt(label, 1024+0x78)
	require.NoError(t, err)
	require.NoError(t, image.Close())
	require.Equal(t, "touchstone", string(label))
}

// TestHostileMkfsOptions come by way of the volume_context, which a CO passes
// on unread.
func TestHostileMkfsOptions(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	victim := filepath.Join(harness.ForeignDirectory(t), "sub", "file")

	for name, test := range map[string]struct{ fsType, options string }{
		"another device":        {"ext4", victim},
		"a directory to read":   {"ext4", "-d " + filepath.Dir(victim)},
		"an undo file to write": {"ext4", "-z " + victim},
		"an external journal":   {"ext4", "-J device=" + victim},
		"end of options":        {"ext4", "-- " + victim},
		"pretend":               {"ext4", "-n"},
		"a prototype to read":   {"xfs", "-p " + victim},
		"another data file":     {"xfs", "-d file,name=" + victim},
		"another log":           {"xfs", "-l logdev=" + victim},
		"a root directory":      {"btrfs", "--rootdir " + filepath.Dir(victim)},
		"abbreviated":           {"btrfs", "--rootd=" + filepath.Dir(victim)},
		"a configuration":       {"xfs", "-c options=" + victim},
		"a panic on errors":     {"ext4", "-e panic"},
		"default mount options": {"ext4", "-E mount_opts=errors=panic"},
		"a UUID of its choice":  {"xfs", "-m uuid=00000000-0000-0000-0000-000000000001"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := harness.NewVolume(t, d, harness.MountRequest(test.fsType, 300*harness.MiB))
			claim.VolumeContext["mkfsOptions"] = test.options

			before := harness.Tree(t, filepath.Dir(victim))
			image := harness.ImageSum(t, harness.ImageOf(d, claim.VolumeID))

			harness.RequireCode(t, d.Stage(context.WithoutCancel(t.Context()), claim), codes.InvalidArgument)
			require.Equal(t, before, harness.Tree(t, filepath.Dir(victim)))
			require.Equal(t, image, harness.ImageSum(t, harness.ImageOf(d, claim.VolumeID)))
			harness.RequireUnstaged(t, d, claim)
		})
	}
}
