package driver

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxHostName is the limit of a name in DNS, in bytes.
const maxHostName = 253

// hostNames are the names under which the HTTP endpoint is served, beside IP addresses: those of the
// loopback, of --http-host, and the endpoint's own.
func (c *Config) hostNames() []string {
	names := append([]string{"localhost"}, c.HTTPHosts...)
	if host, _, err := net.SplitHostPort(c.HTTPEndpoint); err == nil && host != "" {
		names = append(names, host)
	}

	return names
}

// onlyHosts refuses requests for other hosts, because a page of another site could read the answers
// after its own name was made to resolve to this machine (DNS rebinding). An IP address as host is
// no such name: the kubelet's probes and Prometheus use that of the pod. Neither is no host at all,
// which no browser sends.
func onlyHosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !isAddress(hostOf(r.Host)) && !slices.ContainsFunc(names, func(name string) bool {
			return strings.EqualFold(withoutDot(name), withoutDot(hostOf(r.Host)))
		}) {
			http.Error(w, fmt.Sprintf("host %.300q is not served: use an IP address or localhost, or allow the name with --http-host", r.Host),
				http.StatusMisdirectedRequest)

			return
		}

		next.ServeHTTP(w, r)
	})
}

// hostOf returns a Host header without its port.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}

	return strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)

	return err == nil
}

// withoutDot is a name without the dot of a fully qualified one.
func withoutDot(name string) string { return strings.TrimSuffix(name, ".") }

// checkHTTP refuses an endpoint that no client could reach, and settings of it without it.
func (c *Config) checkHTTP() error {
	if c.HTTPEndpoint == "" {
		if c.Profiling || len(c.HTTPHosts) > 0 {
			return fmt.Errorf("%w: pprof and http-host have no effect without http-endpoint", ErrConfig)
		}

		return nil
	}

	host, port, err := net.SplitHostPort(c.HTTPEndpoint)
	if err != nil || !isHostAndPort(cmp.Or(host, "localhost"), port) {
		return fmt.Errorf("%w: http-endpoint %q is not host:port, such as 127.0.0.1:9808 or :9808", ErrConfig, c.HTTPEndpoint)
	}

	for _, name := range c.HTTPHosts {
		if !isHostName(withoutDot(name)) {
			return fmt.Errorf("%w: http-host %.300q is not a host's name, such as touchstone.example.org, without a port", ErrConfig, name)
		}
	}

	return nil
}

// isHostAndPort reports whether a client or server can use the name or IP address and the port.
func isHostAndPort(host, port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)

	return err == nil && (isAddress(host) || isHostName(host))
}

func isHostName(name string) bool {
	return len(name) <= maxHostName && regexp.MustCompile(driverName).MatchString(name)
}
