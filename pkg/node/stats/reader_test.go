package stats_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/probe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/pkg/node/stats"
)

// TestAVolumeThatIsNotMountedHasNoUsage: where it is not mounted it is not found, and where that is unknown
// the call fails.
func TestAVolumeThatIsNotMountedHasNoUsage(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(directory, "target"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(directory, "file"), nil, 0o600))
	require.NoError(t, os.Symlink("target", filepath.Join(directory, "link")))

	log := slog.New(slog.DiscardHandler)
	dirs, err := mount.NewAllowedDirs(directory, "/")
	require.NoError(t, err)
	without, err := capability.Without("VOLUME_CONDITION")
	require.NoError(t, err)

	unknown := errors.New("it is unknown whether the volume is in use")
	v := &staged.Volume{
		VolumeID: "01890000-0000-7000-8000-000000000001", StagingPath: "/staging",
		Parameters: volume.Parameters{Pool: "default", Backing: volume.BackingDirectory},
	}

	for name, test := range map[string]struct {
		path  string
		inUse error
		want  error
	}{
		"nothing is mounted":   {filepath.Join(directory, "target"), nil, errdefs.ErrNotFound},
		"it is gone":           {filepath.Join(directory, "gone"), nil, errdefs.ErrNotFound},
		"its directory is":     {filepath.Join(directory, "gone", "target"), nil, errdefs.ErrNotFound},
		"in a file":            {filepath.Join(directory, "file", "target"), nil, errdefs.ErrNotFound},
		"behind a symlink":     {filepath.Join(directory, "link", "target"), nil, errdefs.ErrNotFound},
		"another mount":        {"/proc", nil, errdefs.ErrNotFound},
		"no absolute path":     {"target", nil, errdefs.ErrUnavailable},
		"its use is not known": {filepath.Join(directory, "target"), unknown, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			reader := stats.New(stats.Config{
				Ways: access.New(access.NewShared(access.Config{Dirs: dirs}), nil), Observer: observe.New(dirs, nil), Prober: probe.New(probe.Config{Memory: probe.NewMemory(), Log: log}),
				Dirs: dirs, Capabilities: without,
				Volumes: volumes(func(id, path string) (*staged.Volume, error) {
					require.Equal(t, v.VolumeID+" "+test.path, id+" "+path, "want: the volume and path of the call")

					return v, test.inUse
				}),
			})

			// More often than walks are in the pool at once: what failed is over.
			for range pool.MaxInPool + 1 {
				usages, condition, err := reader.Read(t.Context(), v.VolumeID, test.path)
				require.ErrorIs(t, err, test.want)
				require.Empty(t, usages, "want: no usage without the volume")
				require.Nil(t, condition, "want: no condition without the volume")
			}
		})
	}
}

// volumes stands in for the records.
type volumes func(id, path string) (*staged.Volume, error)

func (v volumes) At(id, path string) (*staged.Volume, error) { return v(id, path) }
