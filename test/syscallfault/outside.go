package syscallfault

import (
	"regexp"
)

var (
	numbers = regexp.MustCompile(`\d+`)
	loops   = regexp.MustCompile(`^/(dev|sys/block|sys/devices/virtual/block|sys/dev/block|sys/fs|sys/class/block)(/|$)`)
	// Go's runtime reads now and then how many CPUs it may use.
	cpus   = regexp.MustCompile(`/cpu\.(max|cfs_quota_us|cfs_period_us)$`)
	mounts = regexp.MustCompile(`^/proc/(self|thread-self|\d+)/(mountinfo|mounts)$`)
)

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
