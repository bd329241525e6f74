package removal_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/test/harness"
	"github.com/touchstone-csi/touchstone/test/leftover"
)

// TestOrphansAtTheStart: of the images and directories that the state does not know, a
// start removes those that are empty, also those that the clock says are made later. It
// keeps any with data.
func TestOrphansAtTheStart(t *testing.T) {
	t.Parallel()

	d := harness.Start(t)
	d.Stop()
	d.Leaves("orphans with data", leftover.Entry)

	const (
		long   = "01900000-0000-7000-8000-00000000000" // of the year 2024
		future = "03bb2cc3-d800-7000-8000-000000000001"
	)

	images, directories := filepath.Join(d.Pool(), "images"), filepath.Join(d.Pool(), "directories")
	image := func(id, content string) string {
		path := filepath.Join(images, id+".img")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NoError(t, os.Truncate(path, harness.MiB))

		return path
	}
	directory := func(id string) string {
		path := filepath.Join(directories, id)
		require.NoError(t, os.Mkdir(path, 0o755))

		return path
	}

	withData, newer := image(long+"1", "data"), image(future, "")
	empty, emptyDirectory := image(long+"2", ""), directory(long+"3")
	withFile := filepath.Join(directory(long+"4"), "file")

	harness.WriteFile(t, withFile, "data")
	d.Restart(t)

	require.FileExists(t, withData, "an image with data that is not in the state")
	require.FileExists(t, withFile, "a file in a directory that is not in the state")
	require.NoFileExists(t, newer, "an empty image that was made before the clock was set back")
	require.NoFileExists(t, empty, "an empty image that is not in the state")
	require.NoDirExists(t, emptyDirectory, "an empty directory that is not in the state")
}
