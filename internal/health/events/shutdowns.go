package events

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/linux/ctxread"
)

// shutdownEvents are the events of filesystems that shut down, by an error or by a program. A
// filesystem whose module is not loaded has none, and neither has a btrfs.
var shutdownEvents = []string{"xfs/xfs_force_shutdown", "ext4/ext4_shutdown"}

// modulePeriod is the time between two attempts to turn on the events of a filesystem whose module
// is not loaded. A shutdown of its first mount within that time is found by other probes.
const modulePeriod = 10 * time.Second

// turnOnShutdowns turns on the shutdown events of loop devices, and returns those that do not exist.
func (t *traceInstance) turnOnShutdowns(events []string) (missing []string) {
	for _, event := range events {
		dir := path.Join("events", event)
		if t.write(path.Join(dir, "filter"), loopDevices) != nil || t.write(path.Join(dir, "enable"), "1") != nil {
			missing = append(missing, event)
		}
	}

	return missing
}

// awaitModules turns on the missing shutdown events as modules are loaded, until ctx ends.
func (t *traceInstance) awaitModules(ctx context.Context, missing []string) {
	for len(missing) > 0 && ctx.Err() == nil {
		ctxread.Pause(ctx, modulePeriod)
		missing = t.turnOnShutdowns(missing)
	}
}

// isShutdown reports whether an event of that name is a shutdown.
func isShutdown(name string) bool {
	return slices.ContainsFunc(shutdownEvents, func(each string) bool { return path.Base(each) == name })
}

func parseShutdown(said string) (health.Event, error) {
	device, _, _ := strings.Cut(strings.TrimPrefix(said, "dev "), " ")
	major, minor, _ := strings.Cut(strings.Replace(device, ":", ",", 1), ",")

	var numbers [2]uint32

	for i, text := range []string{major, minor} {
		number, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return health.Event{}, fmt.Errorf("%q: %w", said, err)
		}

		numbers[i] = uint32(number)
	}

	return health.Event{Kind: health.FilesystemShutdown, Device: unix.Mkdev(numbers[0], numbers[1])}, nil
}
