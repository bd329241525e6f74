package kata

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	socketName = "shim-monitor.sock"

	statsURL  = "/direct-volume/stats"
	resizeURL = "/direct-volume/resize"
	// What Kata was to have first, and what some runtimes were built with.
	oldStatsURL  = "/fs-stats"
	oldResizeURL = "/fs-resize"
)

// shim asks the process on the host that has the guest.
type shim struct {
	roots []string
}

// request is a call of the shim. Without a body it has none.
type request struct {
	method, path string
	body         any
}

type resizeBody struct {
	VolumePath string
	Size       int64
}

func (s *shim) stats(ctx context.Context, e Entry) ([]byte, error) {
	query := url.Values{"path": {e.Device}}

	status, answer, err := s.callEither(ctx, e, request{http.MethodGet, statsURL + "?" + query.Encode(), nil},
		request{http.MethodPut, oldStatsURL, map[string]string{"block-device": e.Device}})

	switch {
	case err != nil || isDone(status):
		return answer, err
	case isUnknown(status):
		return nil, fmt.Errorf("%w: its shim knows no such call; a runtime that does is Kata's in Go", ErrNoAnswer)
	default:
		return nil, refusal(ErrNoAnswer, status, answer)
	}
}

func (s *shim) resize(ctx context.Context, e Entry, size int64) ([]byte, error) {
	status, answer, err := s.callEither(ctx, e, request{http.MethodPost, resizeURL, resizeBody{VolumePath: e.Device, Size: size}},
		request{http.MethodPut, oldResizeURL, map[string]string{"block-device": e.Device, "volume-size": strconv.FormatInt(size, 10)}})

	switch {
	case err != nil || isDone(status):
		return answer, err
	case isUnknown(status), status == http.StatusNotImplemented, saysUnimplemented(string(answer)):
		return nil, refusal(ErrUnimplemented, status, answer)
	default:
		return nil, refusal(ErrNoAnswer, status, answer)
	}
}

// callEither makes the old request of a shim that doesn't know the other one.
func (s *shim) callEither(ctx context.Context, e Entry, wanted, old request) (int, []byte, error) {
	status, answer, err := s.call(ctx, e, wanted)
	if err != nil || !isUnknown(status) {
		return status, answer, err
	}

	return s.call(ctx, e, old)
}

func refusal(kind error, status int, answer []byte) error {
	return fmt.Errorf("%w: its shim said %d %s: %s", kind, status, http.StatusText(status), excerpt(answer))
}

func isDone(status int) bool { return status == http.StatusOK || status == http.StatusNoContent }

// isUnknown is for a shim that doesn't know the call, or knows it with another verb.
func isUnknown(status int) bool {
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

// call makes a request and returns the status and all of the body. Errors are
// ErrNoAnswer.
func (s *shim) call(ctx context.Context, e Entry, asked request) (int, []byte, error) {
	connection, err := s.dial(ctx, e.Sandbox)
	if err != nil {
		return 0, nil, err
	}
	defer connection.Close()

	// Not everything that reads it heeds the request's context: a body after
	// "101 Switching Protocols" comes as long as the shim likes.
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()

	encoded, err := asked.encode(ctx)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}

	// A transport by itself follows no redirection and no proxy of the environment.
	transport := &http.Transport{
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerBytes,
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return connection, nil },
	}

	response, err := transport.RoundTrip(encoded)
	if err != nil {
		return 0, nil, noAnswer(asked.method+" "+asked.path, err)
	}
	defer response.Body.Close()

	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes+1))
	if err != nil {
		return 0, nil, noAnswer(asked.method+" "+asked.path, err)
	}

	if len(answer) > maxAnswerBytes {
		return 0, nil, fmt.Errorf("%w: %s %s: it says more than %d bytes", ErrNoAnswer, asked.method, asked.path, maxAnswerBytes)
	}

	return response.StatusCode, answer, nil
}

// noAnswer doesn't wrap what happened: a timeout is not the caller's.
func noAnswer(call string, err error) error {
	return fmt.Errorf("%w: %s: %s; see whether its shim lives", ErrNoAnswer, call, err.Error())
}

func (r request) encode(ctx context.Context) (*http.Request, error) {
	var content []byte

	if r.body != nil {
		var err error
		if content, err = json.Marshal(r.body); err != nil {
			return nil, err
		}
	}

	encoded, err := http.NewRequestWithContext(ctx, r.method, "http://shim"+r.path, bytes.NewReader(content))
	if err == nil && r.body != nil {
		encoded.Header.Set("Content-Type", "application/json")
	}

	return encoded, err
}

// dial connects to the socket of a sandbox's shim. Errors are ErrNoAnswer.
func (s *shim) dial(ctx context.Context, sandbox string) (net.Conn, error) {
	dir, err := s.openSandboxDir(sandbox)
	if err != nil {
		return nil, err
	}
	defer dir.Close()

	// By descriptor: what was checked is what is used, and a path of any length fits
	// into a socket's address.
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName))
	if err != nil {
		return nil, noAnswer("connect to "+filepath.Join(dir.Name(), socketName), err)
	}

	return connection, nil
}

// openSandboxDir opens the first directory of a sandbox that has a shim's socket.
func (s *shim) openSandboxDir(sandbox string) (*os.File, error) {
	if !isSingleName(sandbox) {
		return nil, fmt.Errorf("%w: %q is not a sandbox's name", ErrNoAnswer, sandbox)
	}

	var looked []string

	for _, root := range s.roots {
		dir, err := openSandbox(root, sandbox)
		if err == nil {
			return dir, nil
		}

		looked = append(looked, err.Error())
	}

	return nil, fmt.Errorf("%w: its shim has no socket: %s; see whether its pod runs, and where Kata keeps its sandboxes (--shim-root)",
		ErrNoAnswer, strings.Join(looked, ", "))
}

// isSingleName says whether a name stays in the directory that it is joined with.
func isSingleName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// openSandbox opens the directory of a sandbox, if there is a shim's socket in it.
func openSandbox(root, sandbox string) (*os.File, error) {
	path := filepath.Join(root, sandbox)

	// A sandbox that is a symlink is refused, its root may be one.
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}

	var stat unix.Stat_t

	err = unix.Fstatat(int(dir.Fd()), socketName, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		err = unix.ENOTSOCK
	}

	if err != nil {
		_ = dir.Close()

		return nil, &os.PathError{Op: "stat", Path: filepath.Join(path, socketName), Err: err}
	}

	return dir, nil
}
