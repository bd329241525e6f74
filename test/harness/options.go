package harness

import (
	"time"

	"github.com/touchstone-csi/touchstone/internal/driver"
)

// WithoutCapabilities starts a driver that does not have the capabilities.
func WithoutCapabilities(names ...string) Option {
	return func(c *driver.Config) { c.Disabled = names }
}

const (
	// Often is the time between two relists that a test waits for.
	Often = 50 * time.Millisecond
	// never is the time between two relists where a test wants none.
	never = time.Hour
)

// EventsOnly leaves relists out: each observation comes from an event.
func EventsOnly(c *driver.Config) { c.Health.RelistPeriod, c.Health.EventedRelistPeriod = never, never }

// Relists has both: what has no event is found by the next relist.
func Relists(c *driver.Config) { c.Health.RelistPeriod, c.Health.EventedRelistPeriod = Often, Often }

// PollingOnly leaves events out, as --health-events=false does.
func PollingOnly(c *driver.Config) { c.Health.PollingOnly, c.Health.RelistPeriod = true, Often }

// PoolAt puts a pool into the directory.
func PoolAt(name, directory string) Option {
	return func(c *driver.Config) { c.Pools[name] = directory }
}

// InMode starts a driver with the services of the mode.
func InMode(mode driver.Mode) Option { return func(c *driver.Config) { c.Mode = mode } }

// WithMountGroup starts a driver that has the capability VOLUME_MOUNT_GROUP.
func WithMountGroup(c *driver.Config) { c.VolumeMountGroup = true }

// EmbeddedPool gives each pool a filesystem of its own in an image of so many bytes.
func EmbeddedPool(bytes int64) Option {
	return func(c *driver.Config) { c.PoolImageBytes = bytes }
}

// PoolFilesystem gives new embedded pools this filesystem.
func PoolFilesystem(name string) Option { return func(c *driver.Config) { c.PoolImageFS = name } }
