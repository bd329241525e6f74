package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
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

// allSections returns the whole demo in order.
func (d *demo) allSections() []section {
	sections := []section{{"The driver starts", slices.Concat(d.startSteps(), d.identitySteps())}}

	for _, v := range d.volumes {
		sections = append(sections, section{withArticle(v.kind) + " volume is created and used", d.useSteps(v)})
	}

	sections = append(sections, d.copySections()...)
	sections = append(sections, section{"The driver is killed, and starts again", d.restartSteps()})

	for _, v := range d.allVolumes() {
		sections = append(sections, section{"The " + v.kind + " volume afterwards, until it is deleted", d.retryAndDeleteSteps(v)})
	}

	return append(sections,
		section{"The snapshots outlive their volumes", d.survivingSnapshotSteps()},
		section{"Nothing is left", d.verifyCleanSteps()})
}

// allVolumes returns the volumes created empty and their copies.
func (d *demo) allVolumes() []*volume { return slices.Concat(d.volumes, d.copySet.volumes()) }

func (d *demo) startSteps() []step {
	return []step{
		{"touchstone serve", d.startDriver},
		{"Probe", func(ctx context.Context) (outcome, error) {
			return outcome{got: "ready"}, d.WaitReady(ctx)
		}},
	}
}

func (d *demo) identitySteps() []step {
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

			return outcome{got: formatBytes(capacity.GetAvailableCapacity()) + " available"}, err
		}},
	}
}

// useSteps are the calls from creation to expansion, in the order that CSI prescribes.
func (d *demo) useSteps(v *volume) []step {
	return []step{
		{createVolume, d.create(v)},
		{createVolume, d.createAgain(v)},
		{controllerPublish, d.attach(v)},
		{stageVolume, d.stage(v)},
		{publishVolume, d.publish(v)},
		{"write, fsync", v.write},
		{getVolumeStats, d.getStats(v)},
		{"ControllerExpandVolume", d.expand(v)},
		{getVolumeStats, d.getStats(v)},
	}
}

// restartSteps kill and restart the driver, which must not affect its volumes.
func (d *demo) restartSteps() []step {
	every := d.allVolumes()
	steps := make([]step, 0, 1+len(every))
	steps = append(steps, step{"kill -9", d.killDriver})

	for _, v := range every {
		steps = append(steps, step{"read " + v.kind, v.verify("while no driver runs")})
	}

	return append(slices.Concat(steps, d.startSteps()), step{listVolumes, d.verifyListed})
}

// retryAndDeleteSteps are the calls from the driver's restart to deletion. All calls in
// effect are repeated first, as an orchestrator does if it does not know their outcome.
func (d *demo) retryAndDeleteSteps(v *volume) []step {
	return []step{
		{controllerPublish, d.repeatCall(v, "same arguments", d.Attach)},
		{stageVolume, d.repeatCall(v, "same arguments", d.Stage)},
		{publishVolume, d.repeatCall(v, "same arguments", d.Publish)},
		{"read, sha256", v.verify("")},
		{unpublishVolume, d.unpublish(v)},
		{unstageVolume, d.unstage(v)},
		{"ControllerUnpublishVolume", d.detach(v)},
		{deleteVolume, d.delete(v)},
		{deleteVolume, d.repeatCall(v, "deleted already", d.callDeleteVolume)},
	}
}

func (d *demo) verifyCleanSteps() []step {
	return []step{
		{listVolumes, func(ctx context.Context) (outcome, error) {
			var ids []string
			for entry, err := range d.Volumes(ctx, 0) {
				if err != nil {
					return outcome{}, err
				}
				ids = append(ids, entry.GetVolume().GetVolumeId())
			}

			return expectNone("volume", ids)
		}},
		{listSnapshots, d.verifyNoSnapshots},
		// Before the driver ends: it keeps an embedded pool mounted.
		{"pool", func(context.Context) (outcome, error) {
			files, err := volumeFilesBelow(d.paths.pool)
			if err != nil {
				return outcome{}, err
			}

			return expectNone("file", files)
		}},
		{"touchstone serve ends", d.stopDriver},
		{"mount table", d.verifyNoMounts},
		{"loop devices", d.verifyNoLoops},
	}
}

func (d *demo) startDriver(context.Context) (outcome, error) {
	var err error

	d.driver, err = startDriver(d.program, d.paths)
	if err != nil {
		return outcome{}, err
	}

	return outcome{with: "--mode all", got: fmt.Sprintf("process %d", d.driver.process.Pid)}, nil
}

func (d *demo) killDriver(context.Context) (outcome, error) {
	driver := d.driver
	d.driver = nil // Its exit is expected from here on.

	return outcome{got: fmt.Sprintf("process %d is gone", driver.process.Pid)}, driver.kill()
}

func (d *demo) stopDriver(ctx context.Context) (outcome, error) {
	driver := d.driver
	if err := driver.stop(context.WithoutCancel(ctx)); err != nil {
		return outcome{with: "SIGTERM"}, err
	}

	d.driver = nil

	return outcome{with: "SIGTERM", got: "exit code 0"}, nil
}
