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
	look func(ctx context.Context, c *Config, object string) answer
}

// answer is a Finding without its subject.
type answer struct {
	verdict    Verdict
	seen, cure string
}

func ok(seen string) answer            { return answer{verdict: OK, seen: seen} }
func skipped(why string) answer        { return answer{verdict: Skipped, seen: why} }
func warning(seen, cure string) answer { return answer{Warning, seen, cure} }
func problem(seen, cure string) answer { return answer{Problem, seen, cure} }

// cureOf is for what can't be opened: by whom it was tried comes before what is wrong
// with it.
func cureOf(err error, otherwise string) string {
	if errors.Is(err, fs.ErrPermission) {
		return "run this as the user that the driver runs as; if it did, let that user open it"
	}

	return otherwise
}

// checks are in the order in which things stand on each other.
func checks() []check {
	return []check{
		{name: "kernel", onNode: true, look: lookAtKernel},
		{name: "privileges", onNode: true, look: lookAtPrivileges},
		{name: "mounting", onNode: true, look: tryMounting},
		{name: "events", onNode: true, objects: eventSources, look: lookAtSource},
		{name: "filesystem", onNode: true, objects: filesystems, look: lookAtFilesystem},
		{name: "tools", onNode: true, objects: filesystems, look: lookForTools},
		{name: "loop-devices", onNode: true, look: lookAtLoopDevices},
		{name: "pool", objects: pools, look: lookAtPool},
		{name: "pool-space", objects: pools, look: lookAtPoolSpace},
		{name: "pool-reflink", objects: pools, look: lookAtPoolReflink},
		{name: "pool-attach", onNode: true, objects: pools, look: tryToAttach},
		{name: "state", look: lookAtState},
		{name: "clock", look: lookAtClock},
		{name: "kubelet", onNode: true, look: lookAtKubelet},
		{name: "queues", onNode: true, look: lookAtQueues},
		{name: "cgroups", onNode: true, look: lookAtCgroups},
		{name: "direct-volumes", onNode: true, look: lookAtDirectVolumes},
		{name: "socket", ofDriver: true, look: lookAtSocket},
		{name: "driver", ofDriver: true, look: askDriver},
		{name: "registration", onNode: true, ofDriver: true, look: lookAtRegistration},
		{name: "leftover-devices", onNode: true, look: lookForDevices},
		{name: "leftover-mounts", onNode: true, look: lookForMounts},
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
func (k *check) superfluous(c *Config) string {
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
