package doctor

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
)

// check is one of the doctor's questions.
type check struct {
	name string
	// objects are what it is asked about; nil is one thing that needs no name.
	objects func(*Config) []string
	// onNode means that only a driver with a node needs it, ofDriver that there has
	// to be a driver.
	onNode, ofDriver bool
	// look has to heed the context where it can, and not to wait for long without.
	run func(ctx context.Context, c *Config, object string) result
}

// answer is a Finding without its subject.
type result struct {
	verdict    Verdict
	seen, cure string
}

func ok(seen string) result            { return result{verdict: OK, seen: seen} }
func skipped(why string) result        { return result{verdict: Skipped, seen: why} }
func warning(seen, cure string) result { return result{Warning, seen, cure} }
func problem(seen, cure string) result { return result{Problem, seen, cure} }

// permissionCure is for what can't be opened: by whom it was tried comes before what is wrong
// with it.
func permissionCure(err error, otherwise string) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run this as the user that the driver runs as; if it did, let that user open it"
	}

	return otherwise
}

// checks are in the order in which things stand on each other.
func checks() []check {
	return []check{
		{name: "kernel", onNode: true, run: checkKernel},
		{name: "privileges", onNode: true, run: checkPrivileges},
		{name: "mounting", onNode: true, run: checkMounting},
		{name: "events", onNode: true, objects: eventSources, run: checkEventSource},
		{name: "filesystem", onNode: true, objects: filesystems, run: checkFilesystem},
		{name: "tools", onNode: true, objects: filesystems, run: checkTools},
		{name: "loop-devices", onNode: true, run: checkLoopDevices},
		{name: "pool", objects: pools, run: checkPool},
		{name: "pool-space", objects: pools, run: checkPoolSpace},
		{name: "pool-reflink", objects: pools, run: checkPoolReflink},
		{name: "pool-attach", onNode: true, objects: pools, run: checkAttach},
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
}

// Names are those of all checks, in their order.
func Names() []string {
	all := checks()
	names := make([]string, 0, len(all))

	for _, each := range all {
		names = append(names, each.name)
	}

	return names
}

// objectsOf is "" for what needs no name.
func (k *check) objectsOf(c *Config) []string {
	if k.objects == nil {
		return []string{""}
	}

	return k.objects(c)
}

// superfluous says why there is nothing to look at, or "".
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
