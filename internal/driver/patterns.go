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
	nodePattern = `^[^\x00-\x1f\x7f]{1,256}$`
	hostLabel   = `[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	hostName    = hostLabel + `(\.` + hostLabel + `)*`
	hostPattern = `^` + hostName + `\.?$`
	// portPattern is 0 to 65535.
	portPattern     = `:0*([0-9]{1,4}|[1-5][0-9]{4}|6([0-4][0-9]{3}|5([0-4][0-9]{2}|5([0-2][0-9]|3[0-5]))))`
	octet           = `(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	loopbackPattern = `^(tcp://)?(localhost|127(\.` + octet + `){3}|\[(::|(0:){7})1\])` + portPattern + `$`
	// addressPattern has paths of at most 107 bytes, as endpointPattern.
	addressPattern = `^(unix:(//)?.?|/).{0,105}[^/]$|` + loopbackPattern
	// callLogPattern is a file, or memory only.
	callLogPattern   = `^` + CallLogRing + `$|` + filePattern
	collectorPattern = `^https?://(` + hostName + `|\[[0-9A-Fa-f:.]+\])` + portPattern + `/?$`
	endpointPattern  = `^(unix:(//)?)?/([^/].{0,104})?[^/]$`
	labelPattern     = `[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?`
	// topologyPrefix has the labels of DNS, taintPrefix those of Kubernetes, which are of any length.
	topologyPrefix  = `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*`
	taintPrefix     = `[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*`
	taintPattern    = `^(` + taintPrefix + `/)?` + labelPattern + `$`
	topologyPattern = `^(` + topologyPrefix + `/)?` + labelPattern + `=` + labelPattern + `$`
	hostPathPattern = `^/[^=]*=/`
	sizes           = `(10Gi|10GiB|10G|4096|\+?([0-9]{1,19}(\.[0-9]*)?|\.[0-9]+)([numk]|[kMGTPE]B?|[KMGTPE]iB?|[eE][+-]?(0?[0-9]|1[0-8]))?)$`
	sizePattern     = `^` + sizes
	capacityPattern = `^[^=]+=` + sizes
)

// capabilityPattern has all names, and those of both services also with one of them.
func capabilityPattern() string {
	names := strings.NewReplacer(" (or ", "|", ")", "").Replace(strings.Join(capability.Names(), "|"))

	return `^(` + names + `|(controller|node):(` + strings.Join(capability.NamesOfBoth(), "|") + `))$`
}
