package syscallfault

import (
	"os"
	"regexp"
	"strings"
)

var (
	numbers = regexp.MustCompile(`\d+`)
	// loopName is in the paths of a loop device and of its attributes.
	loopName = regexp.MustCompile(`/(loop\d+)(?:/|$)`)
	loops    = regexp.MustCompile(`^/(dev|sys/block|sys/devices/virtual/block|sys/dev/block|sys/fs|sys/class/block)(/|$)`)
	// Go's runtime reads now and then how many CPUs it may use.
	cpus   = regexp.MustCompile(`/cpu\.(max|cfs_quota_us|cfs_period_us)$`)
	mounts = regexp.MustCompile(`^/proc/(self|thread-self|\d+)/(mountinfo|mounts)$`)
)

// isOther reports whether a path is that of a loop device, or of an attribute of one, that has an image
// which is not beneath the directory.
func isOther(path, directory string, backingFile func(loop string) string) bool {
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

	switch {
	case mounts.MatchString(call.Path):
		return "mountinfo"
	case loops.MatchString(call.Path) && !cpus.MatchString(call.Path) && call.Path != "/dev/null":
		return numbers.ReplaceAllString(call.Path, "N")
	default:
		return ""
	}
}
