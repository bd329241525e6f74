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
	// set replaces the rule, which before was the given one. It may fail
	// half-way.
	set(cgroup string, device Device, before, wanted Limits) error
	// inherited says whether a rule also holds for the cgroup's children.
	inherited() bool
	// version is that of cgroups.
	version() int
}

// detect returns the hierarchy beneath root and its directory: cgroup v2, or
// where that has no io controller v1's blkio. Errors: ErrUnsupported.
func detect(root string) (hierarchy, string, error) {
	unified, err := hasIO(root)
	if err == nil && !unified {
		err = fmt.Errorf("%w: the io controller is not in %s/cgroup.controllers", ErrUnsupported, root)
	}

	if !errors.Is(err, fs.ErrNotExist) {
		return v2{}, root, err
	}

	blkio := filepath.Join(root, "blkio")
	if _, err := os.Stat(filepath.Join(blkio, ruleFiles[0])); err == nil {
		return v1{}, blkio, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, "", fmt.Errorf("controllers of cgroups: %w", err)
	}

	hybrid := filepath.Join(root, "unified")

	has, err := hasIO(hybrid)
	if has {
		return v2{}, hybrid, nil
	}

	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, "", err
	}

	if _, err := os.Stat(blkio); err == nil {
		return nil, "", fmt.Errorf("%w: %s has no %s; the kernel lacks CONFIG_BLK_DEV_THROTTLING",
			ErrUnsupported, blkio, ruleFiles[0])
	}

	return nil, "", fmt.Errorf("%w: %s has neither the io controller (cgroup v2) nor blkio (v1)", ErrUnsupported, root)
}

func hasIO(root string) (bool, error) {
	text, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return false, fmt.Errorf("controllers of cgroups: %w", err)
	}

	return slices.Contains(strings.Fields(string(text)), "io"), nil
}

// ruleFiles are the files of v1, in the order of Limits.each.
var ruleFiles = [...]string{
	"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
	"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device",
}

// v1 has a file for each limit, with a line for each device.
type v1 struct{}

func (v1) inherited() bool { return false }
func (v1) version() int    { return 1 }

func (v1) get(cgroup string, device Device) (Limits, error) {
	var found Limits

	for i, limit := range found.each() {
		values, err := readRule(filepath.Join(cgroup, ruleFiles[i]), device)
		if err != nil {
			return Limits{}, err
		}

		if len(values) == 0 {
			continue
		}

		if *limit, err = parseValue(values[0]); err != nil {
			return Limits{}, fmt.Errorf("%s of %s: %w", ruleFiles[i], cgroup, err)
		}
	}

	return found, nil
}

func (v1) set(cgroup string, device Device, before, wanted Limits) error {
	had := before.each()

	for i, limit := range wanted.each() {
		if *limit == *had[i] {
			continue
		}

		line := fmt.Sprintf("%s %d", device, *limit)
		if err := sysfs.Write(filepath.Join(cgroup, ruleFiles[i]), line); err != nil {
			return fmt.Errorf("limit: write %q: %w", line, err)
		}
	}

	return nil
}

// ruleKeys are the keys of v2, in the order of Limits.each.
var ruleKeys = [...]string{"rbps", "wbps", "riops", "wiops"}

const (
	ruleFile  = "io.max"
	unlimited = "max"
)

// v2 has one file, with a line for each device.
type v2 struct{}

func (v2) inherited() bool { return true }
func (v2) version() int    { return 2 }

func (v2) get(cgroup string, device Device) (Limits, error) {
	values, err := readRule(filepath.Join(cgroup, ruleFile), device)
	if errors.Is(err, fs.ErrNotExist) {
		return Limits{}, fmt.Errorf("%w: %s has no %s; put io into its parents' cgroup.subtree_control",
			ErrUnsupported, cgroup, ruleFile)
	}

	if err != nil {
		return Limits{}, err
	}

	var found Limits

	for i, limit := range found.each() {
		for _, each := range values {
			value, ok := strings.CutPrefix(each, ruleKeys[i]+"=")
			if !ok {
				continue
			}

			if *limit, err = parseValue(value); err != nil {
				return Limits{}, fmt.Errorf("%s of %s: %w", ruleFile, cgroup, err)
			}
		}
	}

	return found, nil
}

func (v2) set(cgroup string, device Device, before, wanted Limits) error {
	if before == wanted {
		return nil
	}

	parts := []string{device.String()}

	for i, limit := range wanted.each() {
		value := unlimited
		if *limit > 0 {
			value = strconv.FormatInt(*limit, 10)
		}

		parts = append(parts, ruleKeys[i]+"="+value)
	}

	line := strings.Join(parts, " ")

	if err := sysfs.Write(filepath.Join(cgroup, ruleFile), line); err != nil {
		return fmt.Errorf("limit: write %q: %w", line, err)
	}

	return nil
}

// readRule returns what the file's line for device says, nil where it has none.
func readRule(path string, device Device) ([]string, error) {
	text, err := os.ReadFile(path)
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
