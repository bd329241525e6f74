package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

// DefaultCgroupRoot is where cgroups are mounted.
const DefaultCgroupRoot = "/sys/fs/cgroup"

// unlimited is how cgroup v2 writes that there is no limit.
const unlimited = "max"

// Device is a block device by its numbers.
type Device struct {
	Major, Minor uint32
}

// String is how cgroupfs writes a device.
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// Limits are for one device and one pod; 0 is no limit.
type Limits struct {
	ReadBytesPerSecond, WriteBytesPerSecond, ReadIOPS, WriteIOPS int64
}

// each are the limits in the order of ruleFiles and ruleKeys.
func (l *Limits) each() []*int64 {
	return []*int64{&l.ReadBytesPerSecond, &l.WriteBytesPerSecond, &l.ReadIOPS, &l.WriteIOPS}
}

// hierarchy is the tree of cgroups that rules block devices.
type hierarchy interface {
	// get returns the rule for device in the cgroup.
	get(cgroup string, device Device) (Limits, error)
	// set replaces the rule of the pod whose cgroup is top, or leaves it as it was.
	set(podUID, top string, device Device, wanted Limits) error
	// version is that of cgroups.
	version() int
}

// detect returns the machine's hierarchy and its directory: cgroup v2, or where that has no io
// controller v1's blkio. Errors: ErrUnsupported.
func (l *Limiter) detect() (hierarchy, string, error) {
	unified, err := hasIO(l.root)
	if err == nil && !unified {
		err = fmt.Errorf("%w: the io controller is not in %s/cgroup.controllers", ErrUnsupported, l.root)
	}

	if !errors.Is(err, fs.ErrNotExist) {
		return v2{}, l.root, err
	}

	blkio := filepath.Join(l.root, "blkio")
	if _, err := os.Stat(filepath.Join(blkio, ruleFiles[0])); err == nil {
		return l.v1, blkio, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("controllers of cgroups: %w", err)
	}

	hybrid := filepath.Join(l.root, "unified")

	has, err := hasIO(hybrid)
	if has || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return v2{}, hybrid, err
	}

	if _, err := os.Stat(blkio); err == nil {
		return nil, "", fmt.Errorf("%w: %s has no %s; the kernel lacks CONFIG_BLK_DEV_THROTTLING",
			ErrUnsupported, blkio, ruleFiles[0])
	}

	return nil, "", fmt.Errorf("%w: %s has neither the io controller (cgroup v2) nor blkio (v1)", ErrUnsupported, l.root)
}

func hasIO(root string) (bool, error) {
	text, err := sysfs.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return false, fmt.Errorf("controllers of cgroups: %w", err)
	}

	return slices.Contains(strings.Fields(string(text)), "io"), nil
}

// readRule returns what the file's line for device says, nil where it has none.
func readRule(cgroup, file string, device Device) ([]string, error) {
	text, err := sysfs.ReadFile(filepath.Join(cgroup, file))
	if err != nil {
		return nil, fmt.Errorf("read the limits: %w", err)
	}

	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == device.String() {
			return fields[1:], nil
		}
	}

	return nil, nil
}

func parseValue(text string) (int64, error) {
	if text == unlimited {
		return 0, nil
	}

	return strconv.ParseInt(text, 10, 64)
}
