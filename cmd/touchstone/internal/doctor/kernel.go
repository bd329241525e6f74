package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/health/events"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/pool/embedded"
)

// The oldest kernel with all system calls that a node requires; mount_setattr is the newest.
const (
	oldestMajor = 5
	oldestMinor = 12
)

func checkKernel(context.Context, *Config, string) Finding {
	var (
		name         unix.Utsname
		major, minor int
	)

	if err := unix.Uname(&name); err != nil {
		return problem("its version is unknown: "+err.Error(), "run it on Linux")
	}

	release := unix.ByteSliceToString(name.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return problem("its version can't be read from "+release, "run it on Linux")
	}

	seen := "Linux " + release

	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return problem(seen, fmt.Sprintf("the driver needs %d.%d or newer: install a newer kernel", oldestMajor, oldestMinor))
	}

	if !mount.HasStatmount() {
		seen += "; before 6.13 a probe of a mount takes longer the more mounts there are"
	}

	if events.LoopWritesReported() {
		seen += "; before 6.15 a volume without direct I/O may be reported as written by a foreign program"
	}

	return ok(seen)
}

// inFirstUserNamespace reports whether /proc/self/uid_map is that of the initial user
// namespace.
func inFirstUserNamespace() bool {
	text, err := os.ReadFile("/proc/self/uid_map")

	return err != nil || slices.Equal(strings.Fields(string(text)), []string{"0", "0", "4294967295"})
}

// privileged reports whether this process may mount.
func privileged() bool { return capable(unix.CAP_SYS_ADMIN) && inFirstUserNamespace() }

func capable(capability int) bool {
	const wordBits = 32

	var data [2]unix.CapUserData

	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])

	return err == nil && data[capability/wordBits].Effective&(1<<(capability%wordBits)) != 0
}

func checkPrivileges(context.Context, *Config, string) Finding {
	const cure = "run it as root, and in a container privileged (securityContext.privileged: true)"

	var lacking []string

	for _, each := range []struct {
		name       string
		capability int
	}{
		{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN},
		{"CAP_MKNOD", unix.CAP_MKNOD},
		{"CAP_CHOWN", unix.CAP_CHOWN},
		{"CAP_FOWNER", unix.CAP_FOWNER},
		{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE},
	} {
		if !capable(each.capability) {
			lacking = append(lacking, each.name)
		}
	}

	switch {
	case os.Geteuid() != 0:
		return problem(fmt.Sprintf("this process is of user %d, and a node's driver mounts", os.Geteuid()), cure)
	case len(lacking) > 0:
		return problem("root without "+strings.Join(lacking, ", "), cure)
	case !inFirstUserNamespace():
		return problem("root of a user namespace of its own, which may mount no disk",
			"run it without user namespaces (hostUsers: true, no rootless container engine)")
	case !capable(unix.CAP_SYS_RESOURCE):
		return warning("root without CAP_SYS_RESOURCE, so that no ext4 grows while it is mounted",
			"give it that capability; until then a volume grows when it is staged again")
	default:
		return ok("root with all capabilities that are needed")
	}
}

// checkMounting uses the driver's system calls; its mounts stay detached from the tree.
func checkMounting(context.Context, *Config, string) Finding {
	err := mountDetached()

	switch {
	case err == nil:
		return ok("fsopen, fsmount, open_tree, mount_setattr and openat2 work")
	case errors.Is(err, mount.ErrKernelUnsupported), errors.Is(err, unix.ENOSYS):
		return problem(err.Error(), "install a newer kernel, or have the sandbox (seccomp) allow these calls")
	default:
		return problem(err.Error(), "see privileges, and whether a sandbox (seccomp, AppArmor, SELinux) forbids to mount")
	}
}

func mountDetached() error {
	allowed, err := mount.NewAllowedDirs("/")
	if err != nil {
		return err
	}

	proc, err := allowed.Target("/proc")
	if err != nil {
		return err
	}

	proc.Close()

	tree, err := mount.NewReadOnlyTmpfs("touchstone doctor", map[string][]byte{"tried": nil})
	if err != nil {
		return err
	}
	defer tree.Close()

	root, err := tree.OpenRoot()
	if err != nil {
		return err
	}
	defer root.Close()

	bound, err := mount.Bind(root, mount.Options{}.WithReadOnly())
	if err != nil {
		return err
	}

	bound.Close()

	return nil
}

// sources returns the event sources of a driver with a node service, not connected.
func sources() []health.Source {
	return []health.Source{
		events.NewBlockErrors("touchstone-doctor"), events.NewFilesystemErrors(), events.NewMounts(),
		events.NewDevices(), events.NewFiles(),
	}
}

func eventSources(*Config) []string {
	all := sources()
	names := make([]string, 0, len(all))

	for _, each := range all {
		names = append(names, each.Name())
	}

	return names
}

func checkEventSource(_ context.Context, c *Config, object string) Finding {
	if c.HealthPolling {
		return skipped("events are turned off (--health-events=false)")
	}

	all := sources()
	i := slices.IndexFunc(all, func(each health.Source) bool { return each.Name() == object })

	if err := all[i].Supported(); err != nil {
		return warning(err.Error(), "the driver works without them, and finds failures only by periodic probes (--health-relist-period); "+
			"a newer kernel, or more privileges, would report them at once")
	}

	return ok("the kernel reports them")
}

// isRequired reports whether the driver requires a filesystem: ext4 is the default of a
// StorageClass, and --pool-image-fs that of an embedded pool.
func (c *Config) isRequired(fsType string) bool {
	return fsType == filesystem.Ext4 || fsType == cmp.Or(c.PoolImageFS, embedded.DefaultFilesystem) && c.PoolImageBytes > 0
}

// missingFilesystem returns a problem for a required filesystem, else a warning.
func (c *Config) missingFilesystem(fsType, seen, cure string) Finding {
	if c.isRequired(fsType) {
		return problem(seen, cure)
	}

	return warning(seen+"; volumes with it can't be used here", cure)
}

func checkFilesystem(_ context.Context, c *Config, fsType string) Finding {
	if listed, err := os.ReadFile("/proc/filesystems"); err == nil && slices.Contains(strings.Fields(string(listed)), fsType) {
		return ok("the kernel has it")
	}

	// Like a mount, this loads the module.
	err := mount.CheckSupport(fsType)

	switch {
	case err == nil:
		return ok("the kernel has it")
	case errors.Is(err, mount.ErrKernelUnsupported):
		return c.missingFilesystem(fsType, "the kernel does not have it, and no module of it could be loaded",
			"on the host: modprobe "+fsType+", or install the package of the kernel's further modules")
	default:
		return warning("it is not loaded, and this process can't determine whether there is a module: "+err.Error(),
			"on the host: modprobe "+fsType)
	}
}

func checkTools(_ context.Context, c *Config, fsType string) Finding {
	var (
		found, missing []string
		pkg            string
	)

	for _, tool := range filesystem.Tools(fsType) {
		if _, err := tool.Find(); err != nil {
			missing, pkg = append(missing, tool.Name), tool.Package
		} else {
			found = append(found, tool.Name)
		}
	}

	if len(missing) > 0 {
		return c.missingFilesystem(fsType, strings.Join(missing, ", ")+" not installed",
			"install them where the driver runs (Debian and Ubuntu: apt-get install "+pkg+"); its image has them")
	}

	return ok(strings.Join(found, ", "))
}
