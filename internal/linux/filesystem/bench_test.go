package filesystem_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

func BenchmarkMake(b *testing.B) {
	for _, name := range filesystem.Names() {
		b.Run(name, func(b *testing.B) {
			fs := byName(b, name)

			for b.Loop() {
				image := newImage(b, 1<<30)
				require.NoError(b, fs.Make(b.Context(), image.Name(), filesystem.MakeOptions{}))
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, name := range filesystem.Names() {
		b.Run(name, func(b *testing.B) {
			fs := byName(b, name)
			image := newFilesystem(b, fs, 1<<30)

			for b.Loop() {
				_, err := fs.Check(b.Context(), image.Name())
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkReadErrors(b *testing.B) {
	needRoot(b)

	for _, name := range filesystem.Names() {
		b.Run(name, func(b *testing.B) {
			fs := byName(b, name)
			use := mount(b, fs, newFilesystem(b, fs, imageSize), loop.AttachOptions{})
			root := use.openToRead(b)

			for b.Loop() {
				_, err := filesystem.ReadErrors(name, use.device.Number, root)
				require.NoError(b, err)
			}
		})
	}
}
