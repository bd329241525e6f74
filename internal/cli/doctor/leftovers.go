package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/touchstone-csi/touchstone/internal/kata"
	"github.com/touchstone-csi/touchstone/internal/linux/loop"
	"github.com/touchstone-csi/touchstone/internal/linux/mount"
	"github.com/touchstone-csi/touchstone/pkg/health"
	"github.com/touchstone-csi/touchstone/pkg/pool/layout"
	"github.com/touchstone-csi/touchstone/pkg/volume"
)

// settle is between two looks: what belongs to a call that is under way is nobody's
// for a moment.
const recheckDelay = 700 * time.Millisecond

// shown is how many leftovers are named.
const maxListed = 5

// checkLeftoverDevices: an image of a volume that stays attached though nobody uses it
// can't be attached anew, on no node.
func checkLeftoverDevices(ctx context.Context, c *Config, _ string) result {
	const cure = "losetup --detach DEVICE, when nothing has it open (lsof DEVICE): the driver attaches it again where it is needed"

	first, byDriver, err := c.idleDevices(ctx)
	if err != nil {
		return problem(err.Error(), "mount sysfs at /sys")
	}

	if len(first) == 0 {
		return ok("no image of a volume is attached for nothing")
	}

	left := first

	if again, _, err := c.idleDevicesAfterDelay(ctx); err == nil {
		left = intersect(first, again)
	}

	if len(left) == 0 {
		return ok("no image of a volume is attached for nothing")
	}

	says := "attached, and mounted nowhere"
	if byDriver {
		says = "attached, and unknown to the driver, unless it checks them just now"
	}

	return warning(fmt.Sprintf("%d images are %s: %s", len(left), says, firstOf(left)), cure)
}

func (c *Config) idleDevicesAfterDelay(ctx context.Context) ([]string, bool, error) {
	if err := pause(ctx); err != nil {
		return nil, false, err
	}

	return c.idleDevices(ctx)
}

// idleDevices returns the loop devices with images of volumes that nobody uses, as a
// driver with a node knows it, or else as the mount table tells; known says which.
func (c *Config) idleDevices(ctx context.Context) (idle []string, byDriver bool, err error) {
	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return nil, false, err
	}

	report := c.nodeReport(ctx)
	directories := c.imageDirectories(ctx)
	unused := func(_ loop.Attachment, id string) bool { return !inUse(report, id) }

	if report == nil {
		used, err := c.usedDevices()
		if err != nil {
			return nil, false, err
		}

		unused = func(each loop.Attachment, _ string) bool { return !used[each.Number] }
	}

	for _, each := range attached {
		id, ours := volumeOf(each, directories)
		if ours && unused(each, id) {
			idle = append(idle, fmt.Sprintf("%s (%s)", each.Path, each.BackingPath))
		}
	}

	return idle, report != nil, nil
}

// nodeReport is what a driver that serves the node knows, nil for none that answers.
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

// volumeOf returns the volume whose image is attached, if it is in one of the rooms.
func volumeOf(each loop.Attachment, directories []string) (string, bool) {
	id, isImage := strings.CutSuffix(filepath.Base(each.BackingPath), layout.ImageSuffix)

	return id, isImage && volume.IsID(id) && slices.Contains(directories, filepath.Dir(each.BackingPath))
}

// imageDirectories are where the images of volumes are, as the kernel would write it, too.
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

// resolved is a path without symlinks, or the path itself where that can't be told.
func resolveSymlinks(ctx context.Context, path string) string {
	found := make(chan string, 1)

	go func() {
		if plain, err := filepath.EvalSymlinks(path); err == nil {
			found <- plain
		} else {
			found <- filepath.Clean(path)
		}
	}()

	limit := time.NewTimer(resolveLimit)
	defer limit.Stop()

	select {
	case plain := <-found:
		return plain
	case <-limit.C:
	case <-ctx.Done():
	}

	return filepath.Clean(path)
}

// usedDevices are those that something is mounted from, whose node is bound
// somewhere, or that virtual machines have.
func (c *Config) usedDevices() (map[int]bool, error) {
	points, err := mount.List()
	if err != nil {
		return nil, err
	}

	used := map[int]bool{}

	for _, point := range points {
		if number, ok := point.LoopDevice(); ok {
			used[number] = true
		}
	}

	// Where that can't be read, direct-volumes says so.
	entries, _ := kata.NewRoot(c.DirectVolumeRoot).List()
	for _, entry := range entries {
		if number, ok := (mount.Point{Source: entry.Device}).LoopDevice(); ok {
			used[number] = true
		}
	}

	return used, nil
}

// checkLeftoverMounts: what stays mounted keeps its volume from being used elsewhere.
func checkLeftoverMounts(ctx context.Context, c *Config, _ string) result {
	const cure = "umount PATH, when no pod uses it (kubectl get pods -A -o wide; lsof PATH)"

	first, err := c.unknownMounts(ctx)

	switch {
	case errors.Is(err, errNoNodeReport) && len(first) > 0:
		return skipped(fmt.Sprintf("%d mounts of volumes are here, and no driver that would know of them: %s", len(first), firstOf(first)))
	case err != nil && !errors.Is(err, errNoNodeReport):
		return problem(err.Error(), "mount procfs at /proc")
	case len(first) == 0:
		return ok("nothing is mounted that the driver does not know of")
	}

	left := first

	if pause(ctx) == nil {
		if again, err := c.unknownMounts(ctx); err == nil {
			left = intersect(first, again)
		}
	}

	if len(left) == 0 {
		return ok("nothing is mounted that the driver does not know of")
	}

	return warning(fmt.Sprintf("%d mounts of volumes are unknown to the driver: %s", len(left), firstOf(left)), cure)
}

var errNoNodeReport = errors.New("no driver with a node answers")

// unknownMounts returns where volumes of this driver are mounted that it does not know
// of; all of them, and errNoNodeReport, without a driver.
func (c *Config) unknownMounts(ctx context.Context) ([]string, error) {
	points, err := mount.List()
	if err != nil {
		return nil, err
	}

	var (
		report = c.nodeReport(ctx)
		look   = c.newMountMatcher(ctx)
		stray  []string
	)

	for _, point := range points {
		if look.isDriverMount(point) && (report == nil || !look.isReported(report, point.Path)) {
			stray = append(stray, point.Path)
		}
	}

	slices.Sort(stray)

	if report == nil {
		return stray, errNoNodeReport
	}

	return stray, nil
}

// mountMatcher knows the mounts of the driver's volumes from others.
type mountMatcher struct {
	// kubelet is the kubelet's directory as it was given, and as the kernel has it.
	kubelet, resolvedKubelet string
	driver           string
	imageDirectories            []string
	loops            *loop.Loops
}

func (c *Config) newMountMatcher(ctx context.Context) *mountMatcher {
	return &mountMatcher{
		kubelet: filepath.Clean(c.KubeletDir), resolvedKubelet: resolveSymlinks(ctx, c.KubeletDir), driver: c.DriverName,
		imageDirectories: c.imageDirectories(ctx), loops: loop.NewLoops(loop.LoopsOptions{}),
	}
}

// ours: staging paths have the driver's name in them; elsewhere beneath the kubelet's
// directory the image tells, or that there is a directory of a volume, or what a
// volume for a virtual machine is mounted from.
func (l *mountMatcher) isDriverMount(point mount.Point) bool {
	beneath, isBeneath := strings.CutPrefix(point.Path, l.resolvedKubelet+"/")
	if !isBeneath || isKubeletMount(beneath) {
		return false
	}

	for _, staging := range []string{
		filepath.Join("plugins", "kubernetes.io", "csi", l.driver), filepath.Join("plugins", l.driver, "staging"),
	} {
		if strings.HasPrefix(beneath, staging+"/") {
			return true
		}
	}

	if number, isLoop := point.LoopDevice(); isLoop {
		attached, ok, err := l.loops.Attachment(number)
		_, isImage := volumeOf(attached, l.imageDirectories)

		return err == nil && ok && isImage // the list of loop devices reports the failure
	}

	id, direct := strings.CutPrefix(point.Source, "touchstone/")
	if direct && point.FSType == "tmpfs" {
		return volume.IsID(id)
	}

	return filepath.Base(filepath.Dir(point.Root)) == layout.Directories && volume.IsID(filepath.Base(point.Root))
}

// isKubeletMount says whether the kubelet itself mounts there what a driver has published:
// for subPath, and raw block volumes for its containers.
func isKubeletMount(beneath string) bool {
	parts := strings.Split(beneath, "/")
	// plugins/kubernetes.io/csi/volumeDevices/<volume>/dev/<pod>
	const devices, dev = 3, 5

	return slices.Contains(parts, "volume-subpaths") ||
		len(parts) > dev && parts[devices] == "volumeDevices" && parts[dev] == "dev"
}

func (l *mountMatcher) isReported(report *health.Report, path string) bool {
	given := l.kubelet + strings.TrimPrefix(path, l.resolvedKubelet)

	return slices.ContainsFunc(report.Volumes, func(each health.VolumeReport) bool {
		return each.Staged == path || each.Staged == given ||
			slices.Contains(each.Published, path) || slices.Contains(each.Published, given)
	})
}

func pause(ctx context.Context) error {
	timer := time.NewTimer(recheckDelay)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func intersect(first, second []string) []string {
	return slices.DeleteFunc(slices.Clone(first), func(each string) bool { return !slices.Contains(second, each) })
}

// some names the first few.
func firstOf(all []string) string {
	if len(all) > maxListed {
		return strings.Join(all[:maxListed], ", ") + ", …"
	}

	return strings.Join(all, ", ")
}
