package demo

import (
	"cmp"
	"context"
	"fmt"
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

const (
	mebi = 1 << 20
	mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

	// Texts that appear often.
	deleteSnapshot = "DeleteSnapshot"
	readData       = "read, sha256"
)

// kind is a kind of volume.
type kind struct {
	name string
	// grown is the size to which the volume is expanded.
	size, grown int64
	capability  *csi.VolumeCapability
	parameters  map[string]string
}

// kinds are those of the volumes that are created empty. The sizes are close to the minimum of
// each filesystem; all are thin.
var kinds = []kind{
	{"ext4", 64 * mebi, 128 * mebi, csiclient.MountCapability(mode, "ext4"), nil},
	{"xfs", 300 * mebi, 400 * mebi, csiclient.MountCapability(mode, "xfs"), nil},
	{"raw-block", 64 * mebi, 128 * mebi, csiclient.BlockCapability(mode), nil},
	{"directory", 64 * mebi, 128 * mebi, csiclient.MountCapability(mode, ""), map[string]string{"backing": "directory"}},
	{"btrfs", 256 * mebi, 512 * mebi, csiclient.MountCapability(mode, "btrfs"), nil},
}

// sections returns the whole demo in order.
func (d *demo) sections(btrfs bool) []section {
	start := []step{{"touchstone serve", d.startDriver}, {"Probe", d.waitReady}} //nolint:prealloc // a table
	all := []section{{"The driver starts", append(start,
		step{"GetPluginInfo", d.getPluginInfo},
		step{"NodeGetInfo", d.getNodeInfo},
		step{"GetCapacity", d.getCapacity},
	)}}

	var volumes []*volume
	for _, kind := range kinds {
		if kind.name != "btrfs" || btrfs {
			v := d.newVolume(kind)
			volumes = append(volumes, v)
			all = append(all, section{"The " + v.name + " volume is created and used", v.useSteps()})
		}
	}

	copies, whileMounted, afterwards := d.copySections(volumes[0], volumes[1])
	volumes = append(volumes, copies...)

	restart := []step{{"kill -9", d.killDriver}}
	for _, v := range volumes {
		restart = append(restart, step{"read " + v.name, v.verify("while no driver runs")})
	}
	restart = append(slices.Concat(restart, start), step{"ListVolumes", d.verifyVolumesListed(volumes...)})
	all = append(append(all, whileMounted...), section{"The driver is killed, and starts again", restart})

	for _, v := range volumes {
		all = append(all, section{"The " + v.name + " volume afterwards, until it is deleted", v.retryAndDeleteSteps()})
	}
	return append(all, afterwards, section{"Nothing is left", []step{
		{"ListVolumes", d.verifyVolumesListed()},
		{"ListSnapshots", d.verifySnapshotsListed()},
		// Before the driver ends: it keeps an embedded pool mounted.
		{"pool", expectNone("file", volumeFilesBelow, d.path("pool"))},
		{"touchstone serve ends", d.stopDriver},
		{"mount table", expectNone("mount", mountsBelow, d.root)},
		{"loop devices", expectNone("loop device", loopsBelow, d.root)},
	}})
}

// copySections copy two volumes that are in use: whileMounted makes the copies, and afterwards
// deletes the snapshots when all volumes are deleted.
func (d *demo) copySections(ext4, xfs *volume) (copies []*volume, whileMounted []section, afterwards section) {
	before, after := &snapshot{demo: d, name: "demo-before", source: xfs}, &snapshot{demo: d, name: "demo-after", source: xfs}
	group := &groupSnapshot{demo: d, name: "demo-group", members: [2]*snapshot{{demo: d, source: xfs}, {demo: d, source: ext4}}}
	restored := before.newVolume(kind{name: "restored", size: 500 * mebi, capability: xfs.capability}) //nolint:mnd // larger than its source
	cloned := xfs.newClone(kind{name: "cloned", size: xfs.grown, capability: xfs.capability})
	regrouped := group.members[1].newVolume(kind{name: "regrouped", size: ext4.grown, capability: ext4.capability})

	return []*volume{restored, cloned, regrouped},
		[]section{
			{"Snapshots of the xfs volume, while it is mounted", []step{
				{"CreateSnapshot", before.create},
				{"CreateSnapshot", d.repeat(&before.id, before.create)},
				{"overwrite, fsync", xfs.write},
				{"CreateSnapshot", after.create},
				{"ListSnapshots", d.verifySnapshotsListed(before, after)},
				{"GetMetadataDelta", before.getBlocksChangedUntil(after)},
			}},
			{"The first snapshot becomes a larger volume, beside its source", append(restored.publishSteps(),
				step{readData, restored.verify("of the copy, before the overwriting")},
				step{readData, xfs.verify("of the source, overwritten")},
				step{"filesystem UUIDs", restored.verifyUUIDDiffersFrom(xfs)},
				step{"NodeGetVolumeStats", restored.getStats},
			)},
			{"A clone of the mounted volume", append(cloned.publishSteps(),
				step{readData, cloned.verify("of the clone")},
				step{"overwrite, fsync", cloned.write},
				step{readData, xfs.verify("of the source, unchanged")},
			)},
			{"A group snapshot of two mounted volumes", slices.Concat([]step{
				{"CreateVolumeGroupSnapshot", group.create},
				{"CreateVolumeGroupSnapshot", d.repeat(&group.id, group.create)},
				{deleteSnapshot, refused(codes.InvalidArgument, "a member of the group", group.members[1].delete)},
			}, regrouped.publishSteps(), []step{
				{readData, regrouped.verify("of a member, restored alone")},
			})},
		},
		section{"The snapshots outlive their volumes", []step{
			{"GetMetadataAllocated", before.getAllocatedBlocks},
			{deleteSnapshot, before.delete},
			{deleteSnapshot, d.repeat(&before.id, before.delete)},
			{deleteSnapshot, after.delete},
			{"GetVolumeGroupSnapshot", group.get},
			{"DeleteVolumeGroupSnapshot", group.delete},
		}}
}

// useSteps are the calls from creation to expansion, in the order that CSI prescribes.
func (v *volume) useSteps() []step {
	return slices.Concat(v.publishSteps(), []step{
		{"write, fsync", v.write},
		{"NodeGetVolumeStats", v.getStats},
		{"ControllerExpandVolume", v.expand},
	}, v.nodeExpandSteps(), []step{
		{"NodeGetVolumeStats", v.getStats},
	})
}

// publishSteps create a volume and publish it.
func (v *volume) publishSteps() []step {
	return []step{
		{"CreateVolume", v.create},
		{"CreateVolume", v.demo.repeat(&v.VolumeID, v.create)},
		{"ControllerPublishVolume", v.attach},
		{"NodeStageVolume", v.stage},
		{"NodePublishVolume", v.publish},
	}
}

// nodeExpandSteps grow device and filesystem while a workload uses them. A process without
// CAP_SYS_RESOURCE, as in many containers, may not grow a mounted ext4; then the next staging
// grows it, which is shown instead.
func (v *volume) nodeExpandSteps() []step {
	capable, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)

	switch {
	case v.isDirectory():
		return nil
	case v.name == "ext4" && err == nil && capable == 0:
		return []step{
			{"NodeExpandVolume", refused(codes.FailedPrecondition, "a mounted ext4, so it is unmounted", v.expandOnNode)},
			{"NodeUnpublishVolume", v.unpublish},
			{"NodeUnstageVolume", v.unstage},
			{"NodeStageVolume", v.stage},
			{"NodePublishVolume", v.publish},
			{readData, v.verify("")},
		}
	default:
		return []step{{"NodeExpandVolume", v.expandOnNode}}
	}
}

// retryAndDeleteSteps are the calls from the driver's restart to deletion. All calls in
// effect are repeated first, as an orchestrator does if it does not know their outcome.
func (v *volume) retryAndDeleteSteps() []step {
	return []step{
		{"ControllerPublishVolume", v.demo.repeat(&v.VolumeID, v.attach)},
		{"NodeStageVolume", v.demo.repeat(&v.VolumeID, v.stage)},
		{"NodePublishVolume", v.demo.repeat(&v.VolumeID, v.publish)},
		{readData, v.verify("")},
		{"NodeUnpublishVolume", v.unpublish},
		{"NodeUnstageVolume", v.unstage},
		{"ControllerUnpublishVolume", v.detach},
		{"DeleteVolume", v.delete},
		{"DeleteVolume", v.demo.repeat(&v.VolumeID, v.delete)},
	}
}

func (d *demo) getPluginInfo(ctx context.Context) (string, error) {
	info, err := d.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return "→ " + info.GetName() + " " + info.GetVendorVersion(), err
}

func (d *demo) getNodeInfo(ctx context.Context) (string, error) {
	info, err := d.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	return "→ " + info.GetNodeId(), err
}

func (d *demo) getCapacity(ctx context.Context) (string, error) {
	answer, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})
	return "→ " + formatBytes(answer.GetAvailableCapacity()) + " available", err
}

// repeat repeats a call that is in effect, and verifies with the object's id and the kernel's
// mount table that it changed nothing.
func (d *demo) repeat(id *string, call action) action {
	return func(ctx context.Context) (string, error) {
		before, beforeErr := mountsBelow(d.root)
		first := *id
		_, err := call(ctx)
		after, afterErr := mountsBelow(d.root)

		return short(first) + " again → OK, nothing changed", cmp.Or(err, beforeErr, afterErr,
			check(*id == first, "another one: %s", *id),
			check(reflect.DeepEqual(before, after), "the mounts changed: %d then %d", len(before), len(after)))
	}
}

// refused verifies that the driver refuses a call with this code, and prints its error.
func refused(code codes.Code, why string, call action) action {
	return func(ctx context.Context) (string, error) {
		text, err := call(ctx)
		arguments, _, _ := strings.Cut(text, "→")
		if status.Code(err) != code {
			return text, cmp.Or(err, check(false, "not refused"))
		}
		return arguments + "→ refused: " + why + "\n(" + err.Error() + ")", nil
	}
}

// verifyVolumesListed compares all pages of ListVolumes with the volumes.
func (d *demo) verifyVolumesListed(volumes ...*volume) action {
	return func(ctx context.Context) (string, error) {
		found, wanted := map[string][]string{}, map[string][]string{}
		for _, v := range volumes {
			wanted[v.VolumeID] = []string{nodeID}
		}
		for entry, err := range d.Volumes(ctx, 2) {
			if err != nil {
				return "", err
			}
			found[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
		}
		return fmt.Sprintf("max_entries=2 → %d volumes on %s", len(found), nodeID), check(reflect.DeepEqual(found, wanted), "%v", found)
	}
}

// verifySnapshotsListed compares all pages of ListSnapshots with the snapshots.
func (d *demo) verifySnapshotsListed(snapshots ...*snapshot) action {
	return func(ctx context.Context) (string, error) {
		found, wanted := map[string]string{}, map[string]string{}
		for _, s := range snapshots {
			wanted[s.id] = s.source.VolumeID
		}
		for entry, err := range d.Snapshots(ctx, "", 1) {
			if err != nil {
				return "", err
			}
			found[entry.GetSnapshot().GetSnapshotId()] = entry.GetSnapshot().GetSourceVolumeId()
		}
		return fmt.Sprintf("max_entries=1 → %d snapshots", len(found)), check(reflect.DeepEqual(found, wanted), "%v", found)
	}
}

// expectNone fails if the list of what is below the path is not empty.
func expectNone[E any](what string, list func(string) ([]E, error), path string) action {
	return func(context.Context) (string, error) {
		found, err := list(path)
		return "→ no " + what, cmp.Or(err, check(len(found) == 0, "left behind: %v", found))
	}
}

// short returns the last digits of an id: UUIDv7s of one second differ only there.
func short(id string) string { return "id=" + endOfID(id) }

func endOfID(id string) string {
	const shown = 6
	return "…" + id[max(0, len(id)-shown):]
}

func formatBytes(n int64) string { return humanize.IBytes(uint64(n)) }
