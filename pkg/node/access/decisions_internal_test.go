package access

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/rpc"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

// TestWithQuota is the usage of a directory with a limit, in a filesystem that has less or more.
func TestWithQuota(t *testing.T) {
	t.Parallel()

	filesystem := mount.Usage{Bytes: mount.Amount{Total: 1000, Used: 900, Available: 100}, Inodes: mount.Amount{Total: 50, Used: 40, Available: 10}}

	for name, test := range map[string]struct {
		counted quota.Usage
		want    mount.Usage
	}{
		"the limit is nearer": {
			quota.Usage{Bytes: 60, LimitBytes: 80},
			mount.Usage{Bytes: mount.Amount{Total: 80, Used: 60, Available: 20}, Inodes: filesystem.Inodes},
		},
		"the filesystem is nearer": {
			quota.Usage{Bytes: 60, LimitBytes: 200},
			mount.Usage{Bytes: mount.Amount{Total: 200, Used: 60, Available: 100}, Inodes: filesystem.Inodes},
		},
		"more than the limit": {
			quota.Usage{Bytes: 90, LimitBytes: 80},
			mount.Usage{Bytes: mount.Amount{Total: 80, Used: 90}, Inodes: filesystem.Inodes},
		},
		"inodes are limited": {
			quota.Usage{Bytes: 60, LimitBytes: 80, Inodes: 3, LimitInodes: 4},
			mount.Usage{Bytes: mount.Amount{Total: 80, Used: 60, Available: 20}, Inodes: mount.Amount{Total: 4, Used: 3, Available: 1}},
		},
	} {
		require.Equal(t, test.want, withQuota(filesystem, test.counted), name)
	}
}

func TestACopyOfAStoppedFilesystemIsRefused(t *testing.T) {
	t.Parallel()

	writable, readOnly := &staged.Volume{}, &staged.Volume{Capability: volume.Capability{MountFlags: []string{"ro"}}}

	for name, test := range map[string]struct {
		v     *staged.Volume
		point mount.Point
		want  codes.Code
	}{
		"mounted for writing":                {writable, mount.Point{}, codes.OK},
		"an error has made it read-only":     {writable, mount.Point{SuperReadOnly: true}, codes.FailedPrecondition},
		"mounted for reading":                {readOnly, mount.Point{SuperReadOnly: true}, codes.OK},
		"an emergency":                       {readOnly, mount.Point{SuperOptions: []string{"emergency_ro"}}, codes.FailedPrecondition},
		"it has shut down":                   {writable, mount.Point{SuperOptions: []string{"shutdown"}}, codes.FailedPrecondition},
		"an option that has nothing to do":   {writable, mount.Point{SuperOptions: []string{"errors=remount-ro"}}, codes.OK},
		"read-only and mounted for that, rw": {&staged.Volume{Capability: volume.Capability{MountFlags: []string{"rw"}}}, mount.Point{SuperReadOnly: true}, codes.FailedPrecondition},
	} {
		rpccode.Require(t, rpc.Status(checkWritable(test.v, test.point)), test.want, name)
	}
}

// TestOnlyBlankImagesMayBeFormatted has images that may be formatted, and others.
func TestOnlyBlankImagesMayBeFormatted(t *testing.T) {
	t.Parallel()

	ext4, err := filesystem.ByName(filesystem.Ext4, nil)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		content string
		at      int64
		had     bool
		may     bool
		says    string
	}{
		"blank":                            {may: true},
		"blank, and had a filesystem":      {had: true, says: "its data is lost"},
		"data":                             {content: "data", at: 1 << 19, says: "it holds data"},
		"the wanted filesystem":            {content: "\x53\xef", at: 1024 + 56},
		"the wanted filesystem, which was": {content: "\x53\xef", at: 1024 + 56, had: true},
	} {
		image, err := os.Create(filepath.Join(t.TempDir(), "image"))
		require.NoError(t, err)
		require.NoError(t, image.Truncate(1<<20))

		if test.content != "" {
			_, err = image.WriteAt([]byte(test.content), test.at)
			require.NoError(t, err)
		}

		may, err := mayFormat(image, ext4, test.had)
		require.Equal(t, test.may, may, name)

		if test.says == "" {
			require.NoError(t, err, name)
		} else {
			errtext.Require(t, err, test.says, name)
		}

		require.NoError(t, image.Close())

		_, err = mayFormat(image, ext4, test.had)
		require.Error(t, err, "want: an image that cannot be read is not formatted: %s", name)
	}
}
