package vm_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/projectquota"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/test/tenant"
)

// TestFilesReturnToTheirProject has the owner of files move them to other projects, as chattr -p does.
func TestFilesReturnToTheirProject(t *testing.T) {
	const written int64 = 4 * mib

	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			inMachine(t)

			disk := mountQuotaDisk(t, fsType)
			p, err := pool.Open("default", disk, pool.Options{})
			require.NoError(t, err)

			defer p.Close()

			ids, paths := [2]string{newID(t), newID(t)}, [2]string{}
			for i, id := range ids {
				require.NoError(t, p.Directories.Create(id, 16*mib, false))
				paths[i] = p.ObjectPath(pool.Object{ID: id, Backing: volume.BackingDirectory})
				tenant.Own(t, paths[i])
			}

			own, other := projectOf(t, paths[0]), projectOf(t, paths[1])
			sweep := func() []string {
				evaded, err := p.Sweep(t.Context())
				require.NoError(t, err)

				return evaded
			}
			used := func(id string) int64 {
				usage, limited, err := p.Directories.Quota(id)
				require.NoError(t, err)
				require.True(t, limited, "want: the directory has a limit")

				return usage.Bytes
			}

			require.Empty(t, sweep(), "want: no limit is evaded")

			// A file in another volume's project, one in none, and a directory that gives none to its files.
			require.NoError(t, tenant.Call(t, paths[0], func(path string) error {
				for name, project := range map[string]uint32{"other": other, "none": 0, "directory": 0} {
					if err := escape(filepath.Join(path, name), project, written); err != nil {
						return err
					}
				}

				return nil
			}))
			require.GreaterOrEqual(t, used(ids[1]), written, "want: the written bytes count for the other project")

			require.Equal(t, []string{ids[0]}, sweep())
			require.InDelta(t, 3*written, used(ids[0]), quotaSlack, "want: the bytes count again for the directory that has them")
			require.InDelta(t, 0, used(ids[1]), quotaSlack, "want: the other directory has none of the bytes")
			require.Positive(t, p.Directories.LimitEvadedFor(ids[0]), "want: the evaded limit is reported")
			require.Zero(t, p.Directories.LimitEvadedFor(ids[1]), "want: the other directory has not evaded its limit")
			require.Empty(t, sweep(), "want: the evaded limit is reported once")

			// The directory of the volume itself.
			require.NoError(t, tenant.Call(t, paths[0], func(path string) error { return join(path, other) }))
			require.Equal(t, []string{ids[0]}, sweep())
			require.Equal(t, own, projectOf(t, paths[0]), "want: the directory is in its own project again")

			for _, id := range ids {
				require.NoError(t, p.Remove(t.Context(), pool.Object{ID: id, Backing: volume.BackingDirectory}))
			}

			requireNoProjects(t, disk)
		})
	}
}

// escape makes a file in a project, or one in a directory of that name if the project is 0.
func escape(path string, project uint32, bytes int64) error {
	if filepath.Base(path) == "directory" {
		if err := os.Mkdir(path, directoryMode); err != nil {
			return err
		}

		if err := join(path, project); err != nil {
			return err
		}

		directory, err := os.Open(path)
		if err != nil {
			return err
		}
		defer directory.Close()

		if err := projectquota.Leave(directory); err != nil {
			return err
		}

		return os.WriteFile(filepath.Join(path, "file"), make([]byte, bytes), 0o600)
	}

	if err := os.WriteFile(path, make([]byte, bytes), 0o600); err != nil {
		return err
	}

	return join(path, project)
}

// join moves a file to a project.
func join(path string, project uint32) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return err
	}

	_, err = projectquota.Return(file, project, info.IsDir())

	return err
}
