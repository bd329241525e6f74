package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/touchstone-csi/touchstone/internal/driver/setting"
	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/internal/socket"
)

const (
	// maxOvercommit keeps the capacity of a pool of 8 TiB an int64.
	maxOvercommit = 1_000_000
	// maxNodeID is the spec's limit for NodeGetInfoResponse.node_id, in bytes.
	maxNodeID = 256
	// maxDriverName is the spec's limit for the name in bytes.
	maxDriverName = 63
	// maxHostName is the limit of a name in DNS, in bytes.
	maxHostName = 253
)

// domainName is the spec's rule for GetPluginInfoResponse.name, and for names of hosts: labels of at most 63
// characters begin and end with a letter or a digit.
var domainName = regexp.MustCompile(`^` + hostName + `$`)

// Check returns why a driver or a proxy of this configuration cannot work, as far as it is known without
// opening anything but the files that are only read. Errors: ErrConfig, ErrEndpoint, socket.ErrAddress, and
// those of the files.
func (c *Config) Check() error {
	switch {
	case c.ProxyEndpoint != "" && c.ProxyListen != "":
		return fmt.Errorf("%w: proxy-endpoint and proxy-listen exclude each other", ErrConfig)
	case c.ProxyEndpoint != "" || c.ProxyListen != "":
		return cmp.Or(c.CheckSettings("drain-timeout", "ready-file", "log-format", "v"), c.CheckProxy(c.ProxyEndpoint+c.ProxyListen))
	}

	checked := *c
	if err := checked.complete(); err != nil {
		return err
	}

	if err := checkLab(c); err != nil {
		return err
	}

	if c.Claims.Kubeconfig == "" {
		return nil
	}

	claims, err := claim.New(c.Claims)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}

	return claims.Close()
}

// CheckSettings checks each setting by itself, or those of the names. Errors: ErrConfig.
func (c *Config) CheckSettings(names ...string) error {
	var problems []error

	for _, each := range Settings(c) {
		if len(names) == 0 || slices.Contains(names, each.Name) {
			problems = append(problems, each.check())
		}
	}

	return errors.Join(problems...)
}

func (c *Config) checkCapacities() error {
	var problems []error

	for _, name := range slices.Sorted(maps.Keys(c.Capacities)) {
		if _, known := c.Pools[name]; !known {
			problems = append(problems, fmt.Errorf("%w: capacity names the pool %q, and there are %s",
				ErrConfig, name, strings.Join(slices.Sorted(maps.Keys(c.Pools)), ", ")))
		}
	}

	return errors.Join(problems...)
}

// refuseUnless returns the problem of a value that is not valid.
func refuseUnless(valid bool, value, problem string) error {
	if valid {
		return nil
	}

	return setting.Errorf("%.300q %s", value, problem)
}

func checkDriverName(name string) error {
	return refuseUnless(len(name) <= maxDriverName && domainName.MatchString(name), name,
		"is not a domain name of at most 63 characters, such as csi.example.org")
}

func checkNodeID(id string) error {
	if id == "" || len(id) > maxNodeID {
		return setting.Errorf("%.40q has %d bytes, want 1 to 256", id, len(id))
	}

	return checkPrintable(id)
}

func checkTaint(key string) error {
	return refuseUnless(key == "" || len(validation.IsQualifiedName(key)) == 0, key,
		"is not a taint's key, such as csi.touchstone.dev/agent-not-ready")
}

// checkPrintable refuses names that a message or a metric cannot contain.
func checkPrintable(name string) error {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }

	return refuseUnless(utf8.ValidString(name) && !strings.ContainsFunc(name, odd), name, "has unprintable characters")
}

func checkAbsolute(path string) error {
	return refuseUnless(filepath.IsAbs(path) && !strings.ContainsRune(path, 0), path, "is not an absolute path")
}

func checkPool(name, directory string) error {
	if err := cmp.Or(checkPrintable(name), checkAbsolute(directory)); err != nil {
		return fmt.Errorf("%.100q: %w", name, err)
	}

	return nil
}

// checkFile refuses a bare word as the path of a file that the driver makes: it is a mistake, such as true.
func checkFile(path string) error {
	isFile := filepath.Base(path) != path && !strings.HasSuffix(path, "/") && !strings.ContainsRune(path, 0)

	return refuseUnless(isFile, path, "is no path of a file; write ./NAME for one in the working directory")
}

func checkCallLog(file string) error {
	if file == CallLogRing {
		return nil
	}

	return checkFile(file)
}

// checkCollector refuses what the exporter would replace by its default, such as port 443 also of http.
func checkCollector(endpoint string) error {
	return refuseUnless(isCollector(endpoint), endpoint, "is not http://HOST:PORT or https://HOST:PORT")
}

// isCollector reports whether the URL has a scheme and a host alone: the exporter ignores the rest.
func isCollector(endpoint string) bool {
	given, err := url.Parse(endpoint)
	if err != nil {
		return false
	}

	rest := strings.TrimSuffix(strings.TrimPrefix(endpoint, given.Scheme+"://"), "/")

	return slices.Contains([]string{"http", "https"}, given.Scheme) && rest == given.Host && isHostAndPort(given.Hostname(), given.Port())
}

// checkHostPort refuses an address that no client could reach.
func checkHostPort(address string) error {
	host, port, err := net.SplitHostPort(address)

	return refuseUnless(err == nil && isHostAndPort(cmp.Or(host, "localhost"), port), address,
		"is not host:port, such as 127.0.0.1:9808 or :9808")
}

func checkHostName(name string) error {
	return refuseUnless(isHostName(withoutDot(name)), name, "is not a host's name, such as touchstone.example.org, without a port")
}

// checkLoopback refuses a unix socket, and addresses that other machines can reach. Errors: socket.ErrAddress.
func checkLoopback(address string) error {
	_, err := parseLoopback(address)

	return err
}

// parseLoopback returns the host:port of an address of the loopback. Errors: socket.ErrAddress.
func parseLoopback(address string) (string, error) {
	network, target, err := socket.ParseAddress(address)
	if err != nil || network == "tcp" {
		return target, err
	}

	return "", fmt.Errorf("%w %q is no host:port", socket.ErrAddress, address)
}

// isHostAndPort reports whether a client or server can use the name or IP address and the port.
func isHostAndPort(host, port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)

	return err == nil && (isAddress(host) || isHostName(host))
}

func isHostName(name string) bool { return len(name) <= maxHostName && domainName.MatchString(name) }

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)

	return err == nil
}
