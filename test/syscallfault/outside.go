package syscallfault

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	numbers = regexp.MustCompile(`\d+`)
	// loopName is in the paths of a loop device and of its attributes.
	loopName = regexp.MustCompile(`/(loop\d+)(?:/|$)`)
	// loops are the directories in which loop devices and their attributes are.
	loops = []string{"/dev", "/sys/block", "/sys/devices/virtual/block", "/sys/dev/block", "/sys/fs", "/sys/class/block"}
	// Go's runtime reads now and then how many CPUs it may use.
	cpus = []string{"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"}
)

// isOther reports whether a path is that of a loop device, or of an attribute of one, that has an image
// which is not beneath the directory.
func isOther(path, directory string, backingFile func(loop string) string) bool {
	if !strings.Contains(path, "/loop") {
		return false
	}

	found := loopName.FindStringSubmatch(path)
	if found == nil {
		return false
	}

	image := backingFile(found[1])

	return image != "" && !strings.HasPrefix(image, directory+"/")
}

// backingFile returns the path of a loop device's image, "" for a device without one.
func backingFile(loop string) string {
	path, err := os.ReadFile("/sys/block/" + loop + "/loop/backing_file")
	if err != nil {
		return ""
	}

	return string(path)
}

// Outside returns which of the mounts, mount tables and loop devices a call is about, without numbers,
// "" for none.
func Outside(call *Call) string {
	switch call.Name {
	case "fsopen", "listmount", "statmount":
		return call.Path + "-"
	case "fsconfig", "fsmount":
		return "-"
	}

	name := filepath.Base(call.Path)
	isBeneath := func(directory string) bool {
		rest, is := strings.CutPrefix(call.Path, directory)

		return is && (rest == "" || rest[0] == '/')
	}

	switch {
	case filepath.Dir(filepath.Dir(call.Path)) == "/proc" && (name == "mountinfo" || name == "mounts"):
		return "mountinfo"
	case slices.ContainsFunc(loops, isBeneath) && !slices.Contains(cpus, name) && call.Path != "/dev/null":
		return numbers.ReplaceAllString(call.Path, "N")
	default:
		return ""
	}
}
