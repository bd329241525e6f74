package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// loops returns the directories of the machine's loop devices in sysfs.
func loops() map[string]bool {
	found, _ := filepath.Glob("/sys/block/loop*") // the pattern is a good one
	all := map[string]bool{}

	for _, each := range found {
		all[each] = true
	}

	return all
}

// removeLoops removes free loop devices that were not there before. A driver keeps its devices, and each start
// of a driver reads all of them: those of a topic with many volumes would slow down what is measured next.
func removeLoops(before map[string]bool) error {
	control, err := os.Open("/dev/loop-control")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove loop devices: %w", err)
	}
	defer control.Close()

	var number int

	for each := range loops() {
		_, err := os.Stat(filepath.Join(each, "loop", "backing_file"))
		if before[each] || err == nil {
			continue
		}

		if _, err := fmt.Sscanf(filepath.Base(each), "loop%d", &number); err != nil {
			return fmt.Errorf("the number of %s: %w", each, err)
		}

		// Another program may have opened it meanwhile.
		if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove %s: %w", each, err)
		}
	}

	return nil
}
