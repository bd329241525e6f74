package embedded

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
)

// TestAForeignMountIsNotThePool: something that is not its image is mounted at its path.
func TestAForeignMountIsNotThePool(t *testing.T) {
	t.Parallel()

	const loopMajor, diskMajor = 7, 8

	for name, point := range map[string]mount.Point{
		"a disk":             {Major: diskMajor, FSType: "xfs", Root: "/", Source: "/dev/sda"},
		"another filesystem": {Major: loopMajor, FSType: "ext4", Root: "/"},
		"a subdirectory":     {Major: loopMajor, FSType: "xfs", Root: "/images"},
	} {
		_, err := (&mounter{host: host{Options: Options{Directory: "/pool"}}}).verifyMount(point, nil)
		require.ErrorIs(t, err, ErrForeign, name)
	}
}

// TestImagesAreComparedByTheirPaths where the device may not be queried: a path that does not exist
// here is one of another mount namespace.
func TestImagesAreComparedByTheirPaths(t *testing.T) {
	t.Parallel()

	directory, other := t.TempDir(), t.TempDir()

	for _, path := range []string{
		filepath.Join(directory, layout.EmbeddedImage), filepath.Join(other, layout.EmbeddedImage), filepath.Join(directory, "other.img"),
	} {
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}

	require.NoError(t, os.Link(filepath.Join(directory, layout.EmbeddedImage), filepath.Join(directory, "link.img")))

	image, err := os.Open(filepath.Join(directory, layout.EmbeddedImage))
	require.NoError(t, err)

	s := &mounter{host: host{Options: Options{Directory: directory}}}

	for path, own := range map[string]bool{
		filepath.Join(directory, layout.EmbeddedImage): true,
		"/elsewhere/gone/" + layout.EmbeddedImage:      true,
		filepath.Join(other, layout.EmbeddedImage):     false,
		filepath.Join(directory, "other.img"):          false,
		filepath.Join(directory, "link.img"):           false,
		"/elsewhere/gone/other.img":                    false,
	} {
		err := s.comparePath(mount.Point{Path: filepath.Join(directory, "mounted")}, path, image)
		if own {
			require.NoError(t, err, path)
		} else {
			require.ErrorIs(t, err, ErrForeign, path)
		}
	}

	require.NoError(t, image.Close())
	require.ErrorIs(t, s.comparePath(mount.Point{}, filepath.Join(directory, layout.EmbeddedImage), image), os.ErrClosed)
}

// TestImageSizesAreMultiplesOfABlock of the device.
func TestImageSizesAreMultiplesOfABlock(t *testing.T) {
	t.Parallel()

	for size, want := range map[int64]int64{0: 0, 1: 4096, 4095: 4096, 4096: 4096, 4097: 8192} {
		require.Equal(t, want, roundUpToBlock(size), "of %d bytes", size)
	}
}

// TestAGrowthLeavesSpaceFree: a fixed part and a share of the new bytes.
func TestAGrowthLeavesSpaceFree(t *testing.T) {
	t.Parallel()

	for bytes, want := range map[int64]int64{0: 16 << 20, 1 << 30: 17 << 20, 1 << 40: 1040 << 20} {
		require.Equal(t, want, spaceToGrow(bytes), "want: the space to grow by %d bytes", bytes)
	}
}

// TestAFullHostIsNoCause unless it is known to be full.
func TestAFullHostIsNoCause(t *testing.T) {
	t.Parallel()

	directory, err := os.Open(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, directory.Close())

	h := &host{directory: directory}
	require.Equal(t, os.ErrInvalid, h.explainFullHost(os.ErrInvalid), "want: a host whose space is unknown changes no error")
}

// TestAShutDownFilesystemNeedsPrivilege to be mounted again.
func TestAShutDownFilesystemNeedsPrivilege(t *testing.T) {
	t.Parallel()
	require.ErrorIs(t, (&mounter{}).unmountAfterShutdown(t.Context()), ErrPrivilege)
}

// TestQuotasAreLeftOut only where the kernel has none, which refuses their flag.
func TestQuotasAreLeftOut(t *testing.T) {
	t.Parallel()

	with, without := []string{"discard", "prjquota"}, []string{"discard"}

	for _, test := range []struct {
		flag   string
		answer error
		want   [][]string
	}{
		{"prjquota", nil, [][]string{with}},
		{"prjquota", unix.EIO, [][]string{with}},
		{"prjquota", unix.EINVAL, [][]string{with, without}},
		{"", unix.EINVAL, [][]string{without}},
	} {
		var tried [][]string

		err := imageType{mountFlags: without, quotaFlag: test.flag}.withQuotas(func(flags []string) error {
			tried = append(tried, flags)

			return test.answer
		})
		require.Equal(t, test.answer, err, "want: the last answer of the kernel")
		require.Equal(t, test.want, tried, "want: the flags that are tried when the kernel answers %v", test.answer)
	}
}

// TestUnknownMountsAreReported, and taken for neither a mount nor none.
func TestUnknownMountsAreReported(t *testing.T) {
	t.Parallel()

	directory := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(directory, layout.EmbeddedImage), nil, 0o600))

	s, err := open(Options{Directory: directory, Bytes: 1})
	require.NoError(t, err)

	defer s.close()

	s.privileged = true
	s.target.Close()

	for name, search := range map[string]func() error{
		"find":   func() error { _, err := s.findOrMakeImage(t.Context()); return err },
		"make":   func() error { _, err := s.makeIfWanted(t.Context()); return err },
		"adopt":  func() error { _, err := s.adoptMount(t.Context(), nil); return err },
		"locate": func() error { _, _, _, err := s.mountedImage(); return err },
		"close":  func() error { return s.unmount(t.Context()) },
	} {
		require.ErrorIs(t, search(), unix.EBADF, "want: %s reports that the mounts are unknown", name)
	}
}
