package driver

import (
	"crypto/sha256"
	"fmt"
	"os"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/pool"
)

const (
	// historySize is how many changes of conditions are kept for people.
	historySize = 256
	// instanceBytes is the part of a hash that distinguishes the drivers of a machine.
	instanceBytes = 6
)

// instance names what the driver has in the kernel: the same at each start, and
// another one for each driver of the machine.
func (c *Config) instance() string {
	sum := sha256.Sum256([]byte(c.StateDir))

	return fmt.Sprintf("touchstone-%x", sum[:instanceBytes])
}

// controllerSources returns the event sources of volumes in the pools.
func (r *components) controllerSources() []health.Source {
	if r.config.Health.PollingOnly {
		return nil
	}

	return []health.Source{events.NewFilesOf(func() []string { return volumeDirectories(r.pools) }, r.pools.Changed)}
}

// nodeSources returns the event sources of volumes in use, and the function that marks a
// filesystem for one of them, nil without events.
func (r *components) nodeSources(config *Config, ephemeral *pool.Set) (sources []health.Source, mark func(*os.File) error) {
	if r.config.Health.PollingOnly {
		return nil, nil
	}

	marks := events.NewFilesystemErrors()

	return []health.Source{
		events.NewBlockErrors(config.instance()), marks, events.NewMounts(), events.NewDevices(),
		events.NewFilesOf(func() []string { return append(volumeDirectories(r.pools), volumeDirectories(ephemeral)...) }, r.pools.Changed),
	}, marks.Mark
}

func volumeDirectories(pools *pool.Set) []string {
	var paths []string

	for _, p := range pools.Served() {
		paths = append(paths, p.VolumeDirectories()...)
	}

	return paths
}
