package direct

import (
	"log/slog"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/node/access"
	"github.com/touchstone-csi/touchstone/pkg/node/device"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
	"github.com/touchstone-csi/touchstone/pkg/node/staged"
)

// Config is what direct volumes depend on.
type Config struct {
	Runtimes kata.Runtimes
	Pools    staged.Pools
	Dirs     *mount.AllowedDirs
	Loops    *loop.Loops
	Observer *observe.Observer
	Devices  *device.Devices
	// Volumes are the records of staged volumes; that of a direct volume has how far its filesystem was
	// grown.
	Volumes *staged.Records[*staged.Volume]
	Shared  access.Shared
	Checker access.Checker
	// Run starts the tools of the filesystems; nil starts the real ones.
	Run filesystem.Runner
	Log *slog.Logger
}

// New returns the access of direct volumes.
func New(config Config) *Access {
	raw := access.NewRawDevice(config.Shared.Targets, config.Loops)
	guard := &Guard{config: &config}

	return &Access{
		RawDevice: raw, Guard: guard,
		Assignments: &Assignments{config: &config, guard: guard, raw: raw}, config: &config,
	}
}
