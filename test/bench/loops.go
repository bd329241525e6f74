package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/touchstone-csi/touchstone/internal/linux/loop"
)

// loopBusyLimit is how long a free loop device is awaited that another program has open.
const loopBusyLimit = time.Second

// loopDevices returns the directories of the machine's loop devices in sysfs.
func loopDevices() map[string]bool {
	found, _ := filepath.Glob("/sys/block/loop*") // the pattern is a good one
	all := map[string]bool{}

	for _, each := range found {
		all[each] = true
	}

	return all
}

// removeLoops removes free loop devices that were not there before. A driver keeps its devices, and each start
// of a driver reads all of them: those of a topic with many volumes would slow down what is measured next.
func removeLoops(ctx context.Context, before map[string]bool) (failure error) {
	loops := loop.NewLoops(loop.LoopsOptions{})

	for each := range loopDevices() {
		if _, err := os.Stat(filepath.Join(each, "loop", "backing_file")); before[each] || err == nil {
			continue
		}

		var number int
		if _, err := fmt.Sscanf(filepath.Base(each), "loop%d", &number); err != nil {
			return fmt.Errorf("the number of %s: %w", each, err)
		}

		limited, cancel := context.WithTimeout(ctx, loopBusyLimit)
		if err := loops.Remove(limited, number); !errors.Is(err, loop.ErrInUse) {
			failure = errors.Join(failure, err)
		}

		cancel()
	}

	return failure
}
