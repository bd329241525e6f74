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

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/internal/pool/quota"
	"github.com/touchstone-csi/touchstone/internal/pool/removal"
)

// Errors of this package.
var (
	// ErrNoSpace is returned if the pool has too little free space for a request.
	ErrNoSpace = errdefs.New(errdefs.ErrResourceExhausted, "the pool has no space left")
	// ErrMissing is returned if a volume's image or directory is not in the pool.
	ErrMissing = errdefs.New(errdefs.ErrNotFound, "not in the pool")
	// ErrNotDirectory is returned if the path of a pool, or of one of its directories, is not a
	// directory.
	ErrNotDirectory = errors.New("it is not a directory")
	// ErrShrink is returned if an image is larger than requested.
	ErrShrink = errors.New("an image never shrinks")
	// ErrTruncated is returned if an image is shorter than its record says: data is lost. Growing or
	// copying it would hide that behind zeros.
	ErrTruncated = errdefs.New(errdefs.ErrFailedPrecondition,
		"the image was truncated and data is lost; restore a snapshot, or put the image back")
	// ErrInProgress is returned if another process is making the same object.
	ErrInProgress = errdefs.New(errdefs.ErrAborted, "it is being made by another process")
	// ErrInUse is returned if an image is attached, on this or another node.
	ErrInUse = errdefs.New(errdefs.ErrFailedPrecondition, "the image is attached, here or on another node")
	// ErrNoLocks is returned if the pool's filesystem has no file locks, without which two nodes
	// could use one image.
	ErrNoLocks = errdefs.New(errdefs.ErrFailedPrecondition,
		"the pool's filesystem has no file locks (flock); put the pool on one that has, or mount it with locks")
)

const (
	// directoryMode keeps other users out of the pool: images hold the data of volumes.
	directoryMode = 0o700
	// volumeRootMode is what mkfs gives to the root of a filesystem.
	volumeRootMode = 0o755
	imageMode      = 0o600

	// statBlock is the unit of stat's blocks, whatever the filesystem's is.
	statBlock = 512
)

// Pool is one directory that holds volumes. It is safe for concurrent use.
type Pool struct {
	name, path                                       string
	images, directories, snapshots, scratch, mutable *os.Root
	// removing holds discarded directories until they are removed, by id.
	removing *os.Root
	// removals removes them in the background; nil removes them at once.
	removals *removal.Queue
	purging  keyedLocks
	unsynced unsyncedRemovals
	// quotas makes, limits and removes the directories of volumes and snapshots.
	quotas quota.Directories
	// reflinks is true if images share blocks with their copies.
	reflinks bool
	// hostImage is the sparse file with the pool's filesystem, empty if there is none.
	hostImage string
	// noCreate means that no directory is created.
	noCreate bool
	// lock is held by the pool's controller, nil in other processes.
	controllerLock *os.File
	// resized has the times of LastResized, by volume.
	resized sync.Map
	// evaded has the times at which volumes were last found to have evaded their limits.
	evaded sync.Map
	// identified means that the pool must have an identity, namely identity.
	identified bool
	identity   string

	// ephemeralMu guards ephemeral, the pool inside this one; nil until it is used.
	ephemeralMu sync.Mutex
	ephemeral   *Pool
}

// Option configures a pool that is opened.
type Option func(*Pool)

// EmbeddedIn gives the sparse files that hold the filesystems of pools, by the pools' names: the
// capacity of such a pool is limited by the space for its file.
func EmbeddedIn(files map[string]string) Option { return func(p *Pool) { p.hostImage = files[p.name] } }

// WithRemovalQueue has the queue retry, in the background, removals that take long or fail.
func WithRemovalQueue(queue *removal.Queue) Option { return func(p *Pool) { p.removals = queue } }

// NoCreate opens the pool without creating missing directories, to inspect it. Such a pool can
// create nothing.
func NoCreate(p *Pool) { p.noCreate = true }

// Open opens the pool at directory. It creates a missing directory unless WithIdentity requires an
// identity. Errors: ErrIdentity, ErrNotDirectory.
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
		layout.Scratch: &opened.scratch, layout.Mutable: &opened.mutable, layout.Removing: &opened.removing,
	} {
		if *root, err = opened.openSubdirectory(room); err != nil {
			return nil, errors.Join(err, opened.Close())
		}
	}

	if !opened.noCreate {
		opened.reflinks = opened.probeReflinks()
	}

	if opened.quotas, err = quota.Open(opened.path, opened.noCreate); err != nil {
		return nil, errors.Join(fmt.Errorf("open pool %q: %w", name, err), opened.Close())
	}

	return opened, nil
}

// openSubdirectory returns nil for a missing directory that may not be created.
func (p *Pool) openSubdirectory(room string) (*os.Root, error) {
	path := filepath.Join(p.path, room)

	if !p.noCreate {
		if err := p.createSubdirectory(room); err != nil {
			return nil, fmt.Errorf("make pool %q: %w", p.name, err)
		}
	}

	root, err := os.OpenRoot(path)
	if p.noCreate && errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented: no directory
	}

	if err != nil {
		return nil, fmt.Errorf("open pool %q: %w", p.name, err)
	}

	return root, nil
}

// createSubdirectory creates a missing subdirectory, and the pool's directory. What root creates is
// given to the owner of the parent directory: a controller need not run as root, nodes beside it
// must, and either may be the first.
func (p *Pool) createSubdirectory(room string) error {
	if err := p.ensureDirectory(p.path); err != nil {
		return err
	}

	return p.ensureDirectory(filepath.Join(p.path, room))
}

// ensureDirectory creates a missing directory. It calls stat first, because the error of mkdir on a
// path that cannot be examined is only EEXIST.
func (p *Pool) ensureDirectory(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s: %w", path, ErrNotDirectory)
	}

	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(path, directoryMode)
	}

	if err != nil {
		return err
	}

	return inheritOwner(filepath.Dir(path), filepath.Base(path))
}

// inheritOwner gives an empty directory of root to the owner of its parent.
func inheritOwner(directory, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}

	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
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
		return err
	}

	return root.Lchown(name, int(above.Uid), int(above.Gid))
}

func statOwner(root *os.Root, name string) (*syscall.Stat_t, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
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

// VolumeDirectories returns the absolute paths of the directories that contain volumes: those of
// images and of directories.
func (p *Pool) VolumeDirectories() []string { return []string{p.images.Name(), p.directories.Name()} }

// Close closes the pool's file descriptors and releases the controller's lock.
func (p *Pool) Close() error {
	failures := []error{p.unlock()}

	p.ephemeralMu.Lock()
	defer p.ephemeralMu.Unlock()

	if p.ephemeral != nil {
		failures = append(failures, p.ephemeral.Close())
		p.ephemeral = nil
	}

	for _, root := range []*os.Root{p.images, p.directories, p.snapshots, p.scratch, p.mutable, p.removing} {
		if root != nil {
			failures = append(failures, root.Close())
		}
	}

	if p.quotas != nil {
		failures = append(failures, p.quotas.Close())
	}

	return errors.Join(failures...)
}

// VolumePath returns the absolute path of a volume's image or directory, for messages and for tools
// that take a path.
func (p *Pool) VolumePath(id string, backing volume.Backing) string {
	return p.ObjectPath(Object{ID: id, Backing: backing})
}

// checkWritable creates a file without a name, so that nothing is left after a crash.
func (p *Pool) checkWritable() error {
	file, err := p.scratch.OpenFile(".", unix.O_TMPFILE|os.O_WRONLY, imageMode)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.Access(filepath.Join(p.path, layout.Scratch), unix.W_OK)
	}

	if err != nil {
		return fmt.Errorf("pool %q at %s is not writable: %w", p.name, p.path, err)
	}

	_ = file.Close() // nil without O_TMPFILE

	return nil
}

// ExplainToolFailure returns the error of a program that wrote into the pool, as ErrNoSpace if the pool
// is full. Not all programs report that: mkfs.btrfs says "Input/output error".
func (p *Pool) ExplainToolFailure(err error) error {
	const nothing = 1 << 20 // a filesystem keeps some blocks for its own metadata

	whole, used, statErr := space(p.path)
	if err != nil && statErr == nil && whole.Total-used < nothing {
		err = fmt.Errorf("%w: %w", unix.ENOSPC, err)
	}

	return p.spaceError(err)
}

// spaceError wraps ENOSPC and EDQUOT in ErrNoSpace with the name of the pool.
func (p *Pool) spaceError(err error) error {
	if errors.Is(err, ErrNoSpace) {
		return err
	}

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

// checkID validates an id before a path is made of it; callers have validated it as well.
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

// allocatedBytes returns the space that a file takes in the pool.
func allocatedBytes(info fs.FileInfo) int64 {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return math.MaxInt64
	}

	return stat.Blocks * statBlock
}
