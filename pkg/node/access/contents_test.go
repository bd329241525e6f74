package access_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/errtext"
	"github.com/touchstone-csi/touchstone/test/rpccode"
)

var readers = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY.String()

// filesystemBytes returns the size of the filesystem on the volume's image.
func (l *life) filesystemBytes() int64 {
	l.t.Helper()

	ext4, err := filesystem.ByName(filesystem.Ext4, nil)
	require.NoError(l.t, err)

	bytes, err := ext4.SizeBytes(l.image())
	require.NoError(l.t, err)

	return bytes
}

// TestAFilesystemFillsItsImage has an image that is larger than its filesystem.
func TestAFilesystemFillsItsImage(t *testing.T) {
	const grown = 2 * size

	for name, test := range map[string]struct {
		direct bool
		change func(v *staged.Volume)
		want   int64
	}{
		"mounted":            {false, func(*staged.Volume) {}, grown},
		"for reading":        {false, func(v *staged.Volume) { v.ReadOnly = true }, grown},
		"for readers":        {false, func(v *staged.Volume) { v.Capability.Mode = readers }, size},
		"a copy for readers": {false, func(v *staged.Volume) { v.Copy, v.Capability.Mode = true, readers }, grown},
		"direct":             {true, func(*staged.Volume) {}, grown},
	} {
		t.Run(name, func(t *testing.T) {
			l := formattedLife(t, test.direct)
			require.EqualValues(t, size, l.filesystemBytes(), "want: the filesystem is as large as its image")
			require.NoError(t, os.Truncate(l.imagePath(), grown))
			l.change(test.change)

			require.NoError(t, l.Stage(t))

			if test.direct {
				require.EqualValues(t, grown, l.V.FilledBytes, "want: the guest has nothing to grow")
			}

			require.NoError(t, l.Way.Unstage(t.Context(), l.V))
			require.Equal(t, test.want, l.filesystemBytes())
		})
	}
}

// TestAnImageWithOtherContentIsNotStaged has images that do not hold the filesystem.
func TestAnImageWithOtherContentIsNotStaged(t *testing.T) {
	truncate := func(bytes int64) func(l *life) error {
		return func(l *life) error { return os.Truncate(l.imagePath(), bytes) }
	}
	blank := func(l *life) error {
		if err := os.Truncate(l.imagePath(), 0); err != nil {
			return err
		}

		return os.Truncate(l.imagePath(), size)
	}

	for name, test := range map[string]struct {
		put    func(l *life) error
		change func(v *staged.Volume)
		code   codes.Code
		says   string
	}{
		"truncated":             {truncate(size - 4096), func(*staged.Volume) {}, codes.FailedPrecondition, "its image is shorter"},
		"for another mount":     {truncate(size), func(v *staged.Volume) { v.Capability.FSType = "xfs" }, codes.FailedPrecondition, "it holds ext4, not xfs"},
		"blank for readers":     {blank, func(v *staged.Volume) { v.Capability.Mode = readers }, codes.FailedPrecondition, "can't be formatted"},
		"bad options":           {blank, func(v *staged.Volume) { v.Parameters.MkfsOptions = "--none" }, codes.InvalidArgument, "mkfsOptions"},
		"an unknown filesystem": {truncate(size), func(v *staged.Volume) { v.Capability.FSType = "tmpfs" }, codes.InvalidArgument, "volume_capability"},
	} {
		for kind, direct := range map[string]bool{"mounted": false, "direct": true} {
			t.Run(name+" "+kind, func(t *testing.T) {
				l := formattedLife(t, direct)
				require.NoError(t, test.put(l))
				l.change(test.change)

				// Not all of these records would be stored.
				err := l.Way.Stage(t.Context(), l.V, l.At(t, l.V.StagingPath))
				rpccode.Require(t, err, test.code)
				errtext.Require(t, err, test.says)
				require.Equal(t, []string{"failure"}, l.spy.taken(), "want: nothing was attached")
				require.NoDirExists(t, l.V.StagingPath)
			})
		}
	}
}

// TestTheUsageOfADirectoryIsThatOfItsFiles compares it with its files and the filesystem of the pool.
func TestTheUsageOfADirectoryIsThatOfItsFiles(t *testing.T) {
	f := newFixture(t, staged.Volume{Parameters: parametersOf(t, volume.BackingDirectory)})
	f.Store(t)
	require.NoError(t, f.Stage(t))

	at := f.At(t, f.V.StagingPath)
	before, err := f.Way.Stats(t.Context(), f.V, at)
	require.NoError(t, err)

	const content = 1 << 20

	require.NoError(t, os.WriteFile(filepath.Join(f.V.StagingPath, "file"), make([]byte, content), 0o600))

	now, err := f.Way.Stats(t.Context(), f.V, at)
	require.NoError(t, err)

	if before.Usage.Bytes.Total == 1<<30 {
		t.Skip("the filesystem of temporary files limits directories")
	}

	require.GreaterOrEqual(t, now.Usage.Bytes.Used, before.Usage.Bytes.Used+content, "want: the file is counted")
	require.Less(t, now.Usage.Bytes.Used, before.Usage.Bytes.Used+2*content, "want: only the file is counted")
	require.Equal(t, before.Usage.Inodes.Used+1, now.Usage.Inodes.Used, "want: the file is counted")

	for _, stats := range []access.Stats{before, now} {
		require.Equal(t, mount.Usage{
			Bytes:      mount.Amount{Total: stats.Usage.Bytes.Used + stats.Filesystem.Bytes.Available, Used: stats.Usage.Bytes.Used, Available: stats.Filesystem.Bytes.Available},
			Inodes:     mount.Amount{Total: stats.Usage.Inodes.Used + stats.Filesystem.Inodes.Available, Used: stats.Usage.Inodes.Used, Available: stats.Filesystem.Inodes.Available},
			Filesystem: stats.Filesystem.Filesystem,
		}, stats.Usage)
	}

	require.NoError(t, f.Way.Unstage(t.Context(), f.V))
}
