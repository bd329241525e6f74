package access_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
	"github.com/touchstone-csi/touchstone/test/loopsys"
)

// TestPoolIsNotServed calls what needs a pool that has failed.
func TestPoolIsNotServed(t *testing.T) {
	f := newFixtureOf(t, staged.Volume{Parameters: parametersOf(t, volume.BackingImage)}, loopsys.New(t, nil).Loops())
	directory := f.V.Clone()
	directory.Parameters = parametersOf(t, volume.BackingDirectory)

	ext4, err := filesystem.ByName(filesystem.Ext4, nil)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(f.Publication.TargetPath, 0o700))

	target, ctx := f.At(t, f.Publication.TargetPath), t.Context()

	require.NoError(t, f.Pools.Volumes.Fail("default", os.ErrPermission))

	for name, call := range map[string]func() error{
		"CheckStored":                func() error { return f.Pools.CheckStored(f.V) },
		"CheckStored of a directory": func() error { return f.Pools.CheckStored(directory) },
		"Expand of a directory": func() error {
			_, err := f.ways.For(directory).Expand(ctx, directory, f.V.StagingPath, nil)

			return err
		},
		"FormatIfBlank": func() error {
			_, err := f.ways.Filesystems.FormatIfBlank(ctx, f.V, ext4)

			return err
		},
		"Prepare": func() error { return f.ways.Filesystems.Prepare(ctx, f.V, ext4) },
		"the tree of an image": func() error {
			_, err := f.ways.Tree(ctx, f.V, mount.Options{})

			return err
		},
		"the tree of a directory": func() error {
			_, err := f.ways.Tree(ctx, directory, mount.Options{})

			return err
		},
		"the usage of a directory": func() error {
			_, err := f.ways.For(directory).Stats(ctx, directory, target)

			return err
		},
		"Tune":     func() error { return f.ways.Tune(ctx, f.V) },
		"LimitNew": func() error { return f.ways.Targets.LimitNew(ctx, f.Way, f.V, f.Publication) },
		"AttachRaw": func() error {
			_, err := f.devices.AttachRaw(ctx, f.V, false)

			return err
		},
		"Open": func() error {
			_, err := f.devices.Open(ctx, f.V)

			return err
		},
		"CheckLength":     func() error { return f.devices.CheckLength(f.V, []int{firstLoop}) },
		"DetachForgotten": func() error { return f.devices.DetachForgotten(ctx, f.V) },
	} {
		require.ErrorIs(t, call(), pool.ErrUnavailable, "want: the failure of the pool is returned: %s", name)
	}
}
