package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/csi/volume"
	"github.com/touchstone-csi/touchstone/internal/health"
	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/holder"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/internal/operation"
	"github.com/touchstone-csi/touchstone/internal/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/node"
	"github.com/touchstone-csi/touchstone/pkg/node/observe"
)

// maxListed is the number of leftovers that a finding names.
const maxListed = 5

// checkLeftoverDevices finds attached images of volumes that are not in use: such an image
// cannot be attached again, on any node.
func checkLeftoverDevices(ctx context.Context, c *Config, _ string) Finding {
	var byDriver bool

	left, err := observeTwice(ctx, c.Recheck, func() ([]string, error) {
		idle, reported, err := c.idleDevices(ctx)
		byDriver = byDriver || reported
		return idle, err
	})

	switch {
	case err != nil:
		return problem(err.Error(), "mount sysfs at /sys")
	case len(left) == 0:
		return ok("no image of a volume is attached without use")
	}

	says := "attached, but not mounted"
	if byDriver {
		says = "attached, but unknown to the driver, unless it is checking them now"
	}
	return warning(fmt.Sprintf("%d images are %s: %s", len(left), says, firstOf(left)),
		"losetup --detach DEVICE, when nothing has it open ("+holdersOf(left[0])+"): the driver attaches it again where it is needed")
}

// holdersOf names the processes that have a device open.
func holdersOf(described string) string {
	device, _, _ := strings.Cut(described, " ")

	var stat unix.Stat_t

	err := unix.Stat(device, &stat)
	if err != nil {
		return "lsof " + device
	}

	return device + ": " + holder.Describe(func() ([]holder.Process, error) { return holder.OfDevice(stat.Rdev) })
}

// observeTwice returns what two observations have in common, between which it pauses, the second only if the
// first finds something. A failure of the second leaves the first.
func observeTwice(ctx context.Context, pause time.Duration, observeOnce func() ([]string, error)) ([]string, error) {
	first, err := observeOnce()
	if err != nil || len(first) == 0 {
		return first, err
	}

	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return first, nil
	}

	again, err := observeOnce()
	if err != nil {
		return first, nil //nolint:nilerr // The first observation stands.
	}
	return slices.DeleteFunc(first, func(each string) bool { return !slices.Contains(again, each) }), nil
}

// idleDevices returns the loop devices whose volumes are not in use, according to the report
// of a driver with a node service (byDriver), or else to the mount table.
func (c *Config) idleDevices(ctx context.Context) (idle []string, byDriver bool, err error) {
	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return nil, false, err
	}

	report := c.nodeReport(ctx)
	directories := c.imageDirectories(ctx)

	var used map[int]bool
	if report == nil {
		if used, err = c.usedDevices(); err != nil {
			return nil, false, err
		}
	}

	for _, each := range attached {
		id, ours := volumeOf(each, directories)
		if ours && !used[each.Number] && (report == nil || !inUse(report, id)) {
			idle = append(idle, fmt.Sprintf("%s (%s)", each.Path, each.BackingPath))
		}
	}

	return idle, report != nil, nil
}

// nodeReport returns the report of a driver with a node service, or nil if none answers.
func (c *Config) nodeReport(ctx context.Context) *health.Report {
	if c.WithoutDriver {
		return nil
	}

	report, err := c.report(ctx)
	if err != nil || report.Mode == ModeController {
		return nil
	}

	return report
}

func inUse(report *health.Report, id string) bool {
	return slices.ContainsFunc(report.Volumes, func(each health.VolumeReport) bool {
		return each.ID == id && (each.Staged != "" || len(each.Published) > 0)
	})
}

// volumeOf returns the volume whose image is attached, if it is in one of the directories.
func volumeOf(each loop.Attachment, directories []string) (string, bool) {
	id, isImage := strings.CutSuffix(filepath.Base(each.BackingPath), layout.ImageSuffix)

	return id, isImage && volume.IsID(id) && slices.Contains(directories, filepath.Dir(each.BackingPath))
}

// imageDirectories returns the directories of volumes' images, also with symlinks resolved, as
// the kernel shows them.
func (c *Config) imageDirectories(ctx context.Context) []string {
	var directories []string

	for _, name := range pools(c) {
		for _, directory := range []string{filepath.Clean(c.Pools[name]), resolveSymlinks(ctx, c.Pools[name])} {
			for _, root := range []string{directory, filepath.Join(directory, layout.EmbeddedMountPoint)} {
				directories = append(directories, layout.ImageDirectories(root)...)
			}
		}
	}

	return directories
}

// resolveLimit is for what is on a filesystem that hangs: there a path is taken as it
// is.
const resolveLimit = time.Second

// resolveSymlinks returns a path without symlinks, or the path itself if that fails or hangs.
func resolveSymlinks(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()

	resolved, err := operation.Await(ctx, func() (string, error) { return filepath.EvalSymlinks(path) })
	if err != nil {
		return filepath.Clean(path)
	}

	return resolved
}

// usedDevices returns the loop devices that are mounted, whose device node is bind-mounted,
// or that are assigned to virtual machines.
func (c *Config) usedDevices() (map[int]bool, error) {
	points, err := mount.List()
	if err != nil {
		return nil, err
	}

	// The check direct-volumes reports a failure.
	entries, _ := kata.NewRoot(c.DirectVolumeRoot).List()
	for _, entry := range entries {
		points = append(points, mount.Point{Source: entry.Device})
	}

	used := map[int]bool{}

	for _, point := range points {
		if number, ok := point.LoopDevice(); ok {
			used[number] = true
		}
	}

	return used, nil
}

// checkLeftoverMounts finds mounts of volumes that the driver does not know: such a mount
// prevents the volume from being used on another node.
func checkLeftoverMounts(ctx context.Context, c *Config, _ string) Finding {
	left, err := observeTwice(ctx, c.Recheck, func() ([]string, error) { return c.unknownMounts(ctx) })

	switch {
	case errors.Is(err, errNoNodeReport) && len(left) > 0:
		return skipped(fmt.Sprintf("%d volumes are mounted, and no driver answers that could confirm them: %s", len(left), firstOf(left)))
	case err != nil && !errors.Is(err, errNoNodeReport):
		return problem(err.Error(), "mount procfs at /proc")
	case len(left) == 0:
		return ok("no volume is mounted without the driver's knowledge")
	}
	return warning(fmt.Sprintf("%d mounts of volumes are unknown to the driver: %s", len(left), firstOf(left)),
		"umount PATH, when no pod uses it (kubectl get pods -A -o wide; lsof PATH)")
}

var errNoNodeReport = errors.New("no driver with a node service answers")

// unknownMounts returns the paths of this driver's mounts that its report lacks; all of them,
// with errNoNodeReport, if no driver answers.
func (c *Config) unknownMounts(ctx context.Context) ([]string, error) {
	points, err := mount.List()
	if err != nil {
		return nil, err
	}

	var (
		report  = c.nodeReport(ctx)
		matcher = mountMatcher{
			Config: c, resolvedKubelet: resolveSymlinks(ctx, c.KubeletDir),
			imageDirectories: c.imageDirectories(ctx), loops: loop.NewLoops(loop.LoopsOptions{}),
		}
		stray []string
	)

	for _, point := range points {
		if matcher.isDriverMount(point) && (report == nil || !matcher.isReported(report, point.Path)) {
			stray = append(stray, point.Path)
		}
	}

	slices.Sort(stray)

	if report == nil {
		return stray, errNoNodeReport
	}

	return stray, nil
}

// mountMatcher recognizes mounts of the driver's volumes.
type mountMatcher struct {
	*Config

	// resolvedKubelet is KubeletDir without symlinks.
	resolvedKubelet  string
	imageDirectories []string
	loops            *loop.Loops
}

// isDriverMount reports whether the driver made a mount. Staging paths contain the driver's
// name; elsewhere below the kubelet's directory the source decides: a volume's image, a
// volume's directory, or the tmpfs of a direct volume.
func (m *mountMatcher) isDriverMount(point mount.Point) bool {
	beneath, isBeneath := strings.CutPrefix(point.Path, m.resolvedKubelet+"/")
	if !isBeneath || isKubeletMount(beneath) {
		return false
	}

	if strings.HasPrefix(beneath, filepath.Join("plugins", "kubernetes.io", "csi", m.DriverName)+"/") ||
		strings.HasPrefix(beneath, node.OwnStagingDir("", m.DriverName)+"/") {
		return true
	}

	if number, isLoop := point.LoopDevice(); isLoop {
		attached, ok, err := m.loops.Attachment(number)
		_, isImage := volumeOf(attached, m.imageDirectories)

		return err == nil && ok && isImage // checkLeftoverDevices reports the failure
	}

	id, direct := strings.CutPrefix(point.Source, observe.DirectSource(""))
	if direct && point.FSType == observe.DirectFSType {
		return volume.IsID(id)
	}

	root := point.RootPath()

	return filepath.Base(filepath.Dir(root)) == layout.Directories && volume.IsID(filepath.Base(root))
}

// isKubeletMount reports whether the kubelet itself mounts published volumes at a path: for
// subPath, and for raw block volumes of containers.
func isKubeletMount(beneath string) bool {
	parts := strings.Split(beneath, "/")
	// plugins/kubernetes.io/csi/volumeDevices/<volume>/dev/<pod>
	const devices, dev = 3, 5

	return slices.Contains(parts, "volume-subpaths") ||
		len(parts) > dev && parts[devices] == "volumeDevices" && parts[dev] == "dev"
}

func (m *mountMatcher) isReported(report *health.Report, path string) bool {
	given := filepath.Clean(m.KubeletDir) + strings.TrimPrefix(path, m.resolvedKubelet)

	return slices.ContainsFunc(report.Volumes, func(each health.VolumeReport) bool {
		return each.Staged == path || each.Staged == given ||
			slices.Contains(each.Published, path) || slices.Contains(each.Published, given)
	})
}

// firstOf returns the first maxListed names.
func firstOf(all []string) string {
	if len(all) > maxListed {
		return strings.Join(all[:maxListed], ", ") + ", …"
	}

	return strings.Join(all, ", ")
}
