package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/test/await"
)

const socketName = "shim-monitor.sock"

// Shim answers for one sandbox. Safe for concurrent use.
type Shim struct {
	tb       testing.TB
	dir      string
	listener *net.UnixListener
	server   *http.Server
	served   chan error
	hangUp   context.CancelFunc
	stop     sync.Once

	mu       sync.Mutex
	mode     Mode
	status   int
	body     string
	usage    string
	requests []Request
}

// Request is what a Shim was asked.
type Request struct {
	// Method and URI are as they came, the query's escapes in it.
	Method, URI string
	// Body is what came with it, or "".
	Body string
}

// StartShim makes <shimRoot>/<sandbox>/shim-monitor.sock and answers there, until
// the test ends; it begins in mode OK with Usage.
func StartShim(tb testing.TB, shimRoot, sandbox string) *Shim {
	tb.Helper()

	shim := &Shim{
		tb: tb, dir: filepath.Join(shimRoot, sandbox), served: make(chan error, 1), mode: OK, usage: encodeUsage(tb, Usage()),
	}
	require.NoError(tb, os.MkdirAll(shim.dir, 0o700))

	alive, hangUp := context.WithCancel(context.WithoutCancel(tb.Context()))
	shim.hangUp = hangUp
	shim.server = &http.Server{
		Handler:     http.HandlerFunc(shim.serve),
		BaseContext: func(net.Listener) context.Context { return alive },
	}
	shim.listener = listen(tb, shim.dir)

	go func() { shim.served <- shim.server.Serve(shim.listener) }()

	tb.Cleanup(shim.Stop)

	return shim
}

// listen goes through the directory's descriptor: a test's directory may have a
// longer path than a socket's address.
func listen(tb testing.TB, dir string) *net.UnixListener {
	tb.Helper()

	opened, err := os.Open(dir)
	require.NoError(tb, err)

	defer opened.Close()

	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", fmt.Sprintf("/proc/self/fd/%d/%s", opened.Fd(), socketName))
	require.NoError(tb, err)

	socket, ok := listener.(*net.UnixListener)
	require.True(tb, ok, "want: the listener is of a unix socket")
	// Its path means something else once the descriptor is another's.
	socket.SetUnlinkOnClose(false)

	return socket
}

// Stop ends the shim and removes its directory.
func (s *Shim) Stop() {
	s.Kill()

	_ = os.RemoveAll(s.dir)
}

// Kill ends the shim as a SIGKILL does: its socket stays, and refuses, and who waits
// gets no answer.
func (s *Shim) Kill() {
	s.stop.Do(func() {
		s.hangUp()
		s.refuse()

		limited, cancel := context.WithTimeout(context.Background(), await.Limit)
		defer cancel()

		if err := s.server.Shutdown(limited); err != nil {
			s.tb.Errorf("waited %s for the shim's connections to end: %v", await.Limit, err)
		}

		<-s.served
	})
}

// refuse ends the socket itself: a child that another test is just forking has a copy
// of its descriptor until its exec, and what is only closed here goes on taking
// connections there.
func (s *Shim) refuse() {
	raw, err := s.listener.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// Switch sets how requests from now on are answered.
func (s *Shim) Switch(mode Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.mode, s.status = mode, 0
}

// Say sets one answer for all requests from now on.
func (s *Shim) Say(status int, body string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.status, s.body = status, body
}

// SetUsage sets what the guest says of its volume.
func (s *Shim) SetUsage(tb testing.TB, usage mount.Usage) {
	tb.Helper()

	encoded := encodeUsage(tb, usage)

	s.mu.Lock()
	defer s.mu.Unlock()

	s.usage = encoded
}

// Requests returns what was asked so far.
func (s *Shim) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.requests)
}

func (s *Shim) serve(writer http.ResponseWriter, request *http.Request) {
	body, _ := io.ReadAll(request.Body)

	s.mu.Lock()
	s.requests = append(s.requests, Request{Method: request.Method, URI: request.RequestURI, Body: string(body)})
	mode, status, said, usage := s.mode, s.status, s.body, s.usage
	s.mu.Unlock()

	if status == 0 {
		status, said = answer(mode, request, usage)
	}

	if mode == Switching {
		s.switchProtocols(writer, request)

		return
	}

	if mode != Dropping && mode != Hanging {
		writer.WriteHeader(status)
		_, _ = io.WriteString(writer, said)
		_ = http.NewResponseController(writer).Flush()
	}

	if mode == Hanging || mode == Stalling {
		<-request.Context().Done()
	}

	// Else what wasn't said would be an empty answer, which is a good one.
	if mode == Dropping || mode == Hanging || mode == Stalling {
		panic(http.ErrAbortHandler)
	}
}

// switchProtocols keeps the connection until the other end closes it, or the shim
// ends.
func (s *Shim) switchProtocols(writer http.ResponseWriter, request *http.Request) {
	connection, _, err := http.NewResponseController(writer).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()

	defer context.AfterFunc(request.Context(), func() { _ = connection.Close() })()

	_, _ = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
	_, _ = io.Copy(io.Discard, connection)
}

func answer(mode Mode, request *http.Request, usage string) (status int, body string) {
	call := request.Method + " " + request.URL.Path
	isStats := call == "GET /direct-volume/stats" || call == "PUT /fs-stats"
	isResize := call == "POST /direct-volume/resize" || call == "PUT /fs-resize"
	isLegacy := request.Method == http.MethodPut

	switch {
	case mode == NotFound, !isStats && !isResize, isLegacy != (mode == Legacy):
		return http.StatusNotFound, "404 page not found\n"
	case mode == Failing:
		return http.StatusInternalServerError, failure
	case mode == Stalling:
		return http.StatusOK, `{"usage":[`
	case mode == Garbage:
		return http.StatusOK, garbage
	case mode == Babbling:
		return http.StatusOK, strings.Repeat(" ", babbleBytes) + usage
	case mode == Unimplemented && isResize:
		return http.StatusInternalServerError, unimplemented
	case mode == Impossible:
		return http.StatusOK, impossibleNumbers
	case isResize:
		return http.StatusOK, ""
	default:
		return http.StatusOK, usage
	}
}
