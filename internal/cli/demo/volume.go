package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

// volume is a volume of the demo. Its methods are steps.
type volume struct {
	csiclient.Publication

	demo    *demo
	kind    string
	request *csi.CreateVolumeRequest
	// grown is the size to which the volume is expanded.
	grown int64
	// copyFrom makes the request one for a copy, and returns what is printed of its source.
	copyFrom func(*volume) string

	checksum string
	// capacity is in bytes as the driver last returned it, total as the statistics did.
	capacity, total int64
}

func (d *demo) newVolume(kind string, size, grown int64, capability *csi.VolumeCapability) *volume {
	return &volume{
		demo: d, kind: kind, grown: grown,
		request: &csi.CreateVolumeRequest{
			Name:               "demo-" + kind,
			CapacityRange:      &csi.CapacityRange{RequiredBytes: size},
			VolumeCapabilities: []*csi.VolumeCapability{capability},
		},
		Publication: csiclient.Publication{
			Capability: capability, NodeID: nodeID,
			StagingPath: filepath.Join(kubeletIn(d.root), "plugins", kind, "globalmount"),
			TargetPath:  filepath.Join(kubeletIn(d.root), "pods", kind, "volume"),
		},
	}
}

// newCopy returns a volume that is used like another one and created by copyFrom.
func (d *demo) newCopy(kind string, size int64, like *volume, copyFrom func(*volume) string) *volume {
	v := d.newVolume(kind, size, size, like.Capability)
	v.copyFrom = copyFrom
	return v
}

// copyTo makes clone a clone of the volume.
func (v *volume) copyTo(clone *volume) string {
	clone.request.VolumeContentSource = csiclient.FromVolume(v.VolumeID)
	clone.checksum = v.checksum
	return v.short()
}

func (v *volume) create(ctx context.Context) (with, got string, err error) {
	size := v.request.GetCapacityRange().GetRequiredBytes()
	with = fmt.Sprintf("name=%s size=%s%s", v.request.GetName(), formatBytes(size), formatParameters(v.request.GetParameters()))
	if v.copyFrom != nil {
		with += " " + v.copyFrom(v)
	}

	answer, err := v.demo.CreateVolume(ctx, v.request)
	created := answer.GetVolume()
	v.VolumeID, v.VolumeContext, v.capacity = created.GetVolumeId(), created.GetVolumeContext(), created.GetCapacityBytes()

	got = v.VolumeID
	if v.copyFrom != nil {
		got = v.short()
	}
	return with, got, cmp.Or(err, check(v.capacity >= size, "a capacity of %s", formatBytes(v.capacity)))
}

func (v *volume) createAgain(ctx context.Context) (with, got string, err error) {
	answer, err := v.demo.CreateVolume(ctx, v.request)
	id := answer.GetVolume().GetVolumeId()
	return "same arguments", "the same volume", cmp.Or(err, check(id == v.VolumeID, "another volume: %s", id))
}

func (v *volume) attach(ctx context.Context) (with, got string, err error) {
	err = v.demo.Attach(ctx, &v.Publication)
	return v.short() + " node=" + nodeID, "attached" + formatParameters(v.PublishContext), err
}

func (v *volume) stage(ctx context.Context) (with, got string, err error) {
	err = v.demo.Stage(ctx, &v.Publication)

	got = "device ready"
	if mount, err := mountAt(v.StagingPath); err == nil {
		got = mount.FSType + " of " + mount.Source
	}
	return v.short() + " staging=…/" + v.kind, got, err
}

func (v *volume) publish(ctx context.Context) (with, got string, err error) {
	if err = v.demo.Publish(ctx, &v.Publication); err == nil {
		// The kernel's mount table, not the driver's answer.
		_, err = mountAt(v.TargetPath)
	}
	return v.short() + " target=…/" + v.kind, "mounted", err
}

// dataPath returns the path to which data is written: a file in a mounted volume, or the
// device of a raw block volume.
func (v *volume) dataPath() string {
	if v.Capability.GetBlock() != nil {
		return v.TargetPath
	}
	return filepath.Join(v.TargetPath, "data")
}

func (v *volume) write(context.Context) (with, got string, err error) {
	v.checksum, err = writePayload(v.dataPath())
	return formatBytes(payloadBytes) + " of random data", "sha256 " + shortSum(v.checksum), err
}

func (v *volume) verify(when string) action {
	return func(context.Context) (with, got string, err error) {
		return when, "sha256 " + shortSum(v.checksum) + " as written", verifyPayload(v.dataPath(), v.checksum)
	}
}

func (v *volume) getStats(ctx context.Context) (with, got string, err error) {
	answer, err := v.demo.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.VolumeID, VolumePath: v.TargetPath})

	var (
		before = v.total
		texts  []string
	)
	for _, usage := range answer.GetUsage() {
		switch usage.GetUnit() {
		case csi.VolumeUsage_BYTES:
			v.total = usage.GetTotal()
			texts = append(texts, formatUsage(usage, formatBytes))
		case csi.VolumeUsage_INODES:
			texts = append(texts, formatUsage(usage, humanize.Comma)+" inodes")
		default:
		}
	}
	return v.short(), strings.Join(texts, ", "), cmp.Or(err, v.checkTotal(before))
}

// checkTotal compares the size in the statistics with the capacity, and with the size before
// the volume was expanded. The size of a directory is the pool's.
func (v *volume) checkTotal(before int64) error {
	if v.request.GetParameters()["backing"] == "directory" {
		return check(v.total > 0, "no size")
	}
	return cmp.Or(
		check(v.total > before, "a size of %s, after %s", formatBytes(v.total), formatBytes(before)),
		check(v.total == v.capacity || v.total < v.capacity && v.Capability.GetBlock() == nil,
			"a size of %s for a capacity of %s", formatBytes(v.total), formatBytes(v.capacity)),
	)
}

func (v *volume) expand(ctx context.Context) (with, got string, err error) {
	answer, err := v.demo.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId:         v.VolumeID,
		CapacityRange:    &csi.CapacityRange{RequiredBytes: v.grown},
		VolumeCapability: v.Capability,
	})
	v.capacity = answer.GetCapacityBytes()

	got = "larger; no node expansion needed"
	if answer.GetNodeExpansionRequired() {
		got = "larger; node expansion follows"
		v.demo.then = []step{{"NodeExpandVolume", v.expandOnNode}}
	}
	return v.short() + " size=" + formatBytes(v.grown), got,
		cmp.Or(err, check(v.capacity >= v.grown, "a capacity of %s", formatBytes(v.capacity)))
}

// expandOnNode grows device and filesystem while a workload uses them. A process
// without CAP_SYS_RESOURCE, as in many containers, may not grow a mounted ext4; then the
// next staging grows it, which is shown instead.
func (v *volume) expandOnNode(ctx context.Context) (with, got string, err error) {
	_, err = v.demo.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId:          v.VolumeID,
		VolumePath:        v.TargetPath,
		StagingTargetPath: v.StagingPath,
		VolumeCapability:  v.Capability,
		CapacityRange:     &csi.CapacityRange{RequiredBytes: v.grown},
	})
	if status.Code(err) == codes.FailedPrecondition && v.kind == "ext4" && !canGrowMountedExt4() {
		v.demo.then = v.restageSteps()
		return v.short(), "refused here for a mounted ext4, so unmounted:\n(" + err.Error() + ")", nil
	}
	return v.short(), "grown while in use", err
}

// canGrowMountedExt4 reports whether the kernel allows this process, and so the driver, to
// grow a mounted ext4. If it does, a refusal is the driver's error.
func canGrowMountedExt4() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

	var sets [2]unix.CapUserData // Version 3 has two words of each set.
	err := unix.Capget(&header, &sets[0])
	return err != nil || sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// repeat repeats a call that is in effect, and verifies with the kernel's mount table that it
// changed nothing.
func (v *volume) repeat(with string, call func(context.Context, *csiclient.Publication) error) action {
	return func(ctx context.Context) (string, string, error) {
		before, err := mountsBelow(v.demo.root)
		err = cmp.Or(err, call(ctx, &v.Publication))
		after, listErr := mountsBelow(v.demo.root)
		unchanged := check(reflect.DeepEqual(before, after), "the mounts changed: %d then %d", len(before), len(after))

		return v.short() + " " + with, "OK, nothing changed", cmp.Or(err, listErr, unchanged)
	}
}

func (v *volume) unpublish(ctx context.Context) (with, got string, err error) {
	if err = v.demo.Unpublish(ctx, &v.Publication); err == nil {
		_, lstatErr := os.Lstat(v.TargetPath)
		err = check(errors.Is(lstatErr, fs.ErrNotExist), "%s exists", v.TargetPath)
	}
	return v.short(), "the target path is gone", err
}

func (v *volume) unstage(ctx context.Context) (with, got string, err error) {
	if err = v.demo.Unstage(ctx, &v.Publication); err == nil {
		err = v.checkUnused()
	}
	if err == nil {
		// The orchestrator made the staging directory, so it removes it.
		err = os.Remove(v.StagingPath)
	}
	return v.short(), "unmounted, device free", err
}

// checkUnused verifies with the kernel that no mount or device of the volume is left.
func (v *volume) checkUnused() error {
	mounts, err := mountPointsBelow(v.StagingPath)
	devices, listErr := loopNamesBelow(v.demo.root)
	devices = slices.DeleteFunc(devices, func(name string) bool { return !strings.Contains(name, v.VolumeID) })
	left := slices.Concat(mounts, devices)

	return cmp.Or(err, listErr, check(len(left) == 0, "the kernel still uses %v", left))
}

func (v *volume) detach(ctx context.Context) (with, got string, err error) {
	return v.short() + " node=" + nodeID, "detached", v.demo.Detach(ctx, &v.Publication)
}

func (v *volume) delete(ctx context.Context) (with, got string, err error) {
	return v.short(), "gone", v.demo.callDeleteVolume(ctx, &v.Publication)
}

func (d *demo) callDeleteVolume(ctx context.Context, p *csiclient.Publication) error {
	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: p.VolumeID})
	return err
}

func (v *volume) short() string { return "volume=…" + endOfID(v.VolumeID) }

// endOfID returns the last digits of an id: UUIDv7s of one second differ only there.
func endOfID(id string) string {
	const shown = 6
	return id[max(0, len(id)-shown):]
}

func withArticle(kind string) string {
	if kind == "ext4" || kind == "xfs" {
		return "An " + kind
	}
	return "A " + kind
}

func formatBytes(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// formatUsage omits the used part if it is unknown, as of a raw device.
func formatUsage(usage *csi.VolumeUsage, format func(int64) string) string {
	if usage.GetUsed() == 0 && usage.GetAvailable() == 0 {
		return format(usage.GetTotal())
	}
	return format(usage.GetUsed()) + " of " + format(usage.GetTotal()) + " used"
}

// formatParameters returns the sorted parameters, each preceded by a space.
func formatParameters(m map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		text.WriteString(" " + key + "=" + m[key])
	}
	return text.String()
}
