package socket

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// ErrAddress is returned for an unsupported address.
var ErrAddress = errors.New("address of another CSI server")

// ParseAddress returns what net.Dial and net.Listen take for the address of a socket file (unix:///path,
// unix:path or an absolute path) or of the loopback (host:port). Errors: ErrAddress.
func ParseAddress(address string) (network, target string, err error) {
	if path, ok := CutScheme(address); ok || strings.HasPrefix(address, "/") {
		if err := CheckPath(path); err != nil {
			return "", "", fmt.Errorf("%w %q: %w", ErrAddress, address, err)
		}

		return "unix", path, nil
	}

	target = strings.TrimPrefix(address, "tcp://")

	host, port, err := net.SplitHostPort(target)
	if _, invalid := strconv.ParseUint(port, 10, 16); err != nil || invalid != nil {
		return "", "", fmt.Errorf("%w %q is neither a unix socket nor host:port", ErrAddress, address)
	}

	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", "", fmt.Errorf("%w %q is not on this machine: calls and their secrets are not encrypted on the way, "+
			"so only a loopback address will do", ErrAddress, address)
	}

	return "tcp", target, nil
}

// CutScheme returns the path of unix:///path or unix:path. Any other address is returned unchanged.
func CutScheme(address string) (path string, ok bool) {
	path, ok = strings.CutPrefix(address, "unix:")
	if ok {
		path = strings.TrimPrefix(path, "//")
	}

	return path, ok
}
