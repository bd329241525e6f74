package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/flock"
	"github.com/touchstone-csi/touchstone/internal/linux/fork"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

// host is the directory of a pool, in the filesystem that carries its image.
type host struct {
	Options

	// root is the directory, and directory the same as a file, to be locked and synced.
	root      *os.Root
	directory *os.File
	// privileged says that this process may attach and mount.
	privileged bool
}

// mounter mounts the image in the directory of a pool.
type mounter struct {
	host

	target *mount.Target
	loops  *loop.Loops
	// kind is the filesystem of the image: that of a new one until a mount or a superblock has
	// shown another.
	kind imageType
}

// numbers is how many loop device numbers are tried, at the end of the kernel's
// range: those at its begin are the slots of volumes.
const numbers = 1024

// open opens the pool's directory. The caller closes the mounter, also after an error.
func open(options Options) (*mounter, error) {
	s := &mounter{
		host:  host{Options: options, privileged: privileged()},
		loops: loop.NewLoops(loop.LoopsOptions{First: loop.MaxNumber - numbers + 1}),
	}

	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}

	var err error
	if s.kind, err = typeByName(cmp.Or(options.Filesystem, DefaultFilesystem)); err != nil {
		return s, err
	}

	if s.root, err = os.OpenRoot(options.Directory); err != nil {
		return s, fmt.Errorf("open it: %w", err)
	}

	if s.directory, err = s.root.Open("."); err != nil {
		return s, fmt.Errorf("open it: %w", err)
	}

	allowed, err := mount.NewAllowedDirs(options.Directory)
	if err != nil {
		return s, err
	}

	s.target, err = allowed.Target(filepath.Join(filepath.Clean(options.Directory), layout.EmbeddedMountPoint))

	return s, err
}

func (s *mounter) close() {
	if s.target != nil {
		s.target.Close()
	}

	if s.root != nil {
		_ = errors.Join(s.directory.Close(), s.root.Close())
	}
}

func privileged() bool {
	var data [2]unix.CapUserData

	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])

	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// lock is held until close. It waits for another driver that makes or checks the image until ctx ends: no event
// reports the end of that.
func (h *host) lock(ctx context.Context) error {
	err := fork.RetryWhile(ctx, unix.EWOULDBLOCK, math.MaxInt, func() error { return flock.TryLock(h.directory, unix.LOCK_EX) })

	switch {
	case err == nil, flock.Unsupported(err):
		return nil // without locks it is up to the kernel, which mounts an image once
	case ctx.Err() != nil:
		return fmt.Errorf("wait for the driver that is at work on it: %w", err)
	default:
		return fmt.Errorf("lock it: %w", err)
	}
}

// openImage returns nil where there is none. An unprivileged process gets a
// descriptor that only identifies the file.
func (h *host) openImage() (*os.File, error) {
	// Examined before it is opened: opening a device or a pipe has effects.
	known, err := tree.OpenAt(h.directory, layout.EmbeddedImage, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // that there is none is no failure
	}

	if err != nil {
		return nil, err
	}

	info, err := known.Stat()
	if err == nil && !h.privileged && info.Mode().IsRegular() {
		return known, nil
	}
	defer known.Close()

	if err != nil {
		return nil, err
	}

	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file but %s: %w; remove it", known.Name(), info.Mode().Type(), ErrForeign)
	}

	// Through /proc it is the very same file.
	writable, err := os.OpenFile(tree.DescriptorPath(known), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", known.Name(), err)
	}

	return writable, nil
}

// findOrMakeImage returns the pool's image, made if it is wanted and missing, or nil where the
// directory is the pool.
func (s *mounter) findOrMakeImage(ctx context.Context) (*os.File, error) {
	image, err := s.openImage()
	if err != nil {
		return nil, err
	}

	if image == nil {
		return s.makeIfWanted(ctx)
	}

	if !s.privileged {
		return image, nil
	}

	// Once it is mounted, its bytes are the filesystem's business.
	_, mounted, err := s.target.Mounted()
	if err != nil {
		return nil, errors.Join(err, image.Close())
	}

	if !mounted {
		if image, err = s.usableImage(ctx, image); err != nil {
			return nil, err
		}
	}

	if err := s.refuseVolumes(); err != nil {
		return nil, errors.Join(err, image.Close())
	}

	return image, nil
}

// usableImage returns the image if it holds a filesystem of imageTypes, or a new one instead of a
// blank one. It closes what it does not return.
func (s *mounter) usableImage(ctx context.Context, image *os.File) (*os.File, error) {
	found, err := filesystem.Detect(image)
	if kind, unknown := typeByName(found); err == nil && unknown == nil {
		s.kind = kind

		return image, nil
	}
	defer image.Close()

	if err != nil {
		return nil, err
	}

	blank, err := filesystem.IsBlank(image)
	if err != nil {
		return nil, err
	}

	switch path := s.path(layout.EmbeddedImage); {
	case !blank && found == "":
		return nil, fmt.Errorf("%s holds data but no %s: %w, or its begin is overwritten; move it away, or repair it with %s",
			path, titles(), ErrForeign, findSuperblock(path))
	case !blank:
		return nil, fmt.Errorf("%s holds %s and no %s: %w; move it away", path, found, titles(), ErrForeign)
	case s.MustExist:
		return nil, fmt.Errorf("%s holds nothing: %w, which the state knows; put the image back", path, ErrForeign)
	case s.Bytes == 0:
		return nil, fmt.Errorf("%s holds nothing: %w; remove it, or give --pool-image-size to have it formatted", path, ErrForeign)
	}

	info, err := image.Stat()
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", image.Name(), err)
	}

	return s.format(ctx, max(info.Size(), s.Bytes))
}

// makeIfWanted makes the image of a directory that has none.
func (s *mounter) makeIfWanted(ctx context.Context) (*os.File, error) {
	_, mounted, err := s.target.Mounted()
	if err != nil {
		return nil, err
	}

	if mounted {
		return nil, fmt.Errorf("something is mounted at %s, but there is no %s: %w; unmount it, or put the image back",
			s.target.Path(), layout.EmbeddedImage, ErrForeign)
	}

	if s.Bytes == 0 || s.MustExist {
		return nil, nil //nolint:nilnil // the directory is the pool
	}

	instant, err := filecopy.Reflinks(s.Directory)
	if err != nil {
		return nil, fmt.Errorf("find out whether it can reflink: %w", err)
	}

	if instant {
		s.Log.InfoContext(ctx, "no embedded pool is made: the directory's filesystem can reflink", "pool", s.Directory)

		return nil, nil //nolint:nilnil // the directory is the pool
	}

	if err := s.refuseVolumes(); err != nil {
		return nil, err
	}

	if !s.privileged {
		return nil, s.needsPrivilege()
	}

	return s.format(ctx, s.Bytes)
}

func (s *mounter) needsPrivilege() error {
	return fmt.Errorf("%s is not mounted at %s: %w; start a driver of mode node or all, as root and "+
		"with --pool-image-size, on this pool first", layout.EmbeddedImage, s.target.Path(), ErrPrivilege)
}

// refuseVolumes refuses a directory with volumes that the image would hide.
func (h *host) refuseVolumes() error {
	for _, directory := range layout.VolumeDirectories() {
		name, err := h.firstEntry(directory)
		if err != nil {
			return fmt.Errorf("search for volumes in %s: %w", h.path(directory), err)
		}

		if name != "" {
			return fmt.Errorf("%s is in the way: %w; an ordinary pool with volumes stays one, so leave --pool-image-size out, "+
				"or move the volumes into the embedded pool (docs/embedded-pool.md)", h.path(filepath.Join(directory, name)), ErrForeign)
		}
	}

	return nil
}

// firstEntry returns the name of something in the directory, "" when there is nothing.
func (h *host) firstEntry(directory string) (string, error) {
	entries, err := fs.ReadDir(h.root.FS(), directory)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	if err != nil || len(entries) == 0 {
		return "", err
	}

	return entries[0].Name(), nil
}
