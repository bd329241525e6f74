package doctor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

// check is one check of the doctor.
type check struct {
	name string
	// objects returns the names of what it checks; nil means one object without a name.
	objects func(*Config) []string
	// onNode means that only a driver with a node service requires it, ofDriver that it
	// needs a running driver.
	onNode, ofDriver bool
	// run respects the context where it can, and does not block for long elsewhere. Its finding
	// has no check and object yet.
	run func(ctx context.Context, c *Config, object string) Finding
}

func ok(seen string) Finding            { return Finding{Verdict: OK, Seen: seen} }
func skipped(why string) Finding        { return Finding{Verdict: Skipped, Seen: why} }
func warning(seen, cure string) Finding { return Finding{Verdict: Warning, Seen: seen, Cure: cure} }
func problem(seen, cure string) Finding { return Finding{Verdict: Problem, Seen: seen, Cure: cure} }

// permissionCure returns the cure of a failed open: the user that must run the command if
// permission was denied, and otherwise the given one.
func permissionCure(err error, otherwise string) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run this as the user that the driver runs as (root: sudo); if it did, let that user open it"
	}

	return otherwise
}

// checks are all checks, each after those on which it depends.
var checks = []check{
	{name: "kernel", onNode: true, run: checkKernel},
	{name: "privileges", onNode: true, run: checkPrivileges},
	{name: "mounting", onNode: true, run: checkMounting},
	{name: "events", onNode: true, objects: eventSources, run: checkEventSource},
	{name: "filesystem", onNode: true, objects: filesystems, run: checkFilesystem},
	{name: "tools", onNode: true, objects: filesystems, run: checkTools},
	{name: "loop-devices", onNode: true, run: checkLoopDevices},
	{name: "pool", objects: pools, run: checkPool},
	{name: "pool-space", objects: pools, run: inPool(checkPoolSpace)},
	{name: "pool-reflink", objects: pools, run: inPool(checkPoolReflink)},
	{name: "pool-directories", objects: pools, run: inPool(checkPoolDirectories)},
	{name: "pool-attach", onNode: true, objects: pools, run: inPool(checkAttach)},
	{name: "state", run: checkState},
	{name: "clock", run: checkClock},
	{name: "kubelet", onNode: true, run: checkKubelet},
	{name: "queues", onNode: true, run: checkQueues},
	{name: "cgroups", onNode: true, run: checkCgroups},
	{name: "direct-volumes", onNode: true, run: checkDirectVolumes},
	{name: "socket", ofDriver: true, run: checkSocket},
	{name: "driver", ofDriver: true, run: checkDriver},
	{name: "registration", onNode: true, ofDriver: true, run: checkRegistration},
	{name: "leftover-devices", onNode: true, run: checkLeftoverDevices},
	{name: "leftover-mounts", onNode: true, run: checkLeftoverMounts},
}

// Names returns the names of all checks in their order.
func Names() []string {
	names := make([]string, len(checks))
	for i, each := range checks {
		names[i] = each.name
	}
	return names
}

// reasonToSkip returns why the check does not apply, or "".
func (k *check) reasonToSkip(c *Config) string {
	switch {
	case k.onNode && !c.node():
		return "mode " + c.Mode + " does not need it"
	case k.ofDriver && c.WithoutDriver:
		return "no driver is expected to run"
	default:
		return ""
	}
}

func pools(c *Config) []string { return slices.Sorted(maps.Keys(c.Pools)) }

func filesystems(*Config) []string { return filesystem.Names() }
