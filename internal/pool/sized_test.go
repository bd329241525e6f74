package pool_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// TestSizedAtReportsEachOwnWrite: it watches an image as a node does, which distinguishes its own
// writes from foreign ones.
func TestSizedAtReportsEachOwnWrite(t *testing.T) {
	t.Parallel()

	const size = 1 << 20

	directory := t.TempDir()
	place := openPool(t, directory)

	id := volume.NewID()
	require.NoError(t, place.Images.Create(id, size, true))
	require.Zero(t, place.Images.LastResized(id), "want: a new image has not been resized")

	watcher, err := fsnotify.NewWatcher()
	require.NoError(t, err)

	defer func() { require.NoError(t, watcher.Close()) }()

	image := filepath.Join(directory, "images", id+layout.ImageSuffix)
	require.NoError(t, watcher.Add(filepath.Dir(image)))

	for name, write := range map[string]func() error{
		"fill": func() error {
			return refill(place, id, true, func(path string) error { return os.WriteFile(path, []byte("filled"), 0o600) })
		},
		"grow": func() error { return place.Images.Grow(id, pool.Growth{To: 2 * size, Thick: true}) },
	} {
		began := time.Now()
		require.NoError(t, write(), name)

		for event := range watcher.Events {
			if event.Name == image && event.Has(fsnotify.Write) {
				break
			}
		}

		require.WithinRange(t, place.Images.LastResized(id), began, time.Now(), name)
	}
}
