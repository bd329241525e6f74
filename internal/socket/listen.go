package socket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/touchstone-csi/touchstone/internal/linux/flock"
)

// ErrPath is returned for a path that no socket can be made at.
var ErrPath = errors.New("socket path")

const (
	// maxPath is what fits into sun_path with its closing NUL.
	maxPath = 107
	// mode restricts calls to the owner: the driver runs as root.
	mode = 0o600
	// askTimeout bounds the request for the name of the process that already listens,
	// also on an overloaded machine.
	askTimeout = 5 * time.Second
	// lockTimeout is for another start in the same directory to end.
	lockTimeout = 2 * exitTimeout
	lockPause   = 20 * time.Millisecond
)

// InUseError is returned for a socket that another process serves.
type InUseError struct {
	// Path is the socket's.
	Path string
	// PID is the listening process, 0 if unknown; in another PID namespace it is that
	// namespace's number.
	PID int32
	// Driver is its name and version, empty when it does not answer.
	Driver string
}

// Error implements error.
func (e *InUseError) Error() string {
	who := cmp.Or(e.Driver, "another process")
	if e.PID > 0 {
		who += fmt.Sprintf(", pid %d", e.PID)
	}

	return fmt.Sprintf("%s is already served by %s", e.Path, who)
}

// CheckPath returns an error wrapping ErrPath for what can't be a socket's path.
func CheckPath(path string) error {
	switch {
	case path == "" || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0):
		return fmt.Errorf("%w %q names no file", ErrPath, path)
	case len(path) > maxPath:
		return fmt.Errorf("%w has %d bytes, and may have %d: %s", ErrPath, len(path), maxPath, path)
	}

	return nil
}

// Ask calls the driver behind a connection and returns its name and version, or "".
type Ask func(ctx context.Context, connection *grpc.ClientConn) string

// Listener is a listener that removes its file, and only its own, when closed.
type Listener struct {
	net.Listener

	path  string
	made  fs.FileInfo
	close func() error

	mu sync.Mutex
	// hidden is where Hide has moved the socket, or empty; closed prevents it.
	hidden string
	closed bool
}

// Path is the socket's.
func (l *Listener) Path() string { return l.path }

// Close implements net.Listener. All calls return the same.
func (l *Listener) Close() error { return l.close() }

// InPlace reports whether the path still refers to this socket.
func (l *Listener) InPlace() bool {
	inPlace, _ := l.inPlace()

	return inPlace
}

func (l *Listener) inPlace() (bool, error) {
	now, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}

	return err == nil && os.SameFile(now, l.made), err
}

// Hide moves the socket away from its path, so that connections are refused as if there were none,
// until restore is called or the listener is closed.
func (l *Listener) Hide() (restore func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.closed || l.hidden != "" || !l.InPlace() {
		return nil, fmt.Errorf("%w %s: the socket is not there", ErrPath, l.path)
	}

	hidden := l.path + ".hidden"
	if err := os.Rename(l.path, hidden); err != nil {
		return nil, fmt.Errorf("hide the socket: %w", err)
	}

	l.hidden = hidden

	return l.restore, nil
}

func (l *Listener) restore() {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.hidden == "" {
		return
	}

	// A socket that another process has made meanwhile stays.
	if _, err := os.Lstat(l.path); errors.Is(err, fs.ErrNotExist) {
		_ = os.Rename(l.hidden, l.path)
	} else {
		_ = os.Remove(l.hidden)
	}

	l.hidden = ""
}

// Listen creates a socket at path, accessible to the owner only, in an existing
// directory. A stale socket is replaced; for a served one it calls ask and returns an
// *InUseError. Any other file at path is ErrPath; other errors are the kernel's.
func Listen(ctx context.Context, path string, ask Ask) (*Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}

	listener, err := listenAlone(ctx, path)

	// Called without the lock: a starting process may answer slowly, and others that
	// wait for the directory would time out.
	if inUse, ok := errors.AsType[*InUseError](err); ok {
		asked, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()

		if connection, err := Connect(path); err == nil {
			inUse.Driver = ask(asked, connection)
			_ = connection.Close()
		}
	}

	return listener, err
}

func listenAlone(ctx context.Context, path string) (*Listener, error) {
	// Two that start at once must not both find the old socket dead.
	unlock, err := lockDirectory(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()

	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}

	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error { return restrict(conn) }}

	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}

	// Go's unlink would remove any file that has the path by then.
	if unixListener, ok := listener.(*net.UnixListener); ok {
		unixListener.SetUnlinkOnClose(false)
	}

	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stat the new socket: %w", err), listener.Close())
	}

	l := &Listener{Listener: listener, path: path, made: made}
	l.close = sync.OnceValue(func() error { return errors.Join(l.remove(), listener.Close()) })

	return l, nil
}

func (l *Listener) remove() error {
	l.restore()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()

	inPlace, err := l.inPlace()
	if inPlace {
		err = os.Remove(l.path)
	}

	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket: %w", err)
	}

	return nil
}

// restrict sets the socket's mode before it is bound: unlike a chmod afterwards, this
// never lets other users connect, and unlike a umask it affects no other thread.
func restrict(conn syscall.RawConn) error {
	var failure error

	err := conn.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), mode) })
	if err = errors.Join(err, failure); err != nil {
		return fmt.Errorf("restrict the socket to its owner: %w", err)
	}

	return nil
}

// lockDirectory takes a flock on the directory itself, so that no lock file remains.
func lockDirectory(ctx context.Context, directory string) (func(), error) {
	dir, err := os.Open(directory)
	if err != nil {
		return nil, fmt.Errorf("open the socket's directory: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()

	for {
		err := flock.TryLock(dir, unix.LOCK_EX)
		if err == nil {
			return func() { _ = dir.Close() }, nil
		}

		select {
		case <-ctx.Done():
			_ = dir.Close()

			return nil, fmt.Errorf("lock %s, which another start holds: %w", directory, err)
		case <-time.After(lockPause):
		}
	}
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("stat the old socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w %s: something else is there, move it away", ErrPath, path)
	}

	conn, err := (&net.Dialer{Timeout: askTimeout}).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		pid := peer(conn)
		_ = conn.Close()

		if !ended(ctx, pid) {
			return &InUseError{Path: path, PID: pid}
		}
	}

	// Only a refused connection proves that no process listens: a full backlog or a
	// missing permission proves the contrary.
	if err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w %s: cannot determine whether it is served: %w", ErrPath, path, err)
	}

	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}

	return nil
}

// peer returns the pid of the process that listens, or 0.
func peer(conn *net.UnixConn) int32 {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}

	var pid int32

	_ = raw.Control(func(fd uintptr) {
		if credentials, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = credentials.Pid
		}
	})

	return pid
}
