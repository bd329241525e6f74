package driver

import (
	"strings"

	"github.com/touchstone-csi/touchstone/internal/csi/capability"
)

// Patterns of values that are not empty, as far as a pattern can say what the driver accepts. They begin
// with examples where Helm's message about a value that does not match needs them.
const (
	absolutePattern = `^/`
	// filePattern refuses a bare word and a directory.
	filePattern = `/[^/]+$`
	// nodePattern has no control characters.
	nodePattern     = `^[^\x00-\x1f\x7f]{1,256}$`
	hostLabel       = `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	hostPattern     = `^` + hostLabel + `(\.` + hostLabel + `)*\.?$`
	portPattern     = `:([0-5]?[0-9]{1,4}|6[0-5][0-9]{3})`
	loopbackPattern = `^(tcp://)?(localhost|127\.[0-9.]+|\[[0:]+1\])` + portPattern + `$`
	addressPattern  = `^(unix:|/).*[^/]$|` + loopbackPattern
	// callLogPattern is a file, or memory only.
	callLogPattern   = `^` + CallLogRing + `$|` + filePattern
	collectorPattern = `^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])` + portPattern + `/?$`
	endpointPattern  = `^(unix:(//)?)?/[^/]`
	labelPattern     = `[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`
	keyPattern       = `^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?` + labelPattern
	taintPattern     = keyPattern + `$`
	topologyPattern  = keyPattern + `=` + labelPattern + `$`
	hostPathPattern  = `^/[^=]*=/`
	sizes            = `(10Gi|10GiB|10G|4096|\+?([0-9]{1,19}(\.[0-9]*)?|\.[0-9]+)([numk]|[kMGTPE]B?|[KMGTPE]iB?|[eE][+-]?(0?[0-9]|1[0-8]))?)$`
	sizePattern      = `^` + sizes
	capacityPattern  = `^[^=]+=` + sizes
)

// capabilityPattern has all names, also those that not both services have.
func capabilityPattern() string {
	names := strings.NewReplacer(" (or ", "|", ")", "").Replace(strings.Join(capability.Names(), "|"))

	return `^((controller|node):)?(` + names + `)$`
}
