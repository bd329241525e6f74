package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

const (
	mebi = 1 << 20
	mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

	restoredBytes = 500 * mebi

	// Steps that appear often.
	deleteSnapshot = "DeleteSnapshot"
	readData       = "read, sha256"
)

// newDemo returns a demo in the directory root. The sizes of its volumes are close to the
// minimum of each filesystem; all are thin.
func newDemo(root string, keep bool, report *report) *demo {
	d := &demo{root: root, keep: keep, report: report}

	for _, each := range []struct {
		kind        string
		size, grown int64
		capability  *csi.VolumeCapability
		parameters  map[string]string
	}{
		{"ext4", 64 * mebi, 128 * mebi, csiclient.MountCapability(mode, "ext4"), nil},
		{"xfs", 300 * mebi, 400 * mebi, csiclient.MountCapability(mode, "xfs"), nil},
		{"raw-block", 64 * mebi, 128 * mebi, csiclient.BlockCapability(mode), nil},
		{"directory", 64 * mebi, 128 * mebi, csiclient.MountCapability(mode, ""), map[string]string{"backing": "directory"}},
		{"btrfs", 256 * mebi, 512 * mebi, csiclient.MountCapability(mode, "btrfs"), nil},
	} {
		if each.kind != "btrfs" || hasTool("mkfs.btrfs") {
			v := d.newVolume(each.kind, each.size, each.grown, each.capability)
			v.request.Parameters = each.parameters
			d.created = append(d.created, v)
		}
	}

	ext4, xfs := d.created[0], d.created[1]
	d.before = &snapshot{demo: d, name: "demo-before", source: xfs}
	d.after = &snapshot{demo: d, name: "demo-after", source: xfs}
	d.group = &groupSnapshot{demo: d, name: "demo-group", members: []*snapshot{{demo: d, source: xfs}, {demo: d, source: ext4}}}
	d.restored = d.newCopy("restored", restoredBytes, xfs, d.before.copyTo)
	d.cloned = d.newCopy("cloned", xfs.grown, xfs, xfs.copyTo)
	d.grouped = d.newCopy("regrouped", ext4.grown, ext4, d.group.members[1].copyTo)
	d.copied = []*volume{d.restored, d.cloned, d.grouped}

	return d
}

// volumes returns all volumes in the order in which they are created.
func (d *demo) volumes() []*volume { return slices.Concat(d.created, d.copied) }

// sections returns the whole demo in order.
func (d *demo) sections() []section {
	all := []section{{"The driver starts", slices.Concat(d.startSteps(), []step{
		{"GetPluginInfo", d.getPluginInfo},
		{"NodeGetInfo", d.getNodeInfo},
		{"GetCapacity", d.getCapacity},
	})}}

	for _, v := range d.created {
		all = append(all, section{withArticle(v.kind) + " volume is created and used", v.useSteps()})
	}

	all = append(all, d.copySections()...)
	all = append(all, section{"The driver is killed, and starts again", d.restartSteps()})

	for _, v := range d.volumes() {
		all = append(all, section{"The " + v.kind + " volume afterwards, until it is deleted", v.retryAndDeleteSteps()})
	}

	return append(all,
		section{"The snapshots outlive their volumes", []step{
			{"GetMetadataAllocated", d.before.getAllocatedBlocks},
			{deleteSnapshot, d.before.delete},
			{deleteSnapshot, d.before.deleteAgain},
			{deleteSnapshot, d.after.delete},
			{"GetVolumeGroupSnapshot", d.group.get},
			{"DeleteVolumeGroupSnapshot", d.group.delete},
		}},
		section{"Nothing is left", []step{
			{"ListVolumes", d.expectNone("volume", d.volumeIDs)},
			{"ListSnapshots", d.expectNone("snapshot", d.snapshotIDs)},
			// Before the driver ends: it keeps an embedded pool mounted.
			{"pool", d.expectNone("file", func(context.Context) ([]string, error) { return volumeFilesBelow(poolIn(d.root)) })},
			{"touchstone serve ends", d.stopDriver},
			{"mount table", d.expectNone("mount", func(context.Context) ([]string, error) { return mountPointsBelow(d.root) })},
			{"loop devices", d.expectNone("loop device", func(context.Context) ([]string, error) { return loopNamesBelow(d.root) })},
		}},
	)
}

// useSteps are the calls from creation to expansion, in the order that CSI prescribes.
func (v *volume) useSteps() []step {
	return slices.Concat(v.publishSteps(), []step{
		{"write, fsync", v.write},
		{"NodeGetVolumeStats", v.getStats},
		{"ControllerExpandVolume", v.expand},
		{"NodeGetVolumeStats", v.getStats},
	})
}

// publishSteps create a volume and publish it.
func (v *volume) publishSteps() []step {
	return []step{
		{"CreateVolume", v.create},
		{"CreateVolume", v.createAgain},
		{"ControllerPublishVolume", v.attach},
		{"NodeStageVolume", v.stage},
		{"NodePublishVolume", v.publish},
	}
}

// restageSteps mount an ext4 again that cannot grow while it is mounted.
func (v *volume) restageSteps() []step {
	return []step{
		{"NodeUnpublishVolume", v.unpublish},
		{"NodeUnstageVolume", v.unstage},
		{"NodeStageVolume", v.stage},
		{"NodePublishVolume", v.publish},
		{readData, v.verify("")},
	}
}

// retryAndDeleteSteps are the calls from the driver's restart to deletion. All calls in
// effect are repeated first, as an orchestrator does if it does not know their outcome.
func (v *volume) retryAndDeleteSteps() []step {
	return []step{
		{"ControllerPublishVolume", v.repeat("same arguments", v.demo.Attach)},
		{"NodeStageVolume", v.repeat("same arguments", v.demo.Stage)},
		{"NodePublishVolume", v.repeat("same arguments", v.demo.Publish)},
		{readData, v.verify("")},
		{"NodeUnpublishVolume", v.unpublish},
		{"NodeUnstageVolume", v.unstage},
		{"ControllerUnpublishVolume", v.detach},
		{"DeleteVolume", v.delete},
		{"DeleteVolume", v.repeat("deleted already", v.demo.callDeleteVolume)},
	}
}

// copySections copy volumes that are in use.
func (d *demo) copySections() []section {
	source := d.before.source

	return []section{
		{"Snapshots of the " + source.kind + " volume, while it is mounted", []step{
			{"CreateSnapshot", d.before.create},
			{"CreateSnapshot", d.before.createAgain},
			{"overwrite, fsync", source.write},
			{"CreateSnapshot", d.after.create},
			{"ListSnapshots", d.verifySnapshotsListed},
			{"GetMetadataDelta", d.getChangedBlocks},
		}},
		{"The first snapshot becomes a larger volume, beside its source", slices.Concat(d.restored.publishSteps(), []step{
			{readData, d.restored.verify("of the copy, before the overwriting")},
			{readData, source.verify("of the source, overwritten")},
			{"filesystem UUIDs", d.verifyUUIDsDiffer},
			{"NodeGetVolumeStats", d.restored.getStats},
		})},
		{"A clone of the mounted volume", slices.Concat(d.cloned.publishSteps(), []step{
			{readData, d.cloned.verify("of the clone")},
			{"overwrite, fsync", d.cloned.write},
			{readData, source.verify("of the source, unchanged")},
		})},
		{"A group snapshot of two mounted volumes", slices.Concat([]step{
			{"CreateVolumeGroupSnapshot", d.group.create},
			{"CreateVolumeGroupSnapshot", d.group.createAgain},
			{deleteSnapshot, d.group.deleteMember},
		}, d.grouped.publishSteps(), []step{
			{readData, d.grouped.verify("of a member, restored alone")},
		})},
	}
}

// restartSteps kill and restart the driver, which must not affect its volumes.
func (d *demo) restartSteps() []step {
	volumes := d.volumes()
	steps := make([]step, 0, 1+len(volumes))
	steps = append(steps, step{"kill -9", d.killDriver})
	for _, v := range volumes {
		steps = append(steps, step{"read " + v.kind, v.verify("while no driver runs")})
	}
	return append(slices.Concat(steps, d.startSteps()), step{"ListVolumes", d.verifyVolumesListed})
}

func (d *demo) startSteps() []step {
	return []step{{"touchstone serve", d.startDriver}, {"Probe", d.waitReady}}
}

func (d *demo) startDriver(context.Context) (with, got string, err error) {
	started, err := startDriver(d.root)
	if err != nil {
		return "", "", err
	}
	d.driver = started
	return "--mode all", fmt.Sprintf("process %d", started.process.Pid), nil
}

func (d *demo) killDriver(context.Context) (with, got string, err error) {
	killed := d.driver
	d.driver = nil // Its exit is expected from here on.
	return "", fmt.Sprintf("process %d is gone", killed.process.Pid), killed.signal(unix.SIGKILL)
}

func (d *demo) stopDriver(context.Context) (with, got string, err error) {
	stopped := d.driver
	if err := stopped.signal(unix.SIGTERM); err != nil {
		return "SIGTERM", "", err
	}
	d.driver = nil
	return "SIGTERM", "exit code 0", check(stopped.err == nil, "%v", stopped.err)
}

func (d *demo) waitReady(ctx context.Context) (with, got string, err error) {
	return "", "ready", d.WaitReady(ctx)
}

func (d *demo) getPluginInfo(ctx context.Context) (with, got string, err error) {
	info, err := d.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	return "", info.GetName() + " " + info.GetVendorVersion(), err
}

func (d *demo) getNodeInfo(ctx context.Context) (with, got string, err error) {
	info, err := d.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	return "", info.GetNodeId(), err
}

func (d *demo) getCapacity(ctx context.Context) (with, got string, err error) {
	answer, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})
	return "", formatBytes(answer.GetAvailableCapacity()) + " available", err
}

func (d *demo) verifyVolumesListed(ctx context.Context) (with, got string, err error) {
	nodes := make(map[string][]string)
	for entry, err := range d.Volumes(ctx, 2) {
		if err != nil {
			return "", "", err
		}
		nodes[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
	}

	for _, v := range d.volumes() {
		on := nodes[v.VolumeID]
		err = cmp.Or(err, check(slices.Equal(on, []string{nodeID}), "volume %s is listed on nodes %v", v.VolumeID, on))
	}
	return "max_entries=2", fmt.Sprintf("%d volumes, on %s", len(nodes), nodeID), err
}

func (d *demo) volumeIDs(ctx context.Context) ([]string, error) {
	return collect(d.Volumes(ctx, 0), func(e *csi.ListVolumesResponse_Entry) string { return e.GetVolume().GetVolumeId() })
}

func (d *demo) snapshotIDs(ctx context.Context) ([]string, error) {
	return collect(d.Snapshots(ctx, "", 0), snapshotID)
}

// collect returns the names of a list's entries, sorted.
func collect[E any](list iter.Seq2[E, error], name func(E) string) ([]string, error) {
	var names []string
	for entry, err := range list {
		if err != nil {
			return nil, err
		}
		names = append(names, name(entry))
	}
	slices.Sort(names)
	return names, nil
}

// expectNone fails if the list is not empty.
func (*demo) expectNone(what string, list func(context.Context) ([]string, error)) action {
	return func(ctx context.Context) (with, got string, err error) {
		found, err := list(ctx)
		if len(found) > 0 {
			err = errors.Join(err, fmt.Errorf("%w: %s", errLeftover, strings.Join(found, ", ")))
		}
		return "", "no " + what, err
	}
}
