package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/filecopy"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
	"github.com/touchstone-csi/touchstone/internal/pool/tree"
)

const (
	// directoryMode keeps other users out of the pool: images hold the data of volumes.
	directoryMode = 0o700
	// volumeRootMode is what mkfs gives to the root of a filesystem.
	volumeRootMode = 0o755
	imageMode      = 0o600
)

// Pool is one directory that holds volumes. It is safe for concurrent use. The embedded parts are
// complete in themselves: none of them knows the pool.
type Pool struct {
	label
	identification
	controllerLock
	objects
	attributes
	*trash
	*scratch

	// Images and Directories are the volumes of each backing.
	Images      *Images
	Directories *Directories

	options   Options
	ephemeral ephemeral
}

// Options configure a pool that is opened. The zero value is a pool in an ordinary directory.
type Options struct {
	// HostImage is the sparse file that holds the filesystem of the pool, empty for a pool without one:
	// the capacity of such a pool is limited by the space for its file.
	HostImage string
	// Removals retries, in the background, removals that take long or fail. Without it each removal is
	// completed at once.
	Removals *removal.Queue
	// Identity, unless nil, is the one that the pool must have. The empty identity is for a pool that the
	// state does not have yet: Open then adopts the identity that it finds, or makes one.
	Identity *string
	// KeepQuotas opens the pool, to repair it, without turning on quotas.
	KeepQuotas bool
}

// Open opens the pool at directory. It creates a missing directory unless an identity is required. Errors:
// ErrIdentity, ErrNotDirectory.
func Open(name, directory string, options Options) (*Pool, error) {
	known, err := openIdentified(name, directory, options.Identity)
	if err != nil {
		return nil, fmt.Errorf("open pool %q: %w", name, err)
	}

	return open(known, options)
}

func open(known identification, options Options) (*Pool, error) {
	at := known.label

	stored, err := openObjects(at, label.makeSubdirectory, layout.Subdirectories()...)
	if err != nil {
		return nil, err
	}

	roots := stored.roots

	quotas, err := quota.Open(at.directory, options.KeepQuotas)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open pool %q: %w", at.name, err), stored.close())
	}

	removed := newTrash(stored, quotas, options.Removals)
	making := &scratch{label: at, root: roots[layout.Scratch], trash: removed}

	var reflinks bool

	// A pool that cannot be written holds no copies.
	_ = tree.InDirectory(making.root, func(directory *os.File) error {
		reflinks, err = filecopy.Reflinks(tree.DescriptorPath(directory))

		return err
	})

	return &Pool{
		label: at, identification: known, controllerLock: controllerLock{label: at}, objects: stored, trash: removed,
		attributes:  attributes{label: at, mutable: roots[layout.Mutable], volumes: stored},
		Images:      &Images{objects: stored, root: roots[layout.Images], scratch: making, reflinks: reflinks},
		Directories: &Directories{objects: stored, root: roots[layout.Directories], quotas: quotas},
		scratch:     making, options: options,
	}, nil
}

// labelOf returns the label of the pool in a directory, which it opens by a function.
func labelOf(name, directory string, open func(path string) (*os.Root, error)) (label, error) {
	l := label{name: name}

	var err error
	if l.path, err = filepath.Abs(directory); err == nil {
		l.directory, err = open(l.path)
	}

	return l, err
}

// makeDirectory opens the directory of a pool, and creates it if it is missing. It calls stat first, because
// the error of mkdir on a path that cannot be examined is only EEXIST.
func makeDirectory(path string) (*os.Root, error) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s: %w", path, ErrNotDirectory)
	}

	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(path, directoryMode)
	}

	if err != nil {
		return nil, err
	}

	root, err := os.OpenRoot(path)

	return inheritOwner(root, err)
}

// openSubdirectory opens a subdirectory of the pool without following a symlink. Errors: ErrNotDirectory.
func (l label) openSubdirectory(name string) (*os.Root, error) {
	info, err := l.directory.Lstat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%w, and no symlink is followed; make it one, or mount what it is to contain there", ErrNotDirectory)
	}

	if err != nil {
		return nil, fmt.Errorf("%s of pool %q at %s: %w", name, l.name, l.path, err)
	}

	return l.directory.OpenRoot(name)
}

// makeSubdirectory opens a subdirectory of the pool, and creates it if it is missing.
func (l label) makeSubdirectory(name string) (*os.Root, error) {
	_, err := l.directory.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = errdefs.Ignore(l.directory.Mkdir(name, directoryMode), fs.ErrExist)
	}

	if err != nil {
		return nil, fmt.Errorf("make %s of pool %q at %s: %w", name, l.name, l.path, err)
	}

	return inheritOwner(l.openSubdirectory(name))
}

// inheritOwner gives an empty directory of root that was opened to the owner of its parent: a controller
// need not run as root, nodes beside it must, and either may be the first. It closes the directory if that
// fails.
func inheritOwner(opened *os.Root, err error) (*os.Root, error) {
	if err != nil || os.Geteuid() != 0 {
		return opened, err
	}

	if err := tree.InDirectory(opened, func(directory *os.File) error {
		var above unix.Stat_t

		own, err := directory.Stat()
		if err == nil {
			err = unix.Fstatat(int(directory.Fd()), "..", &above, 0)
		}

		if err != nil || above.Uid == 0 || statOf(own).Uid != 0 {
			return err
		}

		if _, err := directory.Readdirnames(1); !errors.Is(err, io.EOF) {
			return err
		}

		return directory.Chown(int(above.Uid), int(above.Gid))
	}); err != nil {
		return nil, errors.Join(err, opened.Close())
	}

	return opened, nil
}

func statIn(root *os.Root, name string) (*syscall.Stat_t, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}

	return statOf(info), nil
}

// VolumeDirectories returns the absolute paths of the directories that contain volumes: those of
// images and of directories.
func (p *Pool) VolumeDirectories() []string {
	return []string{p.Images.root.Name(), p.Directories.root.Name()}
}

// Close closes the pool's file descriptors and releases the controller's lock.
func (p *Pool) Close() error {
	return errors.Join(p.unlock(), p.ephemeral.close(), p.close(), p.Directories.quotas.Close())
}

// Probe returns the reason why the pool cannot be used, or nil. It may block as long as the pool's
// filesystem does. Errors: ErrReplaced; ErrReadOnly, or ErrNoSpace, for a pool that can be read;
// any other error for one that cannot.
func (p *Pool) Probe() error {
	found, err := os.Stat(p.Images.root.Name())
	opened, openedErr := p.Images.root.Stat(".")

	if err := cmp.Or(err, openedErr); err != nil {
		return fmt.Errorf("stat pool %q at %s: %w", p.name, p.path, err)
	}

	if !os.SameFile(found, opened) {
		return fmt.Errorf("pool %q at %s: %w", p.name, p.path, ErrReplaced)
	}

	err = p.checkWritable()
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}

	return p.spaceError(err)
}

// RemoveStaleScratch removes what a crash left in scratch, except objects that another process is
// making, and the quotas of directories that do not exist any more.
func (p *Pool) RemoveStaleScratch(ctx context.Context) error {
	return errors.Join(p.removeStale(ctx), p.Directories.quotas.RemoveStale(ctx))
}
