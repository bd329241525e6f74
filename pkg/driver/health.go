package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/health/events"
	"github.com/touchstone-csi/touchstone/pkg/pool"
)

const (
	// historySize is how many changes of conditions are kept for people.
	historySize = 256
	// instanceBytes of a hash tell one driver of a machine from the others.
	instanceBytes = 6
)

// healthSettings are what all monitors of the process share.
func (c *Config) healthSettings(registry prometheus.Registerer) health.Settings {
	return health.Settings{
		PollingOnly: c.HealthPolling, RelistPeriod: c.HealthRelistPeriod, EventedRelistPeriod: c.HealthEventedRelistPeriod,
		ProbeTimeout: c.HealthProbeTimeout, Metrics: health.NewMetrics(registry), History: health.NewHistory(historySize),
	}
}

// instance names what the driver has in the kernel: the same at each start, and
// another one for each driver of the machine.
func (c *Config) instance() string {
	sum := sha256.Sum256([]byte(c.StateDir))

	return "touchstone-" + hex.EncodeToString(sum[:instanceBytes])
}

// controllerSources tell of what happens to volumes in the pools.
func (r *rooms) controllerSources() []health.Source {
	if r.health.PollingOnly {
		return nil
	}

	return []health.Source{events.NewFilesOf(func() []string { return volumeRooms(r.pools) }, r.pools.Changed)}
}

// nodeSources tell of what happens to volumes in use, marks among them of the
// filesystems that it is given; it is nil where there are no events.
func (r *rooms) nodeSources(config *Config, ephemeral *pool.Set) (sources []health.Source, marks *events.FilesystemErrors) {
	if r.health.PollingOnly {
		return nil, nil
	}

	marks = events.NewFilesystemErrors()

	return []health.Source{
		events.NewBlockErrors(config.instance()), marks, events.NewMounts(), events.NewDevices(),
		events.NewFilesOf(func() []string { return append(volumeRooms(r.pools), volumeRooms(ephemeral)...) }, r.pools.Changed),
	}, marks
}

// markWith returns nil where there is nobody to tell of a filesystem's errors.
func markWith(marks *events.FilesystemErrors) func(*os.File) error {
	if marks == nil {
		return nil
	}

	return marks.Mark
}

func volumeRooms(pools *pool.Set) []string {
	var paths []string

	for _, place := range pools.Served() {
		paths = append(paths, place.VolumeDirectories()...)
	}

	return paths
}
