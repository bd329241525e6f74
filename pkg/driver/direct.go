package driver

import (
	"fmt"
	"path/filepath"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
)

// completeDirect sets the defaults of empty fields.
func (c *Config) completeDirect() {
	if c.DirectVolumeRoot == "" {
		c.DirectVolumeRoot = kata.DefaultRoot
	}
}

func (c *Config) checkDirect() error {
	places := map[string]string{"direct-volume-root": c.DirectVolumeRoot}
	if c.KataRuntime != "" {
		places["kata-runtime"] = c.KataRuntime
	}

	for _, root := range c.ShimRoots {
		places["shim-root "+root] = root
	}

	if err := checkAbsolute(places); err != nil {
		return err
	}

	_, err := kata.ParseHostPaths(c.HostPathMap)
	if err != nil {
		return fmt.Errorf("%w: host-path-map: %w", ErrConfig, err)
	}

	return nil
}

// direct is what the node needs for volumes that virtual machines mount.
func (c *Config) direct() (access.DirectConfig, error) {
	paths, err := kata.ParseHostPaths(c.HostPathMap)
	if err != nil {
		return access.DirectConfig{}, err
	}

	return access.DirectConfig{
		Root:      kata.NewRoot(filepath.Clean(c.DirectVolumeRoot)),
		Guest:     kata.NewGuest(kata.GuestConfig{ShimRoots: c.ShimRoots, KataRuntime: c.KataRuntime}),
		HostPaths: paths,
	}, nil
}
