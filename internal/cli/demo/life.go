package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/dustin/go-humanize"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/touchstone-csi/touchstone/internal/cli/csiclient"
)

const (
	directoryMode = 0o750
	mode          = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

	// Near the smallest that each filesystem takes; all of it is thin.
	small, smallGrown = 64 * mebi, 128 * mebi
	xfs, xfsGrown     = 300 * mebi, 400 * mebi
	restoredBytes     = 500 * mebi
	btrfs, btrfsGrown = 256 * mebi, 512 * mebi
)

// The calls that appear more than once in the demo.
const (
	createVolume      = "CreateVolume"
	deleteVolume      = "DeleteVolume"
	stageVolume       = "NodeStageVolume"
	unstageVolume     = "NodeUnstageVolume"
	publishVolume     = "NodePublishVolume"
	unpublishVolume   = "NodeUnpublishVolume"
	getVolumeStats    = "NodeGetVolumeStats"
	controllerPublish = "ControllerPublishVolume"
	listVolumes       = "ListVolumes"
)

// directory is a backing, and the kind of the demo's volume that has it.
const directory = "directory"

// What the demo itself holds against the driver.
var (
	errNotIdempotent = errors.New("the same call again gave something else")
	errTargetLeft    = errors.New("the target path is still there")
	errTooSmall      = errors.New("that is less than was asked for")
	errWrongSize     = errors.New("the size is not the volume's")
	errStillInUse    = errors.New("the kernel still has it in use")
	errMountsDiffer  = errors.New("the mounts are not those from before")
	errNoBytes       = errors.New("the statistics lack the bytes")
	errNotListed     = errors.New("ListVolumes does not show what it must")
)

// volume is one that the demo leads through life.
type volume struct {
	undoing

	kind        string
	parameters  map[string]string
	size, grown int64
	block       bool
	// from is what the volume is made of; nil is nothing.
	from source

	claim csiclient.Publication
	sum   string
	// capacity is as the driver last said it, total as the statistics did, in
	// bytes.
	capacity, total int64
}

// cast returns the volumes of the demo.
func cast(at places, withBtrfs bool) []*volume {
	all := []*volume{
		filesystem("ext4", small, smallGrown),
		filesystem("xfs", xfs, xfsGrown),
		{kind: "raw-block", size: small, grown: smallGrown, block: true, claim: csiclient.Publication{
			Capability: csiclient.BlockCapability(mode),
		}},
		{
			kind: directory, size: small, grown: smallGrown,
			parameters: map[string]string{"backing": directory},
			claim:      csiclient.Publication{Capability: csiclient.MountCapability(mode, "")},
		},
	}
	if withBtrfs {
		all = append(all, filesystem("btrfs", btrfs, btrfsGrown))
	}

	for _, v := range all {
		v.settle(at)
	}

	return all
}

// settle says where the volume is going to be used.
func (v *volume) settle(at places) {
	v.claim.NodeID = nodeID
	v.claim.StagingPath = filepath.Join(at.kubelet, "plugins", v.kind, "globalmount")
	v.claim.TargetPath = filepath.Join(at.kubelet, "pods", v.kind, "volume")
}

func filesystem(name string, size, grown int64) *volume {
	return &volume{kind: name, size: size, grown: grown, claim: csiclient.Publication{
		Capability: csiclient.MountCapability(mode, name),
	}}
}

// script is the demo from beginning to end.
func (d *demo) script() []section {
	sections := []section{{"The driver starts", slices.Concat(d.started(), d.introduction())}}

	for _, v := range d.volumes {
		sections = append(sections, section{article(v.kind) + " volume comes to life", d.youth(v)})
	}

	sections = append(sections, d.pictures()...)
	sections = append(sections, section{"The driver is killed, and starts again", d.accident()})

	for _, v := range d.everyVolume() {
		sections = append(sections, section{"The " + v.kind + " volume afterwards, until its end", d.age(v)})
	}

	return append(sections,
		section{"The snapshots outlive their volumes", d.survivors()},
		section{"Nothing is left", d.proof()})
}

// everyVolume are those of the cast and their copies.
func (d *demo) everyVolume() []*volume { return slices.Concat(d.volumes, d.album.copies()) }

func article(kind string) string {
	if kind == "ext4" || kind == "xfs" {
		return "An " + kind
	}

	return "A " + kind
}

func (d *demo) started() []step {
	return []step{
		{"touchstone serve", d.serve},
		{"Probe", func(ctx context.Context) (outcome, error) {
			return outcome{got: "ready"}, d.WaitReady(ctx)
		}},
	}
}

func (d *demo) introduction() []step {
	return []step{
		{"GetPluginInfo", func(ctx context.Context) (outcome, error) {
			info, err := d.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})

			return outcome{got: info.GetName() + " " + info.GetVendorVersion()}, err
		}},
		{"NodeGetInfo", func(ctx context.Context) (outcome, error) {
			info, err := d.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})

			return outcome{got: info.GetNodeId()}, err
		}},
		{"GetCapacity", func(ctx context.Context) (outcome, error) {
			capacity, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})

			return outcome{got: bytes(capacity.GetAvailableCapacity()) + " to give away"}, err
		}},
	}
}

// youth is from creation to growth, in the order that CSI prescribes.
func (d *demo) youth(v *volume) []step {
	return []step{
		{createVolume, d.created(v)},
		{createVolume, d.createdAgain(v)},
		{controllerPublish, d.attached(v)},
		{stageVolume, d.staged(v)},
		{publishVolume, d.published(v)},
		{"write, fsync", v.written},
		{getVolumeStats, d.measured(v)},
		{"ControllerExpandVolume", d.expanded(v)},
		{getVolumeStats, d.measured(v)},
	}
}

// accident is what a driver must survive without its volumes noticing.
func (d *demo) accident() []step {
	every := d.everyVolume()
	steps := make([]step, 0, 1+len(every))
	steps = append(steps, step{"kill -9", d.killed})

	for _, v := range every {
		steps = append(steps, step{"read " + v.kind, v.verified("while no driver runs")})
	}

	return append(slices.Concat(steps, d.started()), step{listVolumes, d.listed})
}

// age is from the driver's restart to deletion. Every call that is in effect is
// made again first: an orchestrator does so when it is not sure.
func (d *demo) age(v *volume) []step {
	return []step{
		{controllerPublish, d.again(v, "same arguments", d.Attach)},
		{stageVolume, d.again(v, "same arguments", d.Stage)},
		{publishVolume, d.again(v, "same arguments", d.Publish)},
		{"read, sha256", v.verified("")},
		{unpublishVolume, d.unpublished(v)},
		{unstageVolume, d.unstaged(v)},
		{"ControllerUnpublishVolume", d.detached(v)},
		{deleteVolume, d.deleted(v)},
		{deleteVolume, d.again(v, "deleted already", d.remove)},
	}
}

func (d *demo) proof() []step {
	return []step{
		{listVolumes, func(ctx context.Context) (outcome, error) {
			var ids []string
			for entry, err := range d.Volumes(ctx, 0) {
				if err != nil {
					return outcome{}, err
				}
				ids = append(ids, entry.GetVolume().GetVolumeId())
			}

			return none("volume", ids)
		}},
		{listSnapshots, d.noSnapshots},
		// While the driver has it mounted.
		{"pool", func(context.Context) (outcome, error) {
			files, err := volumesBelow(d.at.pool)
			if err != nil {
				return outcome{}, err
			}

			return none("file", files)
		}},
		{"touchstone serve ends", d.ended},
		{"mount table", d.noMounts},
		{"loop devices", d.noLoops},
	}
}

func (d *demo) serve(context.Context) (outcome, error) {
	var err error

	d.driver, err = startDriver(d.program, d.at)
	if err != nil {
		return outcome{}, err
	}

	return outcome{with: "--mode all", got: fmt.Sprintf("process %d", d.driver.process.Pid)}, nil
}

func (d *demo) killed(context.Context) (outcome, error) {
	driver := d.driver
	d.driver = nil // Its end is wanted.

	return outcome{got: fmt.Sprintf("process %d is gone", driver.process.Pid)}, driver.kill()
}

func (d *demo) ended(ctx context.Context) (outcome, error) {
	driver := d.driver
	if err := driver.stop(context.WithoutCancel(ctx)); err != nil {
		return outcome{with: "SIGTERM"}, err
	}

	d.driver = nil

	return outcome{with: "SIGTERM", got: "exit code 0"}, nil
}

func (d *demo) created(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := fmt.Sprintf("name=demo-%s size=%s", v.kind, bytes(v.size)) + pairs(v.parameters)
		if v.from != nil {
			with += " " + v.from.short()
			v.sum = v.from.data()
		}

		answer, err := d.CreateVolume(ctx, v.request())
		if err != nil {
			return outcome{with: with}, err
		}

		v.claim.VolumeID = answer.GetVolume().GetVolumeId()
		v.claim.VolumeContext = answer.GetVolume().GetVolumeContext()
		v.undo = append(v.undo, func(ctx context.Context) error { return d.remove(ctx, &v.claim) })

		v.capacity = answer.GetVolume().GetCapacityBytes()
		if v.capacity < v.size {
			return outcome{with: with}, fmt.Errorf("%w: %s", errTooSmall, bytes(v.capacity))
		}

		if v.from != nil {
			return outcome{with: with, got: v.short()}, nil
		}

		return outcome{with: with, got: v.claim.VolumeID}, nil
	}
}

func (d *demo) createdAgain(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.CreateVolume(ctx, v.request())
		if id := answer.GetVolume().GetVolumeId(); err == nil && id != v.claim.VolumeID {
			err = fmt.Errorf("%w: volume %s", errNotIdempotent, id)
		}

		return outcome{with: "same arguments", got: "the same volume"}, err
	}
}

func (v *volume) request() *csi.CreateVolumeRequest {
	request := &csi.CreateVolumeRequest{
		Name:               "demo-" + v.kind,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: v.size},
		VolumeCapabilities: []*csi.VolumeCapability{v.claim.Capability},
		Parameters:         v.parameters,
	}
	if v.from != nil {
		request.VolumeContentSource = v.from.content()
	}

	return request
}

func (d *demo) attached(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		err := v.do(ctx, d.Attach, d.Detach)

		return outcome{with: v.short() + " node=" + nodeID, got: "attached" + pairs(v.claim.PublishContext)}, err
	}
}

func (d *demo) staged(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		if err := v.do(ctx, d.Stage, d.Unstage); err != nil {
			return outcome{with: v.short()}, err
		}

		got := "device ready"
		if mount, err := mountAt(v.claim.StagingPath); err == nil {
			got = mount.FSType + " of " + mount.Source
		}

		return outcome{with: v.short() + " staging=…/" + v.kind, got: got}, nil
	}
}

func (d *demo) published(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := v.short() + " target=…/" + v.kind
		if err := v.do(ctx, d.Publish, d.Unpublish); err != nil {
			return outcome{with: with}, err
		}

		// The kernel's word, not the driver's.
		if _, err := mountAt(v.claim.TargetPath); err != nil {
			return outcome{with: with}, err
		}

		return outcome{with: with, got: "there"}, nil
	}
}

func (v *volume) written(context.Context) (outcome, error) {
	var err error

	v.sum, err = writePayload(payloadPath(v.claim.TargetPath, v.block))
	if err != nil {
		return outcome{with: bytes(payloadBytes)}, err
	}

	return outcome{with: bytes(payloadBytes) + " of random data", got: "sha256 " + v.sum[:shownDigits]}, nil
}

func (v *volume) verified(when string) func(context.Context) (outcome, error) {
	return func(context.Context) (outcome, error) {
		return outcome{with: when, got: "sha256 " + v.sum[:min(shownDigits, len(v.sum))] + " as written"},
			verifyPayload(payloadPath(v.claim.TargetPath, v.block), v.sum)
	}
}

func (d *demo) measured(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		answer, err := d.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{
			VolumeId:   v.claim.VolumeID,
			VolumePath: v.claim.TargetPath,
		})
		if err != nil {
			return outcome{with: v.short()}, err
		}

		var (
			before = v.total
			got    []string
		)

		v.total = 0

		for _, usage := range answer.GetUsage() {
			switch usage.GetUnit() {
			case csi.VolumeUsage_BYTES:
				v.total = usage.GetTotal()
				got = append(got, usedOf(usage, bytes))
			case csi.VolumeUsage_INODES:
				got = append(got, usedOf(usage, humanize.Comma)+" inodes")
			default:
			}
		}

		return outcome{with: v.short(), got: strings.Join(got, ", ")}, v.judge(before)
	}
}

// judge compares the statistics with what was asked for, and with those before
// the volume grew.
func (v *volume) judge(before int64) error {
	switch {
	case v.total == 0:
		return errNoBytes
	case v.parameters["backing"] == directory:
		return nil // It has the size of its pool.
	case v.total > v.capacity || v.block && v.total != v.capacity:
		return fmt.Errorf("%w: %s for a capacity of %s", errWrongSize, bytes(v.total), bytes(v.capacity))
	case v.total <= before:
		return fmt.Errorf("%w: %s as before", errTooSmall, bytes(v.total))
	default:
		return nil
	}
}

// usedOf leaves out the usage where there is none to know: of a raw device.
func usedOf(usage *csi.VolumeUsage, write func(int64) string) string {
	if usage.GetUsed() == 0 && usage.GetAvailable() == 0 {
		return write(usage.GetTotal())
	}

	return write(usage.GetUsed()) + " of " + write(usage.GetTotal()) + " used"
}

func (d *demo) expanded(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		with := v.short() + " size=" + bytes(v.grown)

		answer, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId:         v.claim.VolumeID,
			CapacityRange:    &csi.CapacityRange{RequiredBytes: v.grown},
			VolumeCapability: v.claim.Capability,
		})

		if err == nil {
			v.capacity = answer.GetCapacityBytes()
		}

		switch {
		case err != nil:
			return outcome{with: with}, err
		case v.capacity < v.grown:
			return outcome{with: with}, fmt.Errorf("%w: %s", errTooSmall, bytes(v.capacity))
		case !answer.GetNodeExpansionRequired():
			return outcome{with: with, got: "larger; nothing to do on the node"}, nil
		default:
			return outcome{
				with: with, got: "larger; the node's part follows",
				then: []step{{"NodeExpandVolume", d.expandedOnNode(v)}},
			}, nil
		}
	}
}

// expandedOnNode grows device and filesystem while a workload uses them. A
// process without CAP_SYS_RESOURCE, as in many containers, may not grow a
// mounted ext4; the next staging does it then, which is shown instead.
func (d *demo) expandedOnNode(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		_, err := d.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
			VolumeId:          v.claim.VolumeID,
			VolumePath:        v.claim.TargetPath,
			StagingTargetPath: v.claim.StagingPath,
			VolumeCapability:  v.claim.Capability,
			CapacityRange:     &csi.CapacityRange{RequiredBytes: v.grown},
		})

		switch {
		case err == nil:
			return outcome{with: v.short(), got: "grown while in use"}, nil
		case status.Code(err) == codes.FailedPrecondition && v.kind == "ext4" && !mayGrowMounted():
			return outcome{
				with: v.short(), got: "refused here for a mounted ext4, so unmounted:",
				note: "(" + err.Error() + ")",
				then: []step{
					{unpublishVolume, d.unpublished(v)},
					{unstageVolume, d.unstaged(v)},
					{stageVolume, d.staged(v)},
					{publishVolume, d.published(v)},
					{"read, sha256", v.verified("")},
				},
			}, nil
		default:
			return outcome{with: v.short()}, err
		}
	}
}

// mayGrowMounted is whether the kernel would let this process, and so the
// driver, grow a mounted ext4. Where it would, a refusal is the driver's fault.
func mayGrowMounted() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}

	var sets [2]unix.CapUserData // Version 3 has two words of each set.
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return true
	}

	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func (d *demo) listed(ctx context.Context) (outcome, error) {
	nodes := make(map[string][]string)

	for entry, err := range d.Volumes(ctx, 2) {
		if err != nil {
			return outcome{}, err
		}

		nodes[entry.GetVolume().GetVolumeId()] = entry.GetStatus().GetPublishedNodeIds()
	}

	done := outcome{with: "max_entries=2", got: fmt.Sprintf("%d volumes, on %s", len(nodes), nodeID)}

	for _, v := range d.everyVolume() {
		if !slices.Equal(nodes[v.claim.VolumeID], []string{nodeID}) {
			return done, fmt.Errorf("%w: volume %s on nodes %v", errNotListed, v.claim.VolumeID, nodes[v.claim.VolumeID])
		}
	}

	return done, nil
}

func (d *demo) unpublished(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: v.short(), got: "the target path is gone"}
		if err := v.undoLast(ctx); err != nil {
			return done, err
		}

		if _, err := os.Lstat(v.claim.TargetPath); !errors.Is(err, fs.ErrNotExist) {
			return done, errTargetLeft
		}

		return done, nil
	}
}

func (d *demo) unstaged(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: v.short(), got: "unmounted, device free"}
		if err := v.undoLast(ctx); err != nil {
			return done, err
		}

		if err := d.notInUse(v); err != nil {
			return done, err
		}

		// The staging directory was the orchestrator's to make, so it is to remove.
		if err := os.Remove(v.claim.StagingPath); err != nil {
			return done, fmt.Errorf("remove the staging directory: %w", err)
		}

		return done, nil
	}
}

// notInUse asks the kernel whether the volume really left the node.
func (d *demo) notInUse(v *volume) error {
	if mount, err := mountAt(v.claim.StagingPath); err == nil {
		return fmt.Errorf("%w: %s is mounted at %s", errStillInUse, mount.Source, mount.Mountpoint)
	} else if !errors.Is(err, errNotMounted) {
		return err
	}

	loops, err := loopsBelow(d.at.root)
	if err != nil {
		return err
	}

	for _, device := range loops {
		if strings.Contains(device.image, v.claim.VolumeID) {
			return fmt.Errorf("%w: %s", errStillInUse, device)
		}
	}

	return nil
}

func (d *demo) detached(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: v.short() + " node=" + nodeID, got: "detached"}, v.undoLast(ctx)
	}
}

func (d *demo) deleted(v *volume) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		return outcome{with: v.short(), got: "gone"}, v.undoLast(ctx)
	}
}

func (d *demo) remove(ctx context.Context, claim *csiclient.Publication) error {
	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: claim.VolumeID})

	return err
}

func (d *demo) noMounts(context.Context) (outcome, error) {
	mounts, err := mountsBelow(d.at.root)
	if err != nil {
		return outcome{}, err
	}

	var paths []string
	for _, mount := range mounts {
		paths = append(paths, mount.Mountpoint)
	}

	return none("mount", paths)
}

func (d *demo) noLoops(context.Context) (outcome, error) {
	loops, err := loopsBelow(d.at.root)
	if err != nil {
		return outcome{}, err
	}

	var names []string
	for _, device := range loops {
		names = append(names, device.String())
	}

	return none("loop device", names)
}

// none is good news.
func none(what string, found []string) (outcome, error) {
	if len(found) > 0 {
		return outcome{}, fmt.Errorf("%w: %s", errRemains, strings.Join(found, ", "))
	}

	return outcome{got: "no " + what}, nil
}

// do makes a call whose reverse is remembered beforehand: an interrupted call
// may have had its effect.
func (v *volume) do(ctx context.Context, call, reverse func(context.Context, *csiclient.Publication) error) error {
	v.undo = append(v.undo, func(ctx context.Context) error { return reverse(ctx, &v.claim) })

	return call(ctx, &v.claim)
}

// again makes a call whose effect is there already, and has the kernel confirm
// that nothing came on top of it.
func (d *demo) again(
	v *volume, with string, call func(context.Context, *csiclient.Publication) error,
) func(context.Context) (outcome, error) {
	return func(ctx context.Context) (outcome, error) {
		done := outcome{with: v.short() + " " + with, got: "OK, nothing changed"}

		before, err := mountsBelow(d.at.root)
		if err != nil {
			return done, err
		}

		if err := call(ctx, &v.claim); err != nil {
			return done, err
		}

		after, err := mountsBelow(d.at.root)
		if err == nil && !slices.EqualFunc(before, after, sameMount) {
			err = fmt.Errorf("%w: %d then %d", errMountsDiffer, len(before), len(after))
		}

		return done, err
	}
}

func sameMount(a, b *mountinfo.Info) bool { return a.ID == b.ID && a.Mountpoint == b.Mountpoint }

func (v *volume) short() string { return "volume=…" + tailOf(v.claim.VolumeID) }

// tailOf is the end of an id, where UUIDv7s of one second differ.
func tailOf(id string) string {
	const shown = 6

	return id[max(0, len(id)-shown):]
}

func bytes(n int64) string {
	if n < 0 {
		return humanize.Comma(n) + " B"
	}

	return humanize.IBytes(uint64(n))
}

// pairs begins with a blank, if there are any.
func pairs(m map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(m)) {
		text.WriteString(" " + key + "=" + m[key])
	}

	return text.String()
}
