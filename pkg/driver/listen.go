package driver

import (
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

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// ErrEndpoint is returned for an endpoint that cannot be listened on.
var ErrEndpoint = errors.New("endpoint")

const (
	// maxSocketPath is what fits into sun_path with its closing NUL.
	maxSocketPath = 107
	// socketMode lets nobody but the owner call a driver that runs as root.
	socketMode = 0o600
	// socketDirMode is for a directory that has to be made.
	socketDirMode = 0o750
	// askTimeout is for the one who already listens to say who it is.
	askTimeout = time.Second
	// lockTimeout is for another start in the same directory to end.
	lockTimeout = 5 * time.Second
	lockPause   = 20 * time.Millisecond
)

// InUseError says that the endpoint's socket is served already.
type InUseError struct {
	// Path is the socket's.
	Path string
	// PID is the process that listens, 0 when the kernel does not tell; it is
	// another namespace's number when that process is in one.
	PID int32
	// Driver is its name and version, empty when it does not answer.
	Driver string
}

// Error implements error.
func (e *InUseError) Error() string {
	who := "another process"
	if e.Driver != "" {
		who = e.Driver
	}

	if e.PID > 0 {
		who += fmt.Sprintf(", pid %d", e.PID)
	}

	return fmt.Sprintf("endpoint %s is already served by %s: end it first, or choose another --endpoint", e.Path, who)
}

// SocketPath returns the path that an endpoint names: unix:///path, unix:path
// or a plain path.
func SocketPath(endpoint string) (string, error) {
	path := endpoint
	if rest, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		path = rest
		if authority, ok := strings.CutPrefix(rest, "//"); ok {
			path = authority
		}
	} else if strings.Contains(endpoint, "://") {
		return "", fmt.Errorf("%w %q: only unix sockets are served, such as unix:///run/touchstone/csi.sock", ErrEndpoint, endpoint)
	}

	switch {
	case path == "" || strings.HasSuffix(path, "/"):
		return "", fmt.Errorf("%w %q names no socket file", ErrEndpoint, endpoint)
	case len(path) > maxSocketPath:
		return "", fmt.Errorf("%w: the socket's path has %d bytes, and a unix socket's may have %d: %s",
			ErrEndpoint, len(path), maxSocketPath, path)
	}

	return path, nil
}

// socket is a listener that removes its file, and only its own, when closed.
type socket struct {
	net.Listener

	path  string
	made  fs.FileInfo
	close func() error
}

// Close implements net.Listener.
func (s *socket) Close() error { return s.close() }

// listen makes the endpoint's socket, accessible to the owner only. A socket
// that nobody serves any more is replaced; a served one is an *InUseError.
func listen(ctx context.Context, endpoint string) (*socket, error) {
	path, err := SocketPath(endpoint)
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(filepath.Dir(path), socketDirMode); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}

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

	unixListener, ok := listener.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w %s: got a %T", ErrEndpoint, path, listener), listener.Close())
	}

	// Its own unlink would take away whatever has the path by then.
	unixListener.SetUnlinkOnClose(false)

	made, err := os.Lstat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at the new socket: %w", err), listener.Close())
	}

	s := &socket{Listener: listener, path: path, made: made}
	s.close = sync.OnceValue(func() error { return errors.Join(s.remove(), listener.Close()) })

	return s, nil
}

func (s *socket) remove() error {
	now, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, s.made) {
		return nil
	}

	if err == nil {
		err = os.Remove(s.path)
	}

	if err != nil {
		return fmt.Errorf("remove the socket: %w", err)
	}

	return nil
}

// restrict gives the socket its mode before it is bound: unlike a chmod after
// it, this leaves no instant in which others may connect, and unlike a umask
// it concerns no other thread.
func restrict(conn syscall.RawConn) error {
	var failure error

	err := conn.Control(func(fd uintptr) { failure = unix.Fchmod(int(fd), socketMode) })
	if err = errors.Join(err, failure); err != nil {
		return fmt.Errorf("restrict the socket to its owner: %w", err)
	}

	return nil
}

// lockDirectory holds a flock on the directory itself: no file is left behind.
func lockDirectory(ctx context.Context, directory string) (func(), error) {
	dir, err := os.Open(directory)
	if err != nil {
		return nil, fmt.Errorf("open the socket's directory: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()

	for {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
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
		return fmt.Errorf("look at the endpoint: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%w %s is there and not a socket: move it away, or choose another --endpoint", ErrEndpoint, path)
	}

	conn, err := (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, "unix", path)
	if err == nil {
		pid := peer(conn)
		_ = conn.Close()

		if !ended(pid) {
			return &InUseError{Path: path, PID: pid, Driver: askName(ctx, path)}
		}
	}

	// Only a refusal proves that nobody listens: a full backlog or missing
	// permission is the answer of somebody who does.
	if err != nil && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w %s: cannot tell whether it is served: %w", ErrEndpoint, path, err)
	}

	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the old socket: %w", err)
	}

	return nil
}

// peer returns the pid of the process that listens, or 0.
func peer(conn net.Conn) int32 {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}

	raw, err := unixConn.SyscallConn()
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

// ended says whether the process that made a socket is gone. A driver that is
// killed while it starts a tool leaves the socket open for a moment in the child
// that has not become the tool yet; whoever starts the driver anew is faster.
func ended(pid int32) bool { return pid > 0 && errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) }

// askName returns the name and version of the driver behind the socket, or "".
func askName(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()

	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}))
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()

	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return ""
	}

	return strings.TrimSpace(info.GetName() + " " + info.GetVendorVersion())
}
