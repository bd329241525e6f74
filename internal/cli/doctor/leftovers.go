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
const settle = 700 * time.Millisecond

// shown is how many leftovers are named.
const shown = 5

// lookForDevices: an image of a volume that stays attached though nobody uses it
// can't be attached anew, on no node.
func lookForDevices(ctx context.Context, c *Config, _ string) answer {
	const cure = "losetup --detach DEVICE, when nothing has it open (lsof DEVICE): the driver attaches it again where it is needed"

	first, known, err := c.idleDevices(ctx)
	if err != nil {
		return problem(err.Error(), "mount sysfs at /sys")
	}

	if len(first) == 0 {
		return ok("no image of a volume is attached for nothing")
	}

	left := first

	if again, _, err := c.idleAfter(ctx); err == nil {
		left = intersect(first, again)
	}

	if len(left) == 0 {
		return ok("no image of a volume is attached for nothing")
	}

	says := "attached, and mounted nowhere"
	if known {
		says = "attached, and unknown to the driver, unless it checks them just now"
	}

	return warning(fmt.Sprintf("%d images are %s: %s", len(left), says, some(left)), cure)
}

func (c *Config) idleAfter(ctx context.Context) ([]string, bool, error) {
	if err := pause(ctx); err != nil {
		return nil, false, err
	}

	return c.idleDevices(ctx)
}

// idleDevices returns the loop devices with images of volumes that nobody uses, as a
// driver with a node knows it, or else as the mount table tells; known says which.
func (c *Config) idleDevices(ctx context.Context) (idle []string, known bool, err error) {
	attached, err := loop.NewLoops(loop.LoopsOptions{}).Attachments()
	if err != nil {
		return nil, false, err
	}

	report := c.nodeReport(ctx)
	rooms := c.imageRooms(ctx)
	unused := func(_ loop.Attachment, id string) bool { return !inUse(report, id) }

	if report == nil {
		used, err := c.usedDevices()
		if err != nil {
			return nil, false, err
		}

		unused = func(each loop.Attachment, _ string) bool { return !used[each.Number] }
	}

	for _, each := range attached {
		id, ours := volumeOf(each, rooms)
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
func volumeOf(each loop.Attachment, rooms []string) (string, bool) {
	id, isImage := strings.CutSuffix(filepath.Base(each.BackingPath), layout.ImageSuffix)

	return id, isImage && volume.IsID(id) && slices.Contains(rooms, filepath.Dir(each.BackingPath))
}

// imageRooms are where the images of volumes are, as the kernel would write it, too.
func (c *Config) imageRooms(ctx context.Context) []string {
	var rooms []string

	for _, name := range pools(c) {
		for _, directory := range []string{filepath.Clean(c.Pools[name]), resolved(ctx, c.Pools[name])} {
			for _, place := range []string{directory, filepath.Join(directory, layout.EmbeddedMountPoint)} {
				rooms = append(rooms, layout.ImageDirectories(place)...)
			}
		}
	}

	return rooms
}

// resolveLimit is for what is on a filesystem that hangs: there a path is taken as it
// is.
const resolveLimit = time.Second

// resolved is a path without symlinks, or the path itself where that can't be told.
func resolved(ctx context.Context, path string) string {
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

// lookForMounts: what stays mounted keeps its volume from being used elsewhere.
func lookForMounts(ctx context.Context, c *Config, _ string) answer {
	const cure = "umount PATH, when no pod uses it (kubectl get pods -A -o wide; lsof PATH)"

	first, err := c.strayMounts(ctx)

	switch {
	case errors.Is(err, errNobodyKnows) && len(first) > 0:
		return skipped(fmt.Sprintf("%d mounts of volumes are here, and no driver that would know of them: %s", len(first), some(first)))
	case err != nil && !errors.Is(err, errNobodyKnows):
		return problem(err.Error(), "mount procfs at /proc")
	case len(first) == 0:
		return ok("nothing is mounted that the driver does not know of")
	}

	left := first

	if pause(ctx) == nil {
		if again, err := c.strayMounts(ctx); err == nil {
			left = intersect(first, again)
		}
	}

	if len(left) == 0 {
		return ok("nothing is mounted that the driver does not know of")
	}

	return warning(fmt.Sprintf("%d mounts of volumes are unknown to the driver: %s", len(left), some(left)), cure)
}

var errNobodyKnows = errors.New("no driver with a node answers")

// strayMounts returns where volumes of this driver are mounted that it does not know
// of; all of them, and errNobodyKnows, without a driver.
func (c *Config) strayMounts(ctx context.Context) ([]string, error) {
	points, err := mount.List()
	if err != nil {
		return nil, err
	}

	var (
		report = c.nodeReport(ctx)
		look   = c.newMountLook(ctx)
		stray  []string
	)

	for _, point := range points {
		if look.ours(point) && (report == nil || !look.known(report, point.Path)) {
			stray = append(stray, point.Path)
		}
	}

	slices.Sort(stray)

	if report == nil {
		return stray, errNobodyKnows
	}

	return stray, nil
}

// mountLook knows the mounts of the driver's volumes from others.
type mountLook struct {
	// kubelet is the kubelet's directory as it was given, and as the kernel has it.
	kubelet, kernels string
	driver           string
	rooms            []string
	loops            *loop.Loops
}

func (c *Config) newMountLook(ctx context.Context) *mountLook {
	return &mountLook{
		kubelet: filepath.Clean(c.KubeletDir), kernels: resolved(ctx, c.KubeletDir), driver: c.DriverName,
		rooms: c.imageRooms(ctx), loops: loop.NewLoops(loop.LoopsOptions{}),
	}
}

// ours: staging paths have the driver's name in them; elsewhere beneath the kubelet's
// directory the image tells, or that there is a directory of a volume, or what a
// volume for a virtual machine is mounted from.
func (l *mountLook) ours(point mount.Point) bool {
	beneath, isBeneath := strings.CutPrefix(point.Path, l.kernels+"/")
	if !isBeneath || kubeletsOwn(beneath) {
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
		_, isImage := volumeOf(attached, l.rooms)

		return err == nil && ok && isImage // the list of loop devices reports the failure
	}

	id, direct := strings.CutPrefix(point.Source, "touchstone/")
	if direct && point.FSType == "tmpfs" {
		return volume.IsID(id)
	}

	return filepath.Base(filepath.Dir(point.Root)) == layout.Directories && volume.IsID(filepath.Base(point.Root))
}

// kubeletsOwn says whether the kubelet itself mounts there what a driver has published:
// for subPath, and raw block volumes for its containers.
func kubeletsOwn(beneath string) bool {
	parts := strings.Split(beneath, "/")
	// plugins/kubernetes.io/csi/volumeDevices/<volume>/dev/<pod>
	const devices, dev = 3, 5

	return slices.Contains(parts, "volume-subpaths") ||
		len(parts) > dev && parts[devices] == "volumeDevices" && parts[dev] == "dev"
}

func (l *mountLook) known(report *health.Report, path string) bool {
	given := l.kubelet + strings.TrimPrefix(path, l.kernels)

	return slices.ContainsFunc(report.Volumes, func(each health.VolumeReport) bool {
		return each.Staged == path || each.Staged == given ||
			slices.Contains(each.Published, path) || slices.Contains(each.Published, given)
	})
}

func pause(ctx context.Context) error {
	timer := time.NewTimer(settle)
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
func some(all []string) string {
	if len(all) > shown {
		return strings.Join(all[:shown], ", ") + ", …"
	}

	return strings.Join(all, ", ")
}
