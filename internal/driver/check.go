package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/touchstone-csi/touchstone/internal/kubernetes/claim"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// maxOvercommit keeps the capacity of a pool of 8 TiB an int64.
const maxOvercommit = 1_000_000

// Check returns why a driver of this configuration cannot work, as far as it is known without opening
// anything but the files that are only read. Errors: ErrConfig, ErrEndpoint, and those of the files.
func (c *Config) Check() error {
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

// checkValues refuses numbers, names and addresses that would have no effect, or another one.
func (c *Config) checkValues() error {
	problems := []error{c.checkCapacities(), c.checkText(), c.checkOTLP(), c.checkHTTP(), c.checkFiles()}

	if !(c.Overcommit > 0 && c.Overcommit <= maxOvercommit) {
		problems = append(problems, fmt.Errorf("%w: overcommit %v must be above 0 and at most %d; 1 provisions the pool's space once",
			ErrConfig, c.Overcommit, maxOvercommit))
	}

	if first := c.Node.Loops.First; first < 0 || first > loop.MaxNumber {
		problems = append(problems, fmt.Errorf("%w: first-loop-device %d is no number of a loop device, which are 1 to %d",
			ErrConfig, first, loop.MaxNumber))
	}

	if c.DrainTimeout < 0 {
		problems = append(problems, fmt.Errorf("%w: drain-timeout cannot be negative", ErrConfig))
	}

	if _, err := SocketPath(c.Endpoint); err != nil {
		problems = append(problems, err)
	}

	if c.TCPEndpoint != "" {
		if _, err := parseLoopback(tcpFlag, c.TCPEndpoint); err != nil {
			problems = append(problems, fmt.Errorf("%w: %w", ErrConfig, err))
		}
	}

	return errors.Join(append(problems, checkAbsolute(map[string]string{
		"cgroup-root": cmp.Or(c.Node.CgroupRoot, cgroup.DefaultCgroupRoot),
	}))...)
}

// checkFiles refuses a bare word as the path of a file that the driver makes: it is a mistake, such as
// true.
func (c *Config) checkFiles() error {
	var problems []error

	for _, given := range [][2]string{{"call-log", c.CallLog}, {"ready-file", c.ReadyFile}} {
		flag, path := given[0], given[1]
		isWord := path != "" && filepath.Base(path) == path && (flag != "call-log" || path != CallLogRing)
		if isWord || strings.HasSuffix(path, "/") || strings.ContainsRune(path, 0) {
			problems = append(problems, fmt.Errorf("%w: %s %.100q is no path of a file; write ./NAME for one in the working directory",
				ErrConfig, flag, path))
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

		if c.Capacities[name] < 0 {
			problems = append(problems, fmt.Errorf("%w: the capacity of pool %q cannot be negative", ErrConfig, name))
		}
	}

	return errors.Join(problems...)
}

// checkText refuses names that a message or a metric cannot contain.
func (c *Config) checkText() error {
	for what, names := range map[string][]string{
		"node-id": {c.NodeID}, "nodes": c.Controller.Nodes, "pool": slices.Sorted(maps.Keys(c.Pools)),
	} {
		for _, name := range names {
			if !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
				return fmt.Errorf("%w: %s: %.100q has unprintable characters", ErrConfig, what, name)
			}
		}
	}

	return nil
}

// checkOTLP refuses what the exporter would replace by its default.
func (c *Config) checkOTLP() error {
	if c.OTLPEndpoint == "" {
		return nil
	}

	if given, err := url.Parse(c.OTLPEndpoint); err == nil {
		rest := strings.TrimSuffix(strings.TrimPrefix(c.OTLPEndpoint, given.Scheme+"://"), "/")
		// Nothing but scheme and host: the exporter ignores the rest.
		if slices.Contains([]string{"http", "https"}, given.Scheme) && rest == given.Host &&
			isHostAndPort(given.Hostname(), cmp.Or(given.Port(), "0")) {
			return nil
		}
	}

	return fmt.Errorf("%w: otlp-endpoint %.300q is not http://HOST:PORT or https://HOST:PORT", ErrConfig, c.OTLPEndpoint)
}
