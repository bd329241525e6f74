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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/errdefs"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/pool/removal"
)

const (
	// maxLevels is how many directories of a tree are open at once. Deeper ones are
	// moved up first, so that any depth needs no more.
	maxLevels = 16
	// removeBatch is how many names of each open directory are in memory.
	removeBatch = 256
	// maxUnmovable bounds the open directories where none can be moved up: btrfs
	// renames no directory out of a subvolume.
	maxUnmovable = 256

	// From linux/fs.h.
	immutableFlag  = 0x10
	appendOnlyFlag = 0x20

	// quickly is how long Discard waits for a removal.
	discardWait = 2 * time.Second
)

// ErrMounted says that a mount below a directory keeps it from being removed.
var ErrMounted = errdefs.New(errdefs.ErrFailedPrecondition, "something is mounted there; unmount it")

// errNotEmpty is of a directory that lists no entries and can't be removed.
var errNotEmpty = errors.New("the directory is not empty, but lists no entries")

// movedNames are unique in this process and, starting with the time, over restarts.
var movedNames atomic.Int64 //nolint:gochecknoglobals // names are unique in the process, whatever the pool

func init() { movedNames.Store(time.Now().UnixNano()) } //nolint:gochecknoinits // a constant can't be the time

func movedName() string { return strconv.FormatInt(movedNames.Add(1), 10) }

// Remove removes an object, its attributes and what was left of making it. What
// is gone already is no error. It takes time in proportion to the number of files.
// Errors: ErrMounted, ctx's.
func (p *Pool) Remove(ctx context.Context, object Object) error {
	_, err := p.unlinkObject(object)
	if err == nil {
		err = p.purge(ctx, object.ID)
	}

	return p.removeError(object.String(), err)
}

func (p *Pool) removeError(object string, err error) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf("remove %s from pool %q: %w; the driver retries it until it succeeds", object, p.name, err)
}

// Discard is Remove for an object whose record goes at once: when it returns
// without an error the object is out of its place, and its space is given back
// then or, if that takes long or fails, in the background.
func (p *Pool) Discard(ctx context.Context, object Object) error {
	moved, err := p.unlinkObject(object)
	if err == nil && moved {
		err = p.purgeOrSchedule(ctx, object.ID)
	}

	if err != nil {
		return fmt.Errorf("discard %s in pool %q: %w", object, p.name, err)
	}

	return nil
}

// ResumeRemovals schedules what earlier processes have not removed completely.
func (p *Pool) ResumeRemovals(ctx context.Context) error {
	err := listIDs(ctx, p.removing, "", func(id string) error { return p.purgeOrSchedule(ctx, id) })
	if err != nil {
		return fmt.Errorf("resume removals in pool %q: %w", p.name, err)
	}

	return nil
}

// unlinkObject makes an object be in its place no more, and says whether anything of
// it is left to be purged.
func (p *Pool) unlinkObject(object Object) (moved bool, err error) {
	if err := checkID(object.ID); err != nil {
		return false, err
	}

	if !object.Snapshot {
		p.resized.Delete(object.ID)

		if err := p.removeAttributes(object.ID); err != nil {
			return false, err
		}
	}

	scratch, err := p.unlinkScratch(object.ID)
	if err != nil {
		return false, err
	}

	moved, err = p.moveToRemoving(p.parentOf(object), object.fileName(), object.ID)

	return moved || scratch, err
}

// dispose purges removing/<id> and returns when that is done or has taken a while:
// then it goes on in the background. A pool without a queue does it at once.
func (p *Pool) purgeOrSchedule(ctx context.Context, id string) error {
	if p.removals == nil {
		return p.purge(ctx, id)
	}

	object := "discarded files of " + id
	done := p.removals.Start(removal.Task{ //nolint:contextcheck // the task outlives this call
		Pool: p.name, Object: object,
		Remove: func(ctx context.Context) error { return p.removeError(object, p.purge(ctx, id)) },
	})

	// Before the driver is ready it is only scheduled.
	if done == nil {
		return nil
	}

	select {
	case <-done:
	case <-time.After(discardWait):
	case <-ctx.Done():
	}

	return nil
}

// discard removes the name from a room: a file and an empty directory at once, any
// other directory by renaming it to removing/<id>, which takes no space in a pool
// that is full; purge removes that. A name that is missing is no error. Errors:
// ErrMounted.
func (p *Pool) moveToRemoving(room *os.Root, name, id string) (moved bool, err error) {
	from, err := room.Open(".")
	if err != nil {
		return false, err //nolint:wrapcheck // the callers name the object
	}
	defer from.Close()

	// The flags of the room itself are not a volume's.
	err = removeEntry(from, name, false)
	if !isNotEmpty(err) {
		return false, err
	}

	if p.removing == nil {
		return false, fmt.Errorf("%s: %w; start a driver with this pool once, which makes it",
			filepath.Join(p.path, layout.Removing), fs.ErrNotExist)
	}

	to, err := p.removing.Open(".")
	if err != nil {
		return false, err //nolint:wrapcheck // the callers name the object
	}
	defer to.Close()

	for {
		err = moveDirectory(from, name, to, id)
		if !isNotEmpty(err) {
			return true, err
		}

		// There is one already, and this one can be removed with it.
		earlier, err := openWithin(to, id)
		if errors.Is(err, unix.ENOENT) {
			continue
		}

		if err != nil {
			return false, removalError(to, id, err)
		}

		err = moveDirectory(from, name, earlier, movedName())
		_ = earlier.Close()

		if errors.Is(err, unix.ENOENT) && exists(from, name) {
			continue // what was there already has just been purged
		}

		return true, err
	}
}

// purge removes removing/<id>. Descriptors and memory are bounded, whatever is in
// there, and it never crosses a mount. After an error it goes on with the rest, and
// returns the first one. Errors: ErrMounted, ctx's.
func (p *Pool) purge(ctx context.Context, id string) error {
	if p.removing == nil {
		return nil
	}

	release, err := p.purging.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()

	removing, err := p.removing.Open(".")
	if err != nil {
		return err //nolint:wrapcheck // the callers name the object
	}
	defer removing.Close()

	for {
		err := removeEntry(removing, id, false)
		if !isNotEmpty(err) {
			return err
		}

		tree, err := removeContent(ctx, removing, id)
		if ctx.Err() != nil {
			return context.Cause(ctx) //nolint:wrapcheck // the callers name the object
		}

		// What was moved up is left for the next pass.
		if tree.removed == 0 {
			return cmp.Or(err, removalError(removing, id, errNotEmpty)) //nolint:wrapcheck // both name the file
		}
	}
}

// remover makes one pass over a directory.
type remover struct {
	area *os.File
	// spill is a directory in area that takes the directories that are too deep
	// for this pass; nil until there is one.
	spill *os.File
	// removed counts names that are gone from where they were.
	removed int
}

// sweep removes what is in a directory, except for directories more than maxLevels
// deep, which it moves to the top.
func removeContent(ctx context.Context, parent *os.File, name string) (*remover, error) {
	r := &remover{}

	var err error
	if r.area, err = openWithin(parent, name); err != nil {
		return r, removalError(parent, name, err)
	}
	defer r.area.Close()

	err = r.content(ctx, r.area, 0)

	if r.spill != nil && r.spill != r.area {
		_ = r.spill.Close()
	}

	return r, err
}

// each removes names of a directory. It goes on after an error and returns the
// first.
func (r *remover) each(ctx context.Context, directory *os.File, names []string, level int) error {
	var failure error

	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx) //nolint:wrapcheck // the caller names the object
		}

		err := r.entry(ctx, directory, name, level)
		if err == nil {
			r.removed++
		} else if failure == nil {
			failure = err
		}
	}

	return failure
}

// entry removes one name, with everything below it.
func (r *remover) entry(ctx context.Context, parent *os.File, name string, level int) error {
	for {
		err := removeEntry(parent, name, true)
		if !isNotEmpty(err) {
			return err
		}

		if level >= maxLevels {
			err = r.moveUp(parent, name)
			if !unmovable(err) || level >= maxUnmovable {
				return err
			}
		}

		before := r.removed
		if err := r.below(ctx, parent, name, level+1); err != nil {
			return err
		}

		if r.removed == before {
			return removalError(parent, name, errNotEmpty)
		}
	}
}

// below removes what is in a directory, which it opens.
func (r *remover) below(ctx context.Context, parent *os.File, name string, level int) error {
	directory, err := openWithin(parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}

	if err != nil {
		return removalError(parent, name, err)
	}
	defer directory.Close()

	return r.content(ctx, directory, level)
}

// content removes what is in an open directory.
func (r *remover) content(ctx context.Context, directory *os.File, level int) error {
	var failure error

	for {
		names, err := directory.Readdirnames(removeBatch)
		if failed := r.each(ctx, directory, names, level); failure == nil {
			failure = failed
		}

		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return failure
		}

		if err != nil {
			return cmp.Or(failure, removalError(directory, "", err)) //nolint:wrapcheck // both name the file
		}
	}
}

// moveUp makes a directory be at the top, for the next pass: in a directory of
// this pass, so that the next one reads each name once, or where there is no space
// for that in the area itself.
func (r *remover) moveUp(parent *os.File, name string) error {
	if r.spill == nil {
		made := movedName()
		r.spill = r.area

		if err := unix.Mkdirat(int(r.area.Fd()), made, directoryMode); err == nil {
			spill, err := openWithin(r.area, made)
			if err != nil {
				return removalError(r.area, made, err)
			}

			r.spill = spill
		}
	}

	return moveDirectory(parent, name, r.spill, movedName())
}

// unmovable says whether an error of moveUp may be due to where the directory is,
// so that it can be removed there only.
func unmovable(err error) bool {
	return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// move renames a directory. Errors: ENOTEMPTY or EEXIST where there is a directory
// of the new name that is not empty.
func moveDirectory(parent *os.File, name string, target *os.File, renamed string) error {
	err := withoutFlags(parent, name, false, func() error {
		return eintr.Retry(func() error { return unix.Renameat(int(parent.Fd()), name, int(target.Fd()), renamed) })
	})
	if isNotEmpty(err) || errors.Is(err, unix.ENOENT) {
		return err
	}

	return removalError(parent, name, err)
}

// removeEntry unlinks a file or removes an empty directory, after having cleared
// the flags that forbid it; those of parent only if owned says that it belongs to
// what is removed. A name that is missing is no error. Errors: ENOTEMPTY or EEXIST
// for a directory that is not empty; ErrMounted.
func removeEntry(parent *os.File, name string, owned bool) error {
	err := withoutFlags(parent, name, owned, func() error {
		err := eintr.Retry(func() error { return unix.Unlinkat(int(parent.Fd()), name, 0) })
		if errors.Is(err, unix.EISDIR) {
			err = eintr.Retry(func() error { return unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR) })
		}

		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}

	if isNotEmpty(err) {
		return err // no failure: to name the path would cost more than the call
	}

	return removalError(parent, name, err)
}

func isNotEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

func exists(directory *os.File, name string) bool {
	var found unix.Stat_t

	return unix.Fstatat(int(directory.Fd()), name, &found, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// withoutFlags calls change, and again after EPERM once the immutable and
// append-only flags of the name are cleared, and those of parent if it is owned.
func withoutFlags(parent *os.File, name string, owned bool, change func() error) error {
	err := change()
	if !errors.Is(err, unix.EPERM) {
		return err
	}

	cleared := owned && clearFlags(parent)
	if file, err := openFlagged(parent, name); err == nil {
		cleared = clearFlags(file) || cleared
		_ = file.Close()
	}

	if !cleared {
		return err
	}

	return change()
}

// openFlagged opens what can have flags: a regular file or a directory. Opening a
// device or a FIFO has effects.
func openFlagged(parent *os.File, name string) (*os.File, error) {
	var found unix.Stat_t
	if err := unix.Fstatat(int(parent.Fd()), name, &found, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, syscallError("fstatat", err)
	}

	if kind := found.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil, unix.EPERM
	}

	return openHow(parent, name, unix.O_RDONLY|unix.O_NONBLOCK)
}

// clearFlags says whether it has cleared any.
func clearFlags(file *os.File) bool {
	flags, err := unix.IoctlGetUint32(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil || flags&(immutableFlag|appendOnlyFlag) == 0 {
		return false
	}

	flags &^= immutableFlag | appendOnlyFlag

	return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, int(flags)) == nil
}

// openWithin opens a subdirectory, on the same mount and through no symlink.
func openWithin(parent *os.File, name string) (*os.File, error) {
	return openHow(parent, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

func openHow(parent *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS,
	}

	descriptor, err := eintr.RetryValue(func() (int, error) { return unix.Openat2(int(parent.Fd()), name, &how) })
	if err != nil {
		return nil, syscallError("openat2", err)
	}

	return os.NewFile(uintptr(descriptor), name), nil
}

// at names in an error the file that it is about, by its path at this moment, and
// a mount as the cause where it is one.
func removalError(directory *os.File, name string, err error) error {
	if err == nil {
		return nil
	}

	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) && isMountRoot(directory, name) {
		err = fmt.Errorf("%w: %w", ErrMounted, err)
	}

	path, failed := os.Readlink(descriptorPath(directory))
	if failed != nil {
		path = directory.Name() // it is longer than a path may be
	}

	return &fs.PathError{Op: "remove", Path: filepath.Join(path, name), Err: err}
}

func isMountRoot(directory *os.File, name string) bool {
	var found unix.Statx_t

	err := unix.Statx(int(directory.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &found)

	return err == nil && found.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// turns has one caller at a time for each id.
type keyedLocks struct {
	mu   sync.Mutex
	held map[string]*keyedLock
}

type keyedLock struct {
	taken chan struct{}
	users int
}

// acquire waits for the turn of an id. Errors: ctx's.
func (t *keyedLocks) acquire(ctx context.Context, id string) (release func(), err error) {
	t.mu.Lock()

	mine := t.held[id]
	if mine == nil {
		mine = &keyedLock{taken: make(chan struct{}, 1)}
		t.held[id] = mine
	}

	mine.users++
	t.mu.Unlock()

	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()

		mine.users--
		if mine.users == 0 {
			delete(t.held, id)
		}
	}

	select {
	case mine.taken <- struct{}{}:
		return func() {
			<-mine.taken
			leave()
		}, nil
	case <-ctx.Done():
		leave()

		return nil, context.Cause(ctx) //nolint:wrapcheck // the callers name the object
	}
}
