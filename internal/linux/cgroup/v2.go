package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

const ruleFile = "io.max"

// ruleKeys are the keys of ruleFile, in the order of Limits.each.
var ruleKeys = []string{"rbps", "wbps", "riops", "wiops"}

// v2 has one file, with a line for each device. The rule of a pod's cgroup also holds for those
// beneath it.
type v2 struct{}

func (v2) version() int { return 2 }

func (v2) get(cgroup string, device Device) (Limits, error) {
	values, err := readRule(cgroup, ruleFile, device)
	if errors.Is(err, fs.ErrNotExist) {
		return Limits{}, fmt.Errorf("%w: %s has no %s; put io into its parents' cgroup.subtree_control",
			ErrUnsupported, cgroup, ruleFile)
	}

	var found Limits

	for _, value := range values {
		key, text, _ := strings.Cut(value, "=")

		if i := slices.Index(ruleKeys, key); i >= 0 {
			*found.each()[i], err = parseValue(text)
		}

		if err != nil {
			return Limits{}, fmt.Errorf("%s of %s: %w", ruleFile, cgroup, err)
		}
	}

	return found, err
}

// set writes all limits at once, which the kernel takes or refuses as a whole.
func (v v2) set(_, top string, device Device, wanted Limits) error {
	before, err := v.get(top, device)
	if err != nil || before == wanted {
		return err
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
	if err := sysfs.Write(filepath.Join(top, ruleFile), line); err != nil {
		return fmt.Errorf("limit: write %q: %w", line, err)
	}

	return nil
}
