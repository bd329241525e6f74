package driver

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

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
func hostOf(header string) string { return (&url.URL{Host: header}).Hostname() }

// withoutDot is a name without the dot of a fully qualified one.
func withoutDot(name string) string { return strings.TrimSuffix(name, ".") }
