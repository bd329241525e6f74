package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/cgroup"
	"github.com/touchstone-csi/touchstone/internal/linux/eintr"
	"github.com/touchstone-csi/touchstone/internal/linux/filesystem"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/queue"
	"github.com/touchstone-csi/touchstone/internal/linux/sysfs"
)

const loopModule = "/sys/module/loop"

func checkLoopDevices(context.Context, *Config, string) Finding {
	if _, err := os.Stat(loopModule); errors.Is(err, fs.ErrNotExist) {
		return warning("the kernel's loop driver is not loaded yet",
			"on the host: modprobe loop, and have it loaded at each boot (/etc/modules-load.d)")
	}

	// With partitions a device's minor number differs from its loop number. A parameter that cannot
	// be read counts as not set.
	if parts, _ := sysfs.Read(filepath.Join(loopModule, "parameters", "max_part")); parts != "0" && parts != "" {
		return problem("loop.max_part is "+parts+", so that loop devices have other minor numbers than the driver expects",
			"load the loop driver without max_part (/etc/modprobe.d, or loop.max_part= of the kernel's command line)")
	}

	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return problem(err.Error(), "mount sysfs at /sys")
	}

	own := 0

	for _, each := range attached {
		if each.Number >= loop.DefaultFirst {
			own++
		}
	}

	// The driver adds the devices that it needs, independent of /dev and max_loop.
	return ok(fmt.Sprintf("%d images are attached, %d of them from number %d on, where %d more can be",
		len(attached), own, loop.DefaultFirst, loop.MaxNumber+1-loop.DefaultFirst-own))
}

// fewStateBytes is little even for the state of a few volumes, which is compacted into a second
// file from time to time.
const fewStateBytes = 64 << 20

func checkState(_ context.Context, c *Config, _ string) Finding {
	point, err := mountOf(c.StateDir)

	switch {
	case errors.Is(err, fs.ErrNotExist):
		return warning(c.StateDir+" is not there", "the driver makes it at its start; "+
			"if it should be there already, mount its filesystem, or name it with --state-dir")
	case err != nil:
		return problem(err.Error(), permissionCure(err, "it has to be a directory"))
	}

	if found := checkStorageMount(c.StateDir, point); found.Verdict != OK {
		return found
	}

	took, err := measureSync(c.StateDir)
	if err != nil {
		return problem(err.Error(), "see who owns it, whether it is full, and what the kernel's log says of its disk")
	}

	seen := fmt.Sprintf("%s is writable, on %s of %s; a write was on disk after %s", c.StateDir, point.FSType, point.Source,
		took.Round(time.Microsecond))

	if usage, err := usageOf(c.StateDir); err == nil && usage.Bytes.Available < fewStateBytes {
		return warning(seen+", and "+formatBytes(usage.Bytes.Available)+" are available",
			"free some space: without it, no change can be recorded")
	}

	return ok(seen)
}

// measureSync writes a block to an unnamed file and measures until it is on disk.
func measureSync(directory string) (time.Duration, error) {
	file, err := filesystem.CreateUnnamed(directory)
	if err != nil {
		return 0, err
	}
	defer file.Close()

	began := time.Now()

	if _, err := file.Write(make([]byte, blockBytes)); err != nil {
		return 0, fmt.Errorf("write to %s: %w", directory, err)
	}

	if err := eintr.Retry(func() error { return unix.Fdatasync(int(file.Fd())) }); err != nil {
		return 0, fmt.Errorf("fdatasync in %s: %w", directory, err)
	}

	return time.Since(began), nil
}

// clockTolerance is how far a file's time may be ahead of the clock: network filesystems use
// their server's clock.
const clockTolerance = time.Minute

func checkClock(_ context.Context, c *Config, _ string) Finding {
	const cure = "set the clock, and keep it right (systemd-timesyncd, chrony): times of snapshots and of checks come from it"

	now := time.Now()
	seen := "it is " + now.UTC().Format(time.RFC3339)

	if now.Before(c.Built) {
		return problem(seen+", and this program was built "+c.Built.UTC().Format(time.RFC3339), cure)
	}

	if written := lastWriteIn(c.StateDir); now.Add(clockTolerance).Before(written) {
		return problem(seen+", and the state was written "+written.UTC().Format(time.RFC3339)+": the clock was set back", cure)
	}

	return ok(seen)
}

// lastWriteIn returns the latest time at which a file of a directory was written, or zero.
func lastWriteIn(directory string) time.Time {
	var newest time.Time

	entries, _ := os.ReadDir(directory)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().After(newest) {
			newest = info.ModTime()
		}
	}

	return newest
}

// hasKubelet reports whether a kubelet uses its directory.
func (c *Config) hasKubelet() bool {
	_, err := os.Stat(filepath.Join(c.KubeletDir, "pods"))

	return err == nil
}

// checkKubelet checks mount propagation: the driver's mounts below the kubelet's directory
// have to propagate to the kubelet and its containers. In a pod mountPropagation:
// Bidirectional does that.
func checkKubelet(_ context.Context, c *Config, _ string) Finding {
	const cure = "in a pod: mountPropagation: Bidirectional for the volume with the kubelet's directory; " +
		"on a host: mount --make-rshared /"

	point, err := mountOf(c.KubeletDir)

	switch {
	case errors.Is(err, fs.ErrNotExist) && os.Getenv("KUBERNETES_SERVICE_HOST") == "":
		return ok("no kubelet is here: there is no " + c.KubeletDir + "; volumes are mounted below the directories of --allow-path")
	case errors.Is(err, fs.ErrNotExist):
		return problem(c.KubeletDir+" is not there", "name the kubelet's directory with --kubelet-dir, "+
			"and in a pod mount it at the same path; without a kubelet make it: target paths lie in it")
	case err != nil:
		return problem(err.Error(), permissionCure(err, "it has to be a directory"))
	case point.ReadOnly || point.SuperReadOnly:
		return problem(c.KubeletDir+" is mounted read-only", "mount it for writing: mount points are made there")
	case point.Shared:
		return ok("mounts beneath " + c.KubeletDir + " are seen by others (shared propagation)")
	}

	seen := "mounts beneath " + c.KubeletDir + " stay in this mount namespace (private propagation)"
	if point.Slave {
		seen = "mounts beneath " + c.KubeletDir + " stay here, though others' mounts arrive (HostToContainer)"
	}

	if c.hasKubelet() {
		return problem(seen, cure)
	}

	return warning(seen+"; no kubelet is here that needs it", cure)
}

// checkQueues checks that /sys is writable: some runtimes mount it read-only in containers,
// even privileged ones.
func checkQueues(context.Context, *Config, string) Finding {
	const without = "; read-ahead and I/O scheduler of a volume are not set then, though its mutable parameters are accepted"

	point, err := mountOf(queue.DefaultSysBlock)
	if err != nil {
		return warning(err.Error()+without, "mount sysfs at /sys")
	}

	if point.ReadOnly || point.SuperReadOnly {
		return warning(queue.DefaultSysBlock+" is read-only here"+without,
			"in a pod: mount the host's /sys at /sys (hostPath); on a host: mount -o remount,rw /sys")
	}

	return ok("read-ahead and I/O scheduler of volumes can be set in " + queue.DefaultSysBlock)
}

func checkCgroups(_ context.Context, c *Config, _ string) Finding {
	const without = "; volumes are not limited then, and mutable parameters that would are refused"

	limiter := cgroup.NewLimiter(c.CgroupRoot, slog.New(slog.DiscardHandler))
	defer limiter.Close()

	offer, err := limiter.Support()
	if err != nil {
		return warning(err.Error()+without,
			permissionCure(err, "enable the kernel's io controller (cgroup v2), or mount cgroups at --cgroup-root"))
	}

	seen := fmt.Sprintf("cgroup v%d can limit volumes, in %s", offer.Version, offer.Directory)

	if point, err := mountOf(offer.Directory); err == nil && (point.ReadOnly || point.SuperReadOnly) {
		return warning(seen+", which is read-only here"+without,
			"mount the host's /sys/fs/cgroup for writing, and name it with --cgroup-root")
	}

	if c.hasKubelet() && !offer.HasPods {
		return warning(seen+", but no pods are seen there"+without,
			"mount the host's /sys/fs/cgroup into the container, and name it with --cgroup-root")
	}

	return ok(seen)
}

func checkDirectVolumes(_ context.Context, c *Config, _ string) Finding {
	if c.KataRuntime != "" {
		if _, err := exec.LookPath(c.KataRuntime); err != nil {
			return problem("--kata-runtime: "+err.Error(), "install Kata Containers, correct the path, or leave the flag out")
		}
	}

	if _, err := os.Lstat(c.DirectVolumeRoot); errors.Is(err, fs.ErrNotExist) {
		return ok(c.DirectVolumeRoot + " is created when the first volume is assigned to a virtual machine")
	}

	entries, err := kata.NewRoot(c.DirectVolumeRoot).List()
	if err != nil {
		return problem(err.Error(), permissionCure(err, "make it safe as it says: until then no volume is assigned to a virtual machine"))
	}

	return ok(fmt.Sprintf("%s belongs to this user alone, and has %d assignments", c.DirectVolumeRoot, len(entries)))
}
