package pool

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/pool/removal"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// Errors of this package.
var (
	// ErrNoSpace says that the pool has no room for what was asked.
	ErrNoSpace = errdefs.New(errdefs.ErrResourceExhausted, "the pool has no space left")
	// ErrMissing says that a volume's image or directory is not in the pool.
	ErrMissing = errdefs.New(errdefs.ErrNotFound, "not in the pool")
	// ErrNotDirectory says that something else is where a pool, or a directory of it,
	// has to be.
	ErrNotDirectory = errors.New("it is not a directory")
	// ErrShrink says that an image is larger than what was asked.
	ErrShrink = errors.New("an image never shrinks")
	// ErrInProgress says that another process is making the same image or
	// directory at this moment.
	ErrInProgress = errdefs.New(errdefs.ErrAborted, "it is being made by another process")
	// ErrInUse says that an image is attached, here or on another node.
	ErrInUse = errdefs.New(errdefs.ErrFailedPrecondition, "the image is attached, here or on another node")
	// ErrNoLocks says that the pool's filesystem has no file locks, without which
	// two nodes could use one image.
	ErrNoLocks = errdefs.New(errdefs.ErrFailedPrecondition, "the pool's filesystem has no file locks (flock); put the pool on one that has, or mount it with locks")
)

const (
	// directoryMode keeps everyone but the driver's user out of the pool: images
	// hold other people's data.
	directoryMode = 0o700
	// volumeRootMode is what mkfs gives to the root of a filesystem.
	volumeRootMode = 0o755
	imageMode      = 0o600

	// statBlock is the unit of stat's blocks, whatever the filesystem's is.
	statBlock = 512
)

// Pool is one directory that holds volumes. It is safe for concurrent use.
type Pool struct {
	name, path                                          string
	images, directories, snapshots, scratch, attributes *os.Root
	// removing holds what is out of its place and not removed yet, by id.
	removing *os.Root
	// removals removes it in the background; nil removes it at once.
	removals *removal.Queue
	purging  keyedLocks
	// reflinks says whether images share blocks with their copies.
	reflinks bool
	// carrier is the sparse file that holds the pool's filesystem, "" for none.
	hostImage string
	// noCreate says that nothing is made in the directory.
	noCreate bool
	// lock is held by the pool's controller, nil in other processes.
	controllerLock *os.File
	// sized has the times of LastResized, by volume.
	resized sync.Map
	// identified says that the pool must have an identity, and identity which.
	identified bool
	identity   string

	// ephemeralMu guards ephemeral, the pool inside this one; nil until it is used.
	ephemeralMu sync.Mutex
	ephemeral   *Pool
}

// Option says more about a pool that is opened.
type Option func(*Pool)

// EmbeddedIn names, by the pools' names, the sparse files that hold the
// filesystems of pools: they have no more space than the file can get.
func EmbeddedIn(files map[string]string) Option { return func(p *Pool) { p.hostImage = files[p.name] } }

// WithRemovalQueue has the queue remove in the background what takes long or fails.
func WithRemovalQueue(queue *removal.Queue) Option { return func(p *Pool) { p.removals = queue } }

// NoCreate opens the pool for being looked at: no room is made that is missing,
// and a pool that is opened so can make nothing.
func NoCreate(p *Pool) { p.noCreate = true }

// Open opens the pool at directory, which is created where it is missing unless
// WithIdentity says which pool it has to be. Errors: ErrIdentity, ErrNotDirectory.
func Open(name, directory string, options ...Option) (*Pool, error) {
	absolute, err := filepath.Abs(directory)
	if err != nil {
		return nil, fmt.Errorf("pool %q at %s: %w", name, directory, err)
	}

	opened := &Pool{name: name, path: absolute, purging: keyedLocks{held: map[string]*keyedLock{}}}
	for _, option := range options {
		option(opened)
	}

	if opened.identified {
		if err := opened.identify(); err != nil {
			return nil, fmt.Errorf("open pool %q: %w", name, err)
		}
	}

	for room, root := range map[string]**os.Root{
		layout.Images: &opened.images, layout.Directories: &opened.directories, layout.Snapshots: &opened.snapshots,
		layout.Scratch: &opened.scratch, layout.Attributes: &opened.attributes, layout.Removing: &opened.removing,
	} {
		if *root, err = opened.openSubdirectory(room); err != nil {
			return nil, errors.Join(err, opened.Close())
		}
	}

	if !opened.noCreate {
		opened.reflinks = opened.probeReflinks()
	}

	return opened, nil
}

// openSubdirectory returns nil for a room that is missing and that nobody may make.
func (p *Pool) openSubdirectory(room string) (*os.Root, error) {
	path := filepath.Join(p.path, room)

	if !p.noCreate {
		if err := p.createSubdirectory(room); err != nil {
			return nil, fmt.Errorf("make pool %q: %w", p.name, err)
		}
	}

	root, err := os.OpenRoot(path)
	if p.noCreate && errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented: no room
	}

	if err != nil {
		return nil, fmt.Errorf("open pool %q: %w", p.name, err)
	}

	return root, nil
}

// createSubdirectory makes a room that is missing, and the pool's directory. What root makes
// goes to the owner of the directory that it is in: a controller need not be root,
// the nodes beside it have to be, and any of them may be the first.
func (p *Pool) createSubdirectory(room string) error {
	if err := p.ensureDirectory(p.path); err != nil {
		return err
	}

	return p.ensureDirectory(filepath.Join(p.path, room))
}

// ensureDirectory makes a directory that is missing. One that cannot be examined is
// not taken for missing: mkdir would say that it exists, and not what is wrong.
func (p *Pool) ensureDirectory(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s: %w", path, ErrNotDirectory)
	}

	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(path, directoryMode)
	}

	if err != nil {
		return err //nolint:wrapcheck // the caller names the pool
	}

	return inheritOwner(filepath.Dir(path), filepath.Base(path))
}

// give leaves alone what is another's already, and what is in use.
func inheritOwner(directory, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}

	root, err := os.OpenRoot(directory)
	if err != nil {
		return err //nolint:wrapcheck // the caller names the pool
	}
	defer root.Close()

	above, err := statOwner(root, ".")
	if err != nil || above.Uid == 0 {
		return err
	}

	made, err := statOwner(root, name)
	if err != nil || made.Uid != 0 || made.Mode&unix.S_IFMT != unix.S_IFDIR {
		return err
	}

	if entries, err := fs.ReadDir(root.FS(), name); err != nil || len(entries) > 0 {
		return err //nolint:wrapcheck // as above
	}

	return root.Lchown(name, int(above.Uid), int(above.Gid)) //nolint:wrapcheck // as above
}

func statOwner(root *os.Root, name string) (*syscall.Stat_t, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller names the pool
	}

	found, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("whose %s is: %w", name, errors.ErrUnsupported)
	}

	return found, nil
}

// Name returns the pool's name.
func (p *Pool) Name() string { return p.name }

// Path returns the pool's absolute path.
func (p *Pool) Path() string { return p.path }

// VolumeDirectories returns the absolute paths of the directories whose entries are the
// volumes: the images', and the directories'.
func (p *Pool) VolumeDirectories() []string { return []string{p.images.Name(), p.directories.Name()} }

// Close gives the pool's file descriptors back, and the pool to another
// controller.
func (p *Pool) Close() error {
	failures := []error{p.unlock()}

	p.ephemeralMu.Lock()
	defer p.ephemeralMu.Unlock()

	if p.ephemeral != nil {
		failures = append(failures, p.ephemeral.Close())
		p.ephemeral = nil
	}

	for _, root := range []*os.Root{p.images, p.directories, p.snapshots, p.scratch, p.attributes, p.removing} {
		if root != nil {
			failures = append(failures, root.Close())
		}
	}

	return errors.Join(failures...)
}

// VolumePath returns the absolute path of a volume's image or directory, for
// messages and for tools that take a path.
func (p *Pool) VolumePath(id string, backing volume.Backing) string {
	return p.place(Object{ID: id, Backing: backing})
}

// writable opens a file that never gets a name, so that nothing is left
// whatever happens.
func (p *Pool) checkWritable() error {
	file, err := p.scratch.OpenFile(".", unix.O_TMPFILE|os.O_WRONLY, imageMode)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.Access(filepath.Join(p.path, layout.Scratch), unix.W_OK)
		if err == nil {
			return nil
		}
	}

	if err != nil {
		return fmt.Errorf("pool %q at %s is not writable: %w", p.name, p.path, err)
	}

	_ = file.Close()

	return nil
}

// spaceError names the pool in an error that says it is full, and leaves any
// other as it is.
func (p *Pool) spaceError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("pool %q at %s: %w: %w", p.name, p.path, ErrNoSpace, err)
	}

	return err
}

func (p *Pool) notFoundError(object string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w %q at %s", object, ErrMissing, p.name, p.path)
	}

	return fmt.Errorf("%s in pool %q: %w", object, p.name, err)
}

// checkID is the last line of defence: whoever calls has looked at the id
// already, but a path is made of it here.
func checkID(id string) error {
	if !volume.IsID(id) {
		return fmt.Errorf("%q: %w", id, volume.ErrInvalidID)
	}

	return nil
}

func blocksToBytes(blocks uint64, blockSize int64) int64 {
	if blockSize <= 0 || blocks > uint64(math.MaxInt64/blockSize) {
		return math.MaxInt64
	}

	return int64(blocks) * blockSize
}

// allocatedBytes says how much space a file takes in the pool.
func allocatedBytes(info fs.FileInfo) int64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return math.MaxInt64
	}

	return stat.Blocks * statBlock
}
